//! `HeldWorkers`: the threads that read or write, played by the test: each job takes its time by
//! the held clock.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::clock::Clock;

/// So many threads, none of which is one.
pub(in crate::stream) struct HeldWorkers<J, D> {
    threads: usize,
    queue: Receiver<J>,
    done: SyncSender<D>,
    clock: Clock,
    run: fn(J, &Clock) -> D,
    /// What is being done, and when it will be.
    under_way: Vec<(Instant, J)>,
}

impl<J, D> HeldWorkers<J, D> {
    pub(in crate::stream) fn new(
        threads: u32,
        (queue, done): (Receiver<J>, SyncSender<D>),
        clock: Clock,
        run: fn(J, &Clock) -> D,
    ) -> Self {
        Self {
            threads: threads as usize,
            queue,
            done,
            clock,
            run,
            under_way: Vec::new(),
        }
    }

    /// Takes jobs while threads are free, and does what is due. Whether something was.
    pub(in crate::stream) fn work(&mut self, mut takes: impl FnMut(&J) -> Duration) -> bool {
        let now = self.clock.now();
        while self.under_way.len() < self.threads
            && let Ok(job) = self.queue.try_recv()
        {
            let until = now + takes(&job);
            self.under_way.push((until, job));
        }
        let mut any = false;
        while let Some(at) = self.under_way.iter().position(|(until, _)| *until <= now) {
            let (_, job) = self.under_way.remove(at);
            self.do_it(job);
            any = true;
        }
        any
    }

    fn do_it(&self, job: J) {
        // There is room for each job that may be under way.
        let told = self.done.try_send((self.run)(job, &self.clock));
        assert!(
            told.is_ok() || self.is_deaf(),
            "the queue of what was done is full"
        );
    }

    /// Nobody listens any more: the side has ended.
    fn is_deaf(&self) -> bool {
        self.queue.is_empty() && self.under_way.is_empty()
    }

    /// What hangs hangs no more.
    pub(in crate::stream) fn let_go(&mut self) {
        let now = self.clock.now();
        self.under_way
            .iter_mut()
            .for_each(|(until, _)| *until = now);
    }

    /// When the next job is done.
    pub(in crate::stream) fn next_done(&self) -> Option<Instant> {
        self.under_way.iter().map(|(until, _)| *until).min()
    }

    /// Every job that was given, now.
    pub(in crate::stream) fn finish(&mut self) {
        for (_, job) in std::mem::take(&mut self.under_way) {
            self.do_it(job);
        }
        while let Ok(job) = self.queue.try_recv() {
            self.do_it(job);
        }
    }
}
