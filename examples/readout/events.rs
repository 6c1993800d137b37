//! The events that a source has taken from its detectors and that no builder has answered for.

use std::collections::HashMap;

use fabricast::buffer::RingFragment;

use crate::detector::Filled;

/// One fragment of an event.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) detector: u16,
    pub(crate) len: usize,
    pub(crate) committed: u64,
    pub(crate) crc: u32,
    /// The memory: not here while it is in flight, and gone once it is not needed any more.
    pub(crate) fragment: Option<RingFragment>,
}

impl Part {
    pub(crate) fn new(detector: u16, filled: Filled) -> Self {
        Self {
            detector,
            len: filled.fragment.len(),
            committed: filled.committed,
            crc: filled.crc,
            fragment: Some(filled.fragment),
        }
    }
}

/// One event. Its place in the table is used again, and so is the memory of `parts`.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) number: u64,
    /// Whose it is: an index.
    pub(crate) builder: usize,
    /// It was another builder's before.
    pub(crate) reassigned: bool,
    pub(crate) parts: Vec<Part>,
    /// How many parts this builder's connection has taken.
    pub(crate) sent: usize,
    pub(crate) in_flight: usize,
    /// The builder has answered for it.
    pub(crate) answered: bool,
}

/// All of them, by place and by number. Allocates nothing once it is made.
pub(crate) struct Events {
    places: Vec<Event>,
    free: Vec<u32>,
    by_number: HashMap<u64, u32>,
}

impl Events {
    pub(crate) fn new(capacity: u32, parts: usize) -> Self {
        let event = |_| Event {
            parts: Vec::with_capacity(parts),
            ..Event::default()
        };
        Self {
            places: (0..capacity).map(event).collect(),
            free: (0..capacity).rev().collect(),
            // Twice the room: a table that is nearly full grows when entries come and go.
            by_number: HashMap::with_capacity(2 * capacity as usize),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// The place that the next event will get; `None`: as many are out as there may be.
    pub(crate) fn vacant(&mut self) -> Option<&mut Event> {
        let place = *self.free.last()?;
        Some(&mut self.places[place as usize])
    }

    /// Takes the place that [`vacant`](Self::vacant) named, whose parts are filled in.
    pub(crate) fn occupy(&mut self, number: u64, builder: usize) -> u32 {
        let place = self.free.pop().expect("`vacant` found a place");
        let event = &mut self.places[place as usize];
        event.number = number;
        event.builder = builder;
        event.reassigned = false;
        event.answered = false;
        event.sent = 0;
        event.in_flight = 0;
        self.by_number.insert(number, place);
        place
    }

    pub(crate) fn at(&mut self, place: u32) -> &mut Event {
        &mut self.places[place as usize]
    }

    /// The place of an event that is out.
    pub(crate) fn find(&self, number: u64) -> Option<u32> {
        self.by_number.get(&number).copied()
    }

    /// Gives a place free, with all fragments that are still there.
    pub(crate) fn vacate(&mut self, place: u32) {
        let event = &mut self.places[place as usize];
        event.parts.clear();
        self.by_number.remove(&event.number);
        self.free.push(place);
    }

    /// The events of one builder, oldest first.
    pub(crate) fn of_builder(&self, builder: usize) -> Vec<u32> {
        let mut places: Vec<_> = self.by_number.values().copied().collect();
        places.retain(|place| self.places[*place as usize].builder == builder);
        places.sort_by_key(|place| self.places[*place as usize].number);
        places
    }

    /// The oldest event that is out.
    pub(crate) fn oldest(&self) -> Option<&Event> {
        let (_, place) = self.by_number.iter().min()?;
        Some(&self.places[*place as usize])
    }
}
