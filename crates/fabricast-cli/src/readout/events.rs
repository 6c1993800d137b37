//! The events that a source has taken from its detectors and that no builder has answered for.

use fabricast::buffer::RingFragment;

use crate::readout::intake::Filled;

/// One event. Its place in the window is used again.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) number: u64,
    /// Whose it is: an index.
    pub(crate) builder: u32,
    /// How many parts it has.
    pub(crate) count: u8,
    /// How many of them this builder's connection has taken.
    pub(crate) sent: u8,
    pub(crate) in_flight: u8,
    /// It was another builder's before.
    pub(crate) reassigned: bool,
    /// The builder has answered for it.
    pub(crate) answered: bool,
    /// It is done with when it is not.
    is_out: bool,
}

/// One fragment of an event.
#[derive(Debug, Default)]
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

/// The place of an event that is being filled in.
pub(crate) struct VacantEvent<'a> {
    event: &'a mut Event,
    parts: &'a mut [Part],
}

impl VacantEvent<'_> {
    #[inline]
    pub(crate) fn push(&mut self, part: Part) {
        self.parts[usize::from(self.event.count)] = part;
        self.event.count += 1;
    }

    /// How many parts it has.
    pub(crate) fn count(&self) -> usize {
        self.event.count.into()
    }
}

/// A window over all events, in their order: a ring of places, from the oldest event that is out to
/// the newest. Numbers rise along it, so no other table is needed to find one. Allocates nothing
/// once it is made.
///
/// All of it is written once a round, so it is small: events of a few words, and their parts side
/// by side.
pub(crate) struct Events {
    places: Box<[Event]>,
    /// So many of each place.
    parts: Box<[Part]>,
    parts_max: usize,
    /// Events since the start: the oldest one that is out, and the one after the newest.
    first: u64,
    end: u64,
    out: usize,
}

impl Events {
    /// A window of so many events, a power of two.
    pub(crate) fn new(capacity: u32, parts_max: usize) -> Self {
        assert!(capacity.is_power_of_two(), "a place is the low bits");
        let parts = capacity as usize * parts_max;
        Self {
            places: (0..capacity).map(|_| Event::default()).collect(),
            parts: (0..parts).map(|_| Part::default()).collect(),
            parts_max,
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
    #[inline]
    pub(crate) fn vacant(&mut self) -> Option<VacantEvent<'_>> {
        let is_full = self.end - self.first == self.places.len() as u64;
        let place = self.place(self.end);
        let (event, parts) = self.with_parts_max(place);
        (!is_full).then_some(VacantEvent { event, parts })
    }

    /// Takes the place that [`vacant`](Self::vacant) named, whose parts are filled in. The number
    /// is above all before.
    #[inline]
    pub(crate) fn occupy(&mut self, number: u64, builder: usize) -> u32 {
        let place = self.place(self.end);
        let event = &mut self.places[place as usize];
        *event = Event {
            number,
            builder: builder as u32,
            count: event.count,
            is_out: true,
            ..Event::default()
        };
        self.end += 1;
        self.out += 1;
        place
    }

    pub(crate) fn at(&mut self, place: u32) -> &mut Event {
        &mut self.places[place as usize]
    }

    /// An event, and its parts.
    #[inline]
    pub(crate) fn with_parts(&mut self, place: u32) -> (&mut Event, &mut [Part]) {
        let (event, parts) = self.with_parts_max(place);
        let count = event.count.into();
        (event, &mut parts[..count])
    }

    #[inline]
    fn with_parts_max(&mut self, place: u32) -> (&mut Event, &mut [Part]) {
        let first = place as usize * self.parts_max;
        let parts = &mut self.parts[first..first + self.parts_max];
        (&mut self.places[place as usize], parts)
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
        let (event, parts) = self.with_parts(place);
        parts.iter_mut().for_each(|part| part.fragment = None);
        (event.count, event.is_out) = (0, false);
        self.out -= 1;
        while self.first < self.end && !self.event(self.first).is_out {
            self.first += 1;
        }
    }

    /// The events of one builder, oldest first.
    pub(crate) fn of_builder(&self, builder: usize) -> Vec<u32> {
        let builder = builder as u32;
        let is_its = |at: &u64| self.event(*at).is_out && self.event(*at).builder == builder;
        let all = (self.first..self.end).filter(is_its);
        all.map(|at| self.place(at)).collect()
    }

    /// The oldest event that is out, and its parts.
    pub(crate) fn oldest(&self) -> Option<(&Event, &[Part])> {
        let event = self.event(self.first);
        let first = self.place(self.first) as usize * self.parts_max;
        let parts = &self.parts[first..first + usize::from(event.count)];
        (self.out > 0).then_some((event, parts))
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
            let oldest = events.oldest().expect("some are out").0.number;
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
