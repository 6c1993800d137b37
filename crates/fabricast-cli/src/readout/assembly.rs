//! Events that are being put together: received messages, kept as they are until all of an event
//! are there.
//!
//! The fragments that a source sends of one event come one behind the other. So the event that the
//! last fragment belonged to lies apart, and one that is complete with the next fragment is never
//! looked for in a table.

use std::ops::Range;
use std::time::{Duration, Instant};

use fabricast::endpoint::{Message, MessageRef};
use smallvec::SmallVec;

use crate::readout::places::Places;
use crate::readout::wire::{DETECTORS_MAX, Fragment};

/// One fragment, as far as it is needed once its event is complete.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) committed: u64,
    pub(crate) crc: u32,
    pub(crate) detector: u16,
    pub(crate) source: u16,
    content: Content,
}

/// Where the bytes of a fragment are.
#[derive(Debug)]
enum Content {
    /// In a message that was just received.
    Fresh(u32),
    /// In one that is kept with the event. Dropping it gives the buffer that it was received into
    /// back to the network.
    Kept(u32),
    /// With the event, which has a copy.
    Copy(Range<u32>),
}

/// What just came, borrowed from where it lies, and how it is kept if it has to be.
#[derive(Debug)]
pub(crate) enum FreshPiece<'m> {
    /// Other messages lie in the same buffer: it is copied.
    Bytes(&'m [u8]),
    /// It has a buffer of its own, which is kept.
    Message(MessageRef<'m>),
}

impl FreshPiece<'_> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Message(message) => message.payload(),
        }
    }
}

/// The pieces of the event at hand that just came.
#[derive(Debug, Default)]
pub(crate) struct Fresh<'m>(SmallVec<[FreshPiece<'m>; DETECTORS_MAX as usize]>);

/// An event, whole or not yet.
#[derive(Debug, Default)]
pub(crate) struct Partial {
    pub(crate) number: u64,
    pub(crate) pieces: Vec<Piece>,
    /// Messages that it keeps.
    kept: Vec<Message>,
    /// Bytes of pieces that were copied.
    copies: Vec<u8>,
    /// A bit for each detector whose fragment is there.
    detectors: u64,
    /// A bit for each source of which something is there.
    sources: u64,
    /// Detectors of these sources, and fragments that they have of the event.
    detectors_told: u32,
    pieces_told: usize,
    since: Option<Instant>,
}

impl Partial {
    /// The sources that have sent something of it.
    pub(crate) fn sources(&self) -> impl Iterator<Item = usize> + use<> {
        let mut sources = self.sources;
        std::iter::from_fn(move || {
            let source = sources.trailing_zeros();
            sources &= sources.wrapping_sub(1);
            (source < u64::BITS).then_some(source as usize)
        })
    }

    /// The bytes of one of its pieces.
    pub(crate) fn bytes<'a>(&'a self, piece: &Piece, fresh: &'a Fresh<'_>) -> &'a [u8] {
        match &piece.content {
            Content::Fresh(index) => fresh.0[*index as usize].bytes(),
            Content::Kept(index) => self.kept[*index as usize].payload(),
            Content::Copy(range) => &self.copies[range.start as usize..range.end as usize],
        }
    }

    /// Keeps what is only borrowed.
    fn keep(&mut self, fresh: &Fresh<'_>) {
        for piece in &mut self.pieces {
            let Content::Fresh(index) = piece.content else {
                continue;
            };
            piece.content = match &fresh.0[index as usize] {
                FreshPiece::Bytes(bytes) => {
                    let start = self.copies.len() as u32;
                    self.copies.extend_from_slice(bytes);
                    Content::Copy(start..self.copies.len() as u32)
                }
                FreshPiece::Message(message) => {
                    self.kept.push(message.to_message());
                    Content::Kept(self.kept.len() as u32 - 1)
                }
            };
        }
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.kept.clear();
        self.copies.clear();
        self.detectors = 0;
        self.sources = 0;
        self.detectors_told = 0;
        self.pieces_told = 0;
        self.since = None;
    }

    fn is_begun(&self) -> bool {
        self.since.is_some()
    }
}

/// All events that are not complete. Allocates when it has more of them than ever before.
pub(crate) struct Assembly {
    /// Detectors of all sources: so many must have been heard of.
    detectors: u32,
    /// The event of the last fragment, if it is begun.
    current: Partial,
    /// The others, and where each is.
    parked: Vec<Partial>,
    places: Places,
    /// Places without an event, in `parked`.
    free: Vec<u32>,
    /// Memory of parked events that are done, to be used again.
    spare: Vec<Partial>,
}

impl Assembly {
    /// Of the fragments of so many detectors.
    pub(crate) fn new(detectors: u16) -> Self {
        Self {
            detectors: detectors.into(),
            current: Partial::default(),
            parked: Vec::new(),
            places: Places::new(),
            free: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Adds a fragment of a source that has so many detectors. Says whether its event is complete
    /// with it: then that is [`current`](Self::current), and to be [`clear`](Self::clear)ed.
    ///
    /// # Errors
    /// The fragment came twice; it is dropped.
    #[inline]
    pub(crate) fn add<'m>(
        &mut self,
        fragment: &Fragment,
        (index, source_detectors): (usize, u16),
        content: FreshPiece<'m>,
        now: Instant,
        fresh: &mut Fresh<'m>,
    ) -> Result<bool, Duplicate> {
        let number = fragment.event;
        if self.current.number != number || !self.current.is_begun() {
            self.turn_to(number, now, fresh);
        }
        let partial = &mut self.current;
        let detector = 1 << fragment.detector;
        if partial.detectors & detector != 0 {
            return Err(Duplicate);
        }
        partial.detectors |= detector;
        let source = 1 << index;
        if partial.sources & source == 0 {
            partial.sources |= source;
            partial.detectors_told += u32::from(source_detectors);
            partial.pieces_told += usize::from(fragment.of);
        }
        partial.pieces.push(Piece {
            // There are 64 at most: each has a bit.
            source: index as u16,
            detector: fragment.detector,
            crc: fragment.crc,
            committed: fragment.committed,
            content: Content::Fresh(fresh.0.len() as u32),
        });
        fresh.0.push(content);
        Ok(partial.detectors_told == self.detectors && partial.pieces.len() == partial.pieces_told)
    }

    /// The event of the last fragment.
    pub(crate) fn current(&self) -> &Partial {
        &self.current
    }

    /// The current event is done with; its messages are dropped.
    pub(crate) fn clear(&mut self, fresh: &mut Fresh<'_>) {
        self.current.clear();
        fresh.0.clear();
    }

    #[cold]
    fn unpark(&mut self, place: u32) {
        let parked = &mut self.parked[place as usize];
        let partial = std::mem::take(parked);
        let empty = std::mem::replace(&mut self.current, partial);
        self.spare.push(empty);
        self.free.push(place);
    }

    /// Makes the event of this number the current one.
    fn turn_to(&mut self, number: u64, now: Instant, fresh: &mut Fresh<'_>) {
        if self.current.is_begun() {
            self.park(fresh);
        }
        match self.places.remove(number) {
            Some(place) => self.unpark(place),
            None => {
                self.current.number = number;
                self.current.since = Some(now);
            }
        }
    }

    /// The current event waits for others to come.
    fn park(&mut self, fresh: &mut Fresh<'_>) {
        self.settle(fresh);
        let partial = self.take_current();
        let number = partial.number;
        let place = match self.free.pop() {
            Some(place) => {
                self.parked[place as usize] = partial;
                place
            }
            None => {
                self.parked.push(partial);
                (self.parked.len() - 1) as u32
            }
        };
        self.places.insert(number, place);
    }

    /// Leaves an empty one in its place.
    fn take_current(&mut self) -> Partial {
        let next = self.spare.pop().unwrap_or_default();
        std::mem::replace(&mut self.current, next)
    }

    /// All that came at once was added: what is not complete waits, and must not keep the buffers
    /// of other messages.
    pub(crate) fn settle(&mut self, fresh: &mut Fresh<'_>) {
        if !fresh.0.is_empty() {
            self.current.keep(fresh);
            fresh.0.clear();
        }
    }

    /// Takes the memory of an event that was given up; its messages are dropped.
    pub(crate) fn recycle(&mut self, mut partial: Partial) {
        partial.clear();
        self.spare.push(partial);
    }

    /// Gives up what has waited for longer, or holds something of a source that is gone.
    pub(crate) fn give_up(
        &mut self,
        now: Instant,
        patience: Duration,
        gone: Option<usize>,
    ) -> Vec<Partial> {
        let is_over = |partial: &Partial| {
            let late = partial.since.is_some_and(|since| now - since > patience);
            late || gone.is_some_and(|source| partial.sources >> source & 1 == 1)
        };
        let parked = &mut self.parked;
        let over = self
            .places
            .extract(|place| is_over(&parked[place as usize]));
        self.free.extend(&over);
        let take = |place: u32| std::mem::take(&mut parked[place as usize]);
        let mut over: Vec<_> = over.into_iter().map(take).collect();
        if is_over(&self.current) {
            over.push(self.take_current());
        }
        over
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() + usize::from(self.current.is_begun())
    }
}

/// The fragment is there already.
#[derive(Debug)]
pub(crate) struct Duplicate;

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a fragment of one detector; gives the numbers of pieces and sources when the event is
    /// complete.
    fn add(
        assembly: &mut Assembly,
        (event, detector): (u64, u16),
        (source, detectors): (usize, u16),
        now: Instant,
    ) -> Result<Option<(u64, usize)>, Duplicate> {
        let (bytes, mut fresh) = ([event as u8, detector as u8], Fresh::default());
        let fragment = Fragment {
            event,
            detector,
            of: detectors,
            serial: 0,
            committed: 0,
            crc: 0,
            reassigned: false,
        };
        let source = (source, detectors);
        let content = FreshPiece::Bytes(&bytes);
        let whole = assembly.add(&fragment, source, content, now, &mut fresh)?;
        if !whole {
            assembly.settle(&mut fresh);
            return Ok(None);
        }
        let event = assembly.current();
        assert!(event.sources().eq([0, 1]));
        for piece in &event.pieces {
            let want = [event.number as u8, piece.detector as u8];
            assert_eq!(event.bytes(piece, &fresh), want, "its own bytes");
        }
        let found = (event.number, event.pieces.len());
        assembly.clear(&mut fresh);
        Ok(Some(found))
    }

    #[test]
    fn events_are_put_together_in_any_order_of_sources() {
        let now = Instant::now();
        let mut assembly = Assembly::new(3);
        // Source 0 has detectors 0 and 1, source 1 has detector 2, and is late.
        for event in [5, 7, 1 << 60, 4] {
            for detector in [0, 1] {
                let added = add(&mut assembly, (event, detector), (0, 2), now);
                assert_eq!(added.expect("it is new"), None);
            }
        }
        assert_eq!(assembly.len(), 4);
        assert!(add(&mut assembly, (7, 1), (0, 2), now).is_err(), "twice");
        for event in [7, 4, 5] {
            let added = add(&mut assembly, (event, 2), (1, 1), now);
            assert_eq!(added.expect("it is new"), Some((event, 3)));
        }
        assert!(add(&mut assembly, (8, 2), (1, 1), now).is_ok_and(|found| found.is_none()));
        assert_eq!(assembly.len(), 2);
        let patience = Duration::from_secs(1);
        assert!(assembly.give_up(now, patience, Some(5)).is_empty());
        let given_up = assembly.give_up(now, patience, Some(0));
        let numbers: Vec<_> = given_up.iter().map(|event| event.number).collect();
        assert_eq!((numbers, assembly.len()), (vec![1 << 60], 1));
        assert_eq!(
            assembly.give_up(now + 2 * patience, patience, None).len(),
            1
        );
        assert_eq!(assembly.len(), 0);
    }
}
