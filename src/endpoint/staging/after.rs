//! `Payload::after`: a payload that is sent when its producer is done.

use super::copy::in_words;
use crate::buffer::{Gate, GateError, Payload};
use crate::cuda::Event;

#[derive(Debug)]
struct EventGate(Event);

impl Gate for EventGate {
    fn poll(&mut self) -> Result<bool, GateError> {
        self.0.is_done().map_err(in_words)
    }
}

impl Payload {
    /// The payload, to be sent after a CUDA event: what a kernel writes is not read before it is
    /// written. May be said of several events.
    ///
    /// The send is accepted at once, keeps its place, and counts against depth, credits and
    /// deadline as any other; sends behind it on the same connection wait for it. An event that
    /// fails, fails this send alone. Copies out of a GPU's memory begin after the event, too.
    ///
    /// ```no_run
    /// # fn send(
    /// #     sender: &mut fabricast::SendEndpointZeroCopy,
    /// #     stream: &fabricast::cuda::Stream,
    /// #     tensor: fabricast::buffer::RegionSlice,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // launch a kernel on the stream, which writes `tensor`, then:
    /// let payload = fabricast::buffer::Payload::from(tensor).after(&stream.record()?);
    /// sender.send_data(payload, b"tensor 1", 1)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn after(self, event: &Event) -> Self {
        self.behind(Box::new(EventGate(event.clone())))
    }

    /// Whether it is to be sent [after](Self::after) an event. Where its bytes are taken out of it,
    /// and not sent, the event is forgotten.
    pub fn is_after(&self) -> bool {
        self.is_gated()
    }
}
