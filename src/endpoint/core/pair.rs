//! Header and payload as two operations of one send (shape `TwoMessages`): the send is over when
//! both are, whichever is first.
//!
//! ```text
//!  header in flight, payload in flight ── header over ──► payload in flight ── over ──► outcome
//!                └── payload over: it waits in the slab, posted nowhere ── header over ──► outcome
//! ```

#![allow(unsafe_code)]

use std::num::NonZeroUsize;

use crate::buffer::TakenSlot;
use crate::endpoint::core::outgoing::DataOp;
use crate::endpoint::link::iov::IovList;
use crate::in_flight::InFlight;

/// A header in flight by itself. Its slot is given back by whoever takes it out of the slab.
pub(crate) struct HeaderOp {
    slot: TakenSlot,
    /// The context of its payload; `None` when that is not waited for any more.
    payload: Option<NonZeroUsize>,
    /// The payload is over.
    last: bool,
}

impl HeaderOp {
    pub(crate) fn new(slot: TakenSlot) -> Self {
        Self {
            slot,
            payload: None,
            last: false,
        }
    }

    pub(crate) fn into_slot(self) -> TakenSlot {
        self.slot
    }
}

/// What the slab of a core that sends in two messages holds.
pub(crate) trait PairOps: Sized {
    fn of_data(op: DataOp) -> Self;
    fn data(&mut self) -> Option<&mut DataOp>;
    fn header(&mut self) -> Option<&mut HeaderOp>;
    fn into_data(self) -> Option<DataOp>;
}

/// Ties a header to its payload; both are in the slab.
pub(crate) fn tie<T: PairOps>(in_flight: &mut InFlight<T>, header: usize, payload: usize) {
    if let Some(op) = in_flight.get_mut(header).and_then(T::header) {
        op.payload = NonZeroUsize::new(payload);
    }
    if let Some(op) = in_flight.get_mut(payload).and_then(T::data) {
        op.header = NonZeroUsize::new(header);
    }
}

/// The payload is over. Gives it back, unless its header is not: then it waits for that in the
/// slab.
pub(crate) fn on_payload<T: PairOps>(
    in_flight: &mut InFlight<T>,
    mut op: DataOp,
    failed: bool,
) -> Option<DataOp> {
    let Some(header) = op.header.take() else {
        return Some(op);
    };
    if failed {
        if let Some(header) = in_flight.get_mut(header.get()).and_then(T::header) {
            header.payload = None;
        }
        return Some(op);
    }
    // It was just taken out of the slab, so there is room.
    match in_flight.begin(T::of_data(op)) {
        Ok(context) => {
            if let Some(header) = in_flight.get_mut(header.get()).and_then(T::header) {
                (header.payload, header.last) = (NonZeroUsize::new(context), true);
            }
            None
        }
        Err(op) => op.into_data(),
    }
}

/// The header is over. Gives its slot, and the payload if that has waited for it.
pub(crate) fn on_header<T: PairOps>(
    in_flight: &mut InFlight<T>,
    op: HeaderOp,
) -> (TakenSlot, Option<DataOp>) {
    let HeaderOp {
        slot,
        payload,
        last,
    } = op;
    let Some(context) = payload.map(NonZeroUsize::get) else {
        return (slot, None);
    };
    if last {
        let op = in_flight.finish(context).ok();
        return (slot, op.and_then(T::into_data));
    }
    if let Some(op) = in_flight.get_mut(context).and_then(T::data) {
        op.header = None;
    }
    (slot, None)
}

/// A message whose credit is taken, and that is not posted yet: the provider has no room for it, or
/// it waits for its gate, or behind such a one. It is posted before any other.
pub(crate) struct Stalled {
    pub(crate) context: usize,
    pub(crate) data: Option<u64>,
    pub(crate) iov: IovList,
    /// It waits for the gate of this operation's payload: its own, or that of the payload that
    /// follows it.
    pub(crate) gate: Option<NonZeroUsize>,
}

// SAFETY: addresses and descriptors of what the slab's operation holds, which goes to another
// thread together with this; only the link reads them.
unsafe impl Send for Stalled {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::{HeaderSlotConfig, HeaderSlotManager};
    use crate::endpoint::EndpointId;
    use crate::in_flight::ContextKind;
    use crate::memory::Registrar;
    use crate::memory::fake::FakeRegistrar;

    enum Op {
        Data(DataOp),
        Header(HeaderOp),
    }

    impl PairOps for Op {
        fn of_data(op: DataOp) -> Self {
            Self::Data(op)
        }

        fn data(&mut self) -> Option<&mut DataOp> {
            match self {
                Self::Data(op) => Some(op),
                Self::Header(_) => None,
            }
        }

        fn header(&mut self) -> Option<&mut HeaderOp> {
            match self {
                Self::Header(op) => Some(op),
                Self::Data(_) => None,
            }
        }

        fn into_data(self) -> Option<DataOp> {
            match self {
                Self::Data(op) => Some(op),
                Self::Header(_) => None,
            }
        }
    }

    /// A header and a payload in flight: slab, context of the header, context of the payload.
    fn pair(contexts: ContextKind, headers: &HeaderSlotManager) -> (InFlight<Op>, usize, usize) {
        let mut slab = InFlight::new(2, contexts);
        let data = DataOp::empty(7, FakeRegistrar::new().scope());
        let slot = headers.take(&[b"h"], 7, EndpointId::next()).unwrap();
        let payload = slab.begin(Op::Data(data)).ok().unwrap();
        let header = slab.begin(Op::Header(HeaderOp::new(slot))).ok().unwrap();
        tie(&mut slab, header, payload);
        (slab, header, payload)
    }

    fn take(slab: &mut InFlight<Op>, context: usize) -> Op {
        slab.finish(context).expect("in flight")
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
                        Op::Header(op) => {
                            let (slot, op) = on_header(&mut slab, op);
                            headers.give_back(slot);
                            over = op;
                        }
                        Op::Data(op) => over = on_payload(&mut slab, op, false),
                    }
                }
                assert_eq!(over.map(|op| op.key), Some(7));
                assert!(slab.is_empty());
                assert_eq!(headers.free_count(), headers.capacity());
            }
        }
    }

    #[test]
    fn a_payload_that_failed_does_not_wait_for_its_header() {
        let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).unwrap();
        let (mut slab, header, payload) = pair(ContextKind::Opaque, &headers);
        let Op::Data(op) = take(&mut slab, payload) else {
            panic!("the payload's")
        };
        assert_eq!(on_payload(&mut slab, op, true).map(|op| op.key), Some(7));
        let Op::Header(op) = take(&mut slab, header) else {
            panic!("the header's")
        };
        let (slot, op) = on_header(&mut slab, op);
        headers.give_back(slot);
        assert!(op.is_none() && slab.is_empty(), "it had its outcome");
    }
}
