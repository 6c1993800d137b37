//! `HeaderWriter`: headers of messages, and the slots that they are copied into.

use crate::buffer::{HeaderError, HeaderSlotManager, TakenSlot};
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::id::EndpointId;
use crate::protocol::wire::{self, HeaderMode};

/// A header in its slot, for sends to several connections. Given back by
/// [`Outgoing::drop_header`](super::outgoing::Outgoing::drop_header).
#[derive(Debug)]
#[must_use = "the slot stays taken until the header is dropped at its endpoint"]
pub(crate) struct PreparedHeader {
    /// The slot with the header's bytes; none where there is nothing to copy.
    pub(super) slot: Option<TakenSlot>,
    len: usize,
}

impl PreparedHeader {
    /// Bytes of the header, as it was given.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Where a message's header comes from.
pub(crate) enum Header<'a> {
    Bytes(&'a [u8]),
    /// Other messages have it, too.
    Prepared(&'a mut PreparedHeader),
}

impl Header<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Prepared(header) => header.len(),
        }
    }

    /// This header once more, for a second attempt.
    pub(crate) fn again(&mut self) -> Header<'_> {
        match self {
            Self::Bytes(bytes) => Header::Bytes(bytes),
            Self::Prepared(header) => Header::Prepared(header),
        }
    }
}

/// Copies headers into slots, with what the header mode puts in front of them.
#[derive(Debug)]
pub(super) struct HeaderWriter {
    /// The endpoint whose headers these are.
    pub(super) owner: EndpointId,
    pub(super) slots: HeaderSlotManager,
    pub(super) mode: HeaderMode,
}

impl HeaderWriter {
    #[inline(always)]
    pub(super) fn check(&self, len: usize) -> Result<(), SendErrorKind> {
        let slot = self.slots.slot_size();
        let max = slot.saturating_sub(self.mode.overhead());
        match self.mode {
            HeaderMode::Fixed(fixed) if len != usize::from(fixed) => {
                Err(SendErrorKind::HeaderLength {
                    len,
                    fixed: usize::from(fixed),
                })
            }
            _ if len > max => Err(SendErrorKind::HeaderTooLong { len, max }),
            _ => Ok(()),
        }
    }

    /// What the header mode puts in front of a header.
    #[inline]
    pub(super) fn prefix(&self, header: &[u8]) -> Prefix {
        match self.mode {
            // `check` bounded the length by the slot's, which is at most 4096.
            HeaderMode::Prefixed => Prefix(Some(wire::prefix(header.len() as u16))),
            HeaderMode::Fixed(_) | HeaderMode::Raw => Prefix(None),
        }
    }

    /// Copies the header into a slot, with what the header mode puts in front of it. Nothing to
    /// copy: no slot, unless the message would have no segment at all. A header that travels alone
    /// needs nothing in front of it. `alone`: it does; `is_all`: there is no payload.
    #[inline(always)]
    pub(super) fn take(
        &self,
        header: &[u8],
        key: u64,
        (alone, is_all): (bool, bool),
    ) -> Result<Option<TakenSlot>, SendErrorKind> {
        let prefix = self.prefix(header);
        if prefix.0.is_none() && header.is_empty() && !is_all {
            return Ok(None);
        }
        let prefix = match alone {
            true => &[],
            false => prefix.as_slice(),
        };
        self.fill(&[prefix, header], key).map(Some)
    }

    #[inline]
    pub(super) fn fill(&self, parts: &[&[u8]], key: u64) -> Result<TakenSlot, SendErrorKind> {
        self.slots
            .take(parts, key, self.owner)
            .map_err(|error| match error {
                HeaderError::TooLong { len, max } => SendErrorKind::HeaderTooLong { len, max },
                HeaderError::NoSlot => SendErrorKind::WouldBlock(Blocked::HeaderSlots),
            })
    }

    /// A header that several messages will have: one slot, filled once. `alone`:
    /// it travels alone, as a rule.
    pub(super) fn prepare(
        &self,
        header: &[u8],
        key: u64,
        alone: bool,
    ) -> Result<PreparedHeader, SendErrorKind> {
        self.check(header.len())?;
        let prefix = match alone {
            // A message without a payload is not for many.
            true => Prefix(None),
            false => self.prefix(header),
        };
        let framed = self.mode == HeaderMode::Prefixed || !header.is_empty();
        let parts = [prefix.as_slice(), header];
        let slot = framed.then(|| self.fill(&parts, key)).transpose()?;
        Ok(PreparedHeader {
            slot,
            len: header.len(),
        })
    }

    /// The bytes of such a header, with its framing.
    pub(super) fn prepared<'h>(&'h self, header: &'h PreparedHeader) -> &'h [u8] {
        let slot = header.slot.as_ref();
        slot.map_or(&[], |slot| self.slots.bytes(slot))
    }

    #[inline]
    pub(super) fn give_back(&self, slot: Option<TakenSlot>) {
        if let Some(slot) = slot {
            self.slots.give_back(slot);
        }
    }
}

/// The bytes in front of a header, if the mode has any.
pub(super) struct Prefix(pub(super) Option<[u8; wire::PREFIX_LEN]>);

impl Prefix {
    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |prefix| prefix)
    }
}
