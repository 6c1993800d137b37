//! Events that are being put together: received messages, kept as they are until all of an event
//! are there.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fabricast::endpoint::Message;

use crate::wire::Fragment;

/// One fragment, in the buffer that it was received into. Dropping it gives the buffer back to the
/// network.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) fragment: Fragment,
    pub(crate) source: usize,
    pub(crate) message: Message,
}

/// An event, whole or not yet.
#[derive(Debug, Default)]
pub(crate) struct Partial {
    pub(crate) number: u64,
    pub(crate) pieces: Vec<Piece>,
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
        let sources = self.sources;
        (0..64).filter(move |source| sources >> source & 1 == 1)
    }

    fn clear(&mut self) {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        *self = Self {
            pieces,
            ..Self::default()
        };
    }
}

/// All events that are not complete.
pub(crate) struct Assembly {
    /// Detectors of all sources: so many must have been heard of.
    detectors: u32,
    partials: HashMap<u64, Partial>,
    /// Memory of events that are done, to be used again.
    spare: Vec<Partial>,
}

impl Assembly {
    /// At most `capacity` events at a time: each holds a receive buffer.
    pub(crate) fn new(detectors: u16, capacity: usize) -> Self {
        let partial = |_| Partial {
            pieces: Vec::with_capacity(detectors.into()),
            ..Partial::default()
        };
        Self {
            detectors: detectors.into(),
            partials: HashMap::with_capacity(2 * capacity),
            spare: (0..capacity).map(partial).collect(),
        }
    }

    /// Adds a fragment of a source that has so many detectors. Returns the event if it is complete
    /// with it.
    ///
    /// # Errors
    /// The fragment came twice; it is dropped.
    pub(crate) fn add(
        &mut self,
        piece: Piece,
        source_detectors: u16,
        now: Instant,
    ) -> Result<Option<Partial>, Duplicate> {
        let number = piece.fragment.event;
        let partial = self.partials.entry(number).or_insert_with(|| {
            let mut partial = self.spare.pop().unwrap_or_default();
            partial.number = number;
            partial.since = Some(now);
            partial
        });
        let detector = 1 << piece.fragment.detector;
        if partial.detectors & detector != 0 {
            return Err(Duplicate);
        }
        partial.detectors |= detector;
        let source = 1 << piece.source;
        if partial.sources & source == 0 {
            partial.sources |= source;
            partial.detectors_told += u32::from(source_detectors);
            partial.pieces_told += usize::from(piece.fragment.of);
        }
        partial.pieces.push(piece);
        let complete =
            partial.detectors_told == self.detectors && partial.pieces.len() == partial.pieces_told;
        Ok(if complete {
            self.partials.remove(&number)
        } else {
            None
        })
    }

    /// Takes the memory of an event that is done with; its messages are dropped.
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
        let over = self.partials.extract_if(|_, partial| is_over(partial));
        over.map(|(_, partial)| partial).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.partials.len()
    }
}

/// The fragment is there already.
#[derive(Debug)]
pub(crate) struct Duplicate;
