//! `Reorder`: messages of one connection, in the order in which they were sent (RDM form).
//!
//! Providers match messages with receives in order and yet report them in another: a long message
//! is fetched while the short ones behind it are there already. So each carries its number, and
//! those that are early wait.

use std::collections::VecDeque;

/// Early messages, at most a window of them.
#[derive(Debug)]
pub(crate) struct Reorder<T> {
    /// The number of the message that is due, modulo 2^32.
    next: u32,
    /// Those from `next` on that are here.
    early: VecDeque<Option<T>>,
    window: u32,
}

/// A message whose number no honest peer would give it: it was here before, or is beyond what was
/// granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfWindow;

impl<T> Reorder<T> {
    /// From message 0 on; the peer never has more than `window` messages on the way.
    pub(crate) fn new(window: u32) -> Self {
        Self {
            next: 0,
            early: VecDeque::new(),
            window,
        }
    }

    /// Takes a message in.
    pub(crate) fn put(&mut self, number: u32, message: T) -> Result<(), OutOfWindow> {
        self.put_ahead(number.wrapping_sub(self.next), message)
    }

    /// Takes a message in of whose number only these low bits are known: modulo a power of two that
    /// is at least twice the window.
    pub(crate) fn put_modulo(
        &mut self,
        number: u32,
        modulus: u32,
        message: T,
    ) -> Result<(), OutOfWindow> {
        debug_assert!(modulus.is_power_of_two() && self.window <= modulus / 2);
        self.put_ahead(number.wrapping_sub(self.next) % modulus, message)
    }

    fn put_ahead(&mut self, ahead: u32, message: T) -> Result<(), OutOfWindow> {
        if ahead >= self.window {
            return Err(OutOfWindow);
        }
        let ahead = ahead as usize;
        while self.early.len() <= ahead {
            self.early.push_back(None);
        }
        let place = &mut self.early[ahead];
        if place.is_some() {
            return Err(OutOfWindow);
        }
        *place = Some(message);
        Ok(())
    }

    /// The number of the message that is due.
    pub(crate) fn due(&self) -> u32 {
        self.next
    }

    /// Whether so many messages may have been sent.
    pub(crate) fn may_be(&self, sent: u32) -> bool {
        sent.wrapping_sub(self.next) <= self.window
    }

    /// Whether messages behind the one that is due are here.
    pub(crate) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// The message that is due, if it is here.
    pub(crate) fn take_next(&mut self) -> Option<T> {
        let message = self.early.front_mut()?.take()?;
        self.early.pop_front();
        self.next = self.next.wrapping_add(1);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<T>(reorder: &mut Reorder<T>) -> Vec<T> {
        std::iter::from_fn(|| reorder.take_next()).collect()
    }

    #[test]
    fn early_messages_wait_for_the_one_that_is_due() {
        let mut reorder = Reorder::new(4);
        reorder.put(2, 'c').unwrap();
        reorder.put(1, 'b').unwrap();
        assert_eq!(all(&mut reorder), []);
        reorder.put(0, 'a').unwrap();
        assert_eq!(all(&mut reorder), ['a', 'b', 'c']);
        reorder.put(3, 'd').unwrap();
        assert_eq!(all(&mut reorder), ['d']);
    }

    #[test]
    fn numbers_twice_behind_or_beyond_the_window_are_not_taken() {
        let mut reorder = Reorder::new(2);
        reorder.put(1, ()).unwrap();
        assert_eq!(reorder.put(1, ()), Err(OutOfWindow));
        assert_eq!(reorder.put(2, ()), Err(OutOfWindow));
        assert_eq!(reorder.put(u32::MAX, ()), Err(OutOfWindow));
        reorder.put(0, ()).unwrap();
        assert_eq!(all(&mut reorder).len(), 2);
        assert_eq!(reorder.put(0, ()), Err(OutOfWindow));
        assert_eq!(reorder.put(3, ()), Ok(()));
    }

    #[test]
    fn any_order_within_the_window_comes_out_sorted_and_numbers_wrap() {
        use proptest::prelude::*;
        proptest!(|(swaps in proptest::collection::vec(0usize..8, 200))| {
            let mut numbers: Vec<u32> = (0..200).collect();
            for (i, ahead) in swaps.iter().enumerate() {
                // No message is more than the window ahead of the first that is missing.
                let other = (i / 8 * 8 + ahead).min(199);
                numbers.swap(i, other);
            }
            let begin = u32::MAX - 100;
            let new = || Reorder { next: begin, early: VecDeque::new(), window: 8 };
            let (mut reorder, mut short) = (new(), new());
            let (mut out, mut out_short) = (Vec::new(), Vec::new());
            for number in numbers {
                let on_wire = begin.wrapping_add(number);
                reorder.put(on_wire, number).unwrap();
                out.extend(all(&mut reorder));
                // The same with the low bits only: 200 messages wrap 16 numbers many times.
                short.put_modulo(on_wire % 16, 16, number).unwrap();
                prop_assert_eq!(short.put_modulo(on_wire % 16, 16, number), Err(OutOfWindow));
                out_short.extend(all(&mut short));
            }
            prop_assert_eq!(&out, &(0..200).collect::<Vec<_>>());
            prop_assert_eq!(out, out_short);
        });
    }
}
