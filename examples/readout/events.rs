//! The events that a source has taken from its detectors and that no builder has answered for.

use fabricast::buffer::RingFragment;

use crate::intake::Filled;

/// One event. Its place in the window is used again, and so is the memory of `parts`.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) number: u64,
    /// Whose it is: an index.
    pub(crate) builder: usize,
    /// How many parts this builder's connection has taken.
    pub(crate) sent: usize,
    pub(crate) in_flight: usize,
    pub(crate) parts: Vec<Part>,
    /// It was another builder's before.
    pub(crate) reassigned: bool,
    /// The builder has answered for it.
    pub(crate) answered: bool,
    /// It is done with when it is not.
    is_out: bool,
}

/// One fragment of an event.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) committed: u64,
    pub(crate) crc: u32,
    pub(crate) detector: u16,
    /// The memory: not here while it is in flight, and gone once it is not needed any more.
    pub(crate) fragment: Option<RingFragment>,
}

impl Part {
    pub(crate) fn new(detector: u16, filled: Filled) -> Self {
        Self {
            committed: filled.committed,
            crc: filled.crc,
            detector,
            fragment: Some(filled.fragment),
        }
    }
}

/// A window over all events, in their order: a ring of places, from the oldest event that is out to
/// the newest. Numbers rise along it, so no other table is needed to find one. Allocates nothing
/// once it is made.
pub(crate) struct Events {
    places: Box<[Event]>,
    /// Events since the start: the oldest one that is out, and the one after the newest.
    first: u64,
    end: u64,
    out: usize,
}

impl Events {
    /// A window of so many events, a power of two.
    pub(crate) fn new(capacity: u32, parts: usize) -> Self {
        assert!(capacity.is_power_of_two(), "a place is the low bits");
        let event = |_| Event {
            parts: Vec::with_capacity(parts),
            ..Event::default()
        };
        Self {
            places: (0..capacity).map(event).collect(),
            first: 0,
            end: 0,
            out: 0,
        }
    }

    /// Events that there may be at once.
    pub(crate) fn capacity(&self) -> u32 {
        self.places.len() as u32
    }

    pub(crate) fn len(&self) -> usize {
        self.out
    }

    /// The place that the next event will get; `None`: the oldest one is as far behind as may be.
    pub(crate) fn vacant(&mut self) -> Option<&mut Event> {
        let is_full = self.end - self.first == self.places.len() as u64;
        let place = self.place(self.end);
        (!is_full).then(|| &mut self.places[place as usize])
    }

    /// Takes the place that [`vacant`](Self::vacant) named, whose parts are filled in. The number
    /// is above all before.
    pub(crate) fn occupy(&mut self, number: u64, builder: usize) -> u32 {
        let place = self.place(self.end);
        let event = &mut self.places[place as usize];
        event.number = number;
        event.builder = builder;
        event.reassigned = false;
        event.answered = false;
        event.is_out = true;
        event.sent = 0;
        event.in_flight = 0;
        self.end += 1;
        self.out += 1;
        place
    }

    pub(crate) fn at(&mut self, place: u32) -> &mut Event {
        &mut self.places[place as usize]
    }

    /// The place of an event that is out.
    pub(crate) fn find(&self, number: u64) -> Option<u32> {
        let newest = self.end.checked_sub(1).filter(|_| self.out > 0)?;
        let back = self.event(newest).number.checked_sub(number)?;
        // Without a gap in between, the number says where it is.
        let guess = newest.checked_sub(back).filter(|at| *at >= self.first);
        let found = guess.filter(|at| self.event(*at).number == number);
        let at = found.or_else(|| self.search(number))?;
        self.event(at).is_out.then(|| self.place(at))
    }

    fn search(&self, number: u64) -> Option<u64> {
        let (mut low, mut high) = (self.first, self.end);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.event(middle).number < number {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        (low < self.end && self.event(low).number == number).then_some(low)
    }

    /// Gives a place free, with all fragments that are still there.
    pub(crate) fn vacate(&mut self, place: u32) {
        let event = &mut self.places[place as usize];
        event.parts.clear();
        event.is_out = false;
        self.out -= 1;
        while self.first < self.end && !self.event(self.first).is_out {
            self.first += 1;
        }
    }

    /// The events of one builder, oldest first.
    pub(crate) fn of_builder(&self, builder: usize) -> Vec<u32> {
        let is_its = |at: &u64| self.event(*at).is_out && self.event(*at).builder == builder;
        let all = (self.first..self.end).filter(is_its);
        all.map(|at| self.place(at)).collect()
    }

    /// The oldest event that is out.
    pub(crate) fn oldest(&self) -> Option<&Event> {
        (self.out > 0).then(|| self.event(self.first))
    }

    fn event(&self, at: u64) -> &Event {
        &self.places[self.place(at) as usize]
    }

    /// The low bits.
    fn place(&self, at: u64) -> u32 {
        at as u32 & (self.places.len() - 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_whatever_the_gaps_and_wherever_the_window_is() {
        for gap in [1, 2, 5, 1 << 50] {
            let mut events = Events::new(16, 1);
            let number = |nth: u64| 7 + nth * gap + u64::from(nth > 20) * 1000;
            for nth in 0..100 {
                if events.vacant().is_none() {
                    // All but the oldest first: the window moves when that one goes.
                    for old in [nth - 15, nth - 14, nth - 16] {
                        let place = events.find(number(old)).expect("it is out");
                        events.vacate(place);
                        assert_eq!(events.find(number(old)), None, "{old}");
                    }
                    assert_eq!(events.len(), 13);
                }
                assert!(events.vacant().is_some());
                events.occupy(number(nth), (nth % 2) as usize);
                let place = events.find(number(nth)).expect("it is out");
                assert_eq!(events.at(place).number, number(nth));
                assert_eq!(events.find(number(nth) + gap), None);
            }
            let oldest = events.oldest().expect("some are out").number;
            let all = [0, 1].map(|builder| events.of_builder(builder));
            assert_eq!(all[0].len() + all[1].len(), events.len());
            let numbers = |places: &Vec<u32>, events: &mut Events| {
                let number = |place: &u32| events.at(*place).number;
                places.iter().map(number).collect::<Vec<_>>()
            };
            for places in &all {
                let numbers = numbers(places, &mut events);
                assert!(numbers.is_sorted() && numbers[0] >= oldest);
            }
        }
    }
}
