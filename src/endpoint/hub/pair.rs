//! Header and payload as two operations of one send (shape `TwoMessages`): the send is over when
//! both are, whichever is first.
//!
//! ```text
//!  header in flight, payload in flight ── header over ──► payload in flight ── over ──► outcome
//!                └── payload over: it waits in the slab, posted nowhere ── header over ──► outcome
//! ```

use std::num::NonZeroUsize;

use crate::buffer::TakenSlot;
use crate::endpoint::hub::data_op::DataOp;
use crate::endpoint::hub::posted::{MessageOp, Posted};
use crate::id::ConnectionId;

/// A header in flight by itself. Its slot is given back by whoever takes it out of the slab.
pub(crate) struct HeaderOp {
    pub(crate) connection: ConnectionId,
    slot: TakenSlot,
    /// The context of its payload; `None` when that is not waited for any more.
    payload: Option<NonZeroUsize>,
    /// The payload is over.
    last: bool,
}

impl HeaderOp {
    pub(crate) fn new(connection: ConnectionId, slot: TakenSlot) -> Self {
        Self {
            connection,
            slot,
            payload: None,
            last: false,
        }
    }

    pub(crate) fn into_slot(self) -> TakenSlot {
        self.slot
    }
}

impl Posted {
    fn header(&mut self, context: NonZeroUsize) -> Option<&mut HeaderOp> {
        match self.messages.get_mut(context.get()) {
            Some(MessageOp::Header(op)) => Some(op),
            Some(MessageOp::Data(_)) | None => None,
        }
    }

    /// Puts a header into the slab, tied to its payload, which is there. Its context.
    pub(crate) fn begin_header(&mut self, header: HeaderOp, payload: usize) -> usize {
        let header = HeaderOp {
            payload: NonZeroUsize::new(payload),
            ..header
        };
        let Ok(context) = self.messages.begin(MessageOp::Header(header)).map_err(drop) else {
            unreachable!("the slab has room for a header with each message");
        };
        if let Some(op) = self.data(payload) {
            op.header = NonZeroUsize::new(context);
        }
        context
    }

    /// The payload is over. Gives it back, unless its header is not: then it waits for that in the
    /// slab.
    pub(crate) fn on_payload(&mut self, mut op: DataOp, failed: bool) -> Option<DataOp> {
        let Some(header) = op.header.take() else {
            return Some(op);
        };
        if failed {
            if let Some(header) = self.header(header) {
                header.payload = None;
            }
            return Some(op);
        }
        // It was just taken out of the slab, so there is room.
        let Ok(context) = self.messages.begin(MessageOp::Data(op)).map_err(drop) else {
            unreachable!("its own place is free");
        };
        if let Some(header) = self.header(header) {
            (header.payload, header.last) = (NonZeroUsize::new(context), true);
        }
        None
    }

    /// The header is over. Gives its slot, and the payload if that has waited for it.
    pub(crate) fn on_header(&mut self, op: HeaderOp) -> (TakenSlot, Option<DataOp>) {
        let Some(context) = op.payload.map(NonZeroUsize::get) else {
            return (op.slot, None);
        };
        if !op.last {
            if let Some(payload) = self.data(context) {
                payload.header = None;
            }
            return (op.slot, None);
        }
        match self.messages.finish(context) {
            Ok(MessageOp::Data(payload)) => (op.slot, Some(payload)),
            Ok(MessageOp::Header(_)) | Err(_) => (op.slot, None),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::{HeaderSlotConfig, HeaderSlotManager};
    use crate::endpoint::EndpointId;
    use crate::endpoint::hub::conn_table::NOBODY;
    use crate::in_flight::ContextKind;
    use crate::memory::Registrar;
    use crate::memory::fake::FakeRegistrar;

    /// A header and a payload in flight: slab, context of the header, context of the payload.
    fn pair(contexts: ContextKind, headers: &HeaderSlotManager) -> (Posted, usize, usize) {
        let mut slab = Posted::new(2, 0, 0, contexts);
        let data = DataOp::empty(7, FakeRegistrar::new().scope());
        let slot = headers.take(&[b"h"], 7, EndpointId::next()).unwrap();
        let payload = slab.messages.begin(MessageOp::Data(data)).ok().unwrap();
        let header = slab.begin_header(HeaderOp::new(NOBODY, slot), payload);
        (slab, header, payload)
    }

    fn take(slab: &mut Posted, context: usize) -> MessageOp {
        slab.messages.finish(context).expect("in flight")
    }

    #[test]
    fn a_send_is_over_when_its_second_half_is_whichever_that_is() {
        let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).unwrap();
        for contexts in [ContextKind::Opaque, ContextKind::Cells] {
            for header_first in [true, false] {
                let (mut slab, header, payload) = pair(contexts, &headers);
                let mut over = None;
                for is_header in [header_first, !header_first] {
                    assert!(over.is_none(), "one half is no send");
                    match take(&mut slab, if is_header { header } else { payload }) {
                        MessageOp::Header(op) => {
                            let (slot, op) = slab.on_header(op);
                            headers.give_back(slot);
                            over = op;
                        }
                        MessageOp::Data(op) => over = slab.on_payload(op, false),
                    }
                }
                assert_eq!(over.map(|op| op.key), Some(7));
                assert_eq!(slab.len(), 0);
                assert_eq!(headers.free_count(), headers.capacity());
            }
        }
    }

    #[test]
    fn a_payload_that_failed_does_not_wait_for_its_header() {
        let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).unwrap();
        let (mut slab, header, payload) = pair(ContextKind::Opaque, &headers);
        let MessageOp::Data(op) = take(&mut slab, payload) else {
            panic!("the payload's")
        };
        assert_eq!(slab.on_payload(op, true).map(|op| op.key), Some(7));
        let MessageOp::Header(op) = take(&mut slab, header) else {
            panic!("the header's")
        };
        let (slot, op) = slab.on_header(op);
        headers.give_back(slot);
        assert!(op.is_none() && slab.len() == 0, "it had its outcome");
    }
}
