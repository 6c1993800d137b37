//! `InFlightMax`: what an endpoint may have in flight, and so how long its queues are. Nobody else
//! counts it.

use crate::endpoint::hub::control::CONTROL_SENDS;
use crate::endpoint::hub::{CONTROLS_PER_CONNECTION, HubSettings, WindowSettings};
use crate::endpoint::link::queue_sizes::QueueSizes;
use crate::fabric::Shape;
use crate::protocol::connection::Form;

/// Receives that a credit stands for, where the peer chose to send in two messages.
const RECEIVES_PER_CREDIT_MAX: u32 = 2;

/// Operations that may be in flight at once, each of them one of the provider's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InFlightMax {
    connections: u32,
    /// Control messages of all connections together; each has [`CONTROL_SENDS`] beyond them.
    controls: u32,
    /// Messages of one connection, and of all together.
    sends: (u32, u32),
    /// One-sided operations and their pieces. All connections share them, and one may have them
    /// all.
    one_sided: u32,
    /// Pieces of long messages, of one connection and of all together.
    long: (u32, u32),
    /// Receives of one connection, and of all together.
    receives: (u32, usize),
    /// A peer's operation may end here in a completion that takes no receive: a write with
    /// immediate data.
    written: bool,
}

impl InFlightMax {
    /// What a hub may have in flight whose pool has `buffers` buffers.
    pub(crate) fn of_hub(settings: &HubSettings, form: Form, buffers: usize) -> Self {
        let WindowSettings {
            operations, long, ..
        } = settings.windows;
        let (windows, sends) = (settings.windows.enabled(), settings.sends.as_ref());
        // Who sends to one that neither sends nor hears publications is a `SendEndpointZeroCopy`,
        // which chooses its shape. The others never choose this one (`Sends::new`).
        let chosen = sends.is_none() && !settings.publishing;
        let per_credit = if chosen { RECEIVES_PER_CREDIT_MAX } else { 1 };
        let receives = settings.receives(form).with(per_credit).max;
        Self {
            connections: settings.max_connections,
            controls: CONTROLS_PER_CONNECTION * settings.max_connections,
            sends: sends.map_or((0, 0), |sends| {
                let per_send = 1 + u32::from(sends.shape == Some(Shape::TwoMessages));
                (sends.depth * per_send, sends.total * per_send)
            }),
            one_sided: match windows {
                true => operations + settings.one_sided_pieces(),
                false => 0,
            },
            long: settings.long_pieces(),
            receives: (receives, buffers),
            written: windows || long,
        }
    }

    /// How long its queues have to be.
    pub(crate) fn queue_sizes(&self) -> QueueSizes {
        let own = CONTROL_SENDS + self.one_sided;
        let tx = |sends: u32, long: u32| sends.saturating_add(own).saturating_add(long) as usize;
        let (receives, buffers) = self.receives;
        QueueSizes {
            total: (
                tx(self.sends.1.saturating_add(self.controls), self.long.1),
                buffers.saturating_mul(1 + usize::from(self.written)),
            ),
            each: (tx(self.sends.0, self.long.0), receives as usize),
            connections: self.connections as usize,
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/in_flight_max.rs"]
mod tests;
