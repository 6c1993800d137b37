//! `ReceiverByHand`: a receiver without threads, for tests that drive it turn by turn.

use super::writing::{self, WriteDone, WriteJob};
use super::*;
use crate::stream::network::StreamSide;
use crate::stream::rehearsal::HeldWorkers;

/// A receiver whose turns are taken, and whose blocks are written, when the test says so.
pub(in crate::stream) struct ReceiverByHand {
    /// For what an application asks of it.
    pub(in crate::stream) handle: StreamReceiver,
    thread: NetworkThread<ReceiverSide>,
    /// For blocks, and for what takes long.
    writers: Vec<HeldWorkers<WriteJob, WriteDone>>,
}

/// Threads for what takes long.
const LONG_THREADS: u32 = 2;

impl ReceiverByHand {
    pub(in crate::stream) fn open(place: (Interface, PeerAddr), config: ReceiverConfig) -> Self {
        let mut writers = Vec::new();
        let employ = |with: WritersSettings| {
            let (workers, queues) = Writers::by_hand(with.bounds);
            for (queue, threads) in queues.into_iter().zip([with.threads, LONG_THREADS]) {
                let (done, clock) = (with.done.clone(), with.clock.clone());
                writers.push(HeldWorkers::new(
                    threads,
                    (queue, done),
                    clock,
                    writing::run,
                ));
            }
            Ok(workers)
        };
        let (handle, thread) =
            StreamReceiver::prepare(&[place], config, employ).expect("a receiver");
        Self {
            handle,
            thread,
            writers,
        }
    }

    /// Whether it did something.
    pub(in crate::stream) fn turn(&mut self) -> bool {
        self.thread.turn_all()
    }

    /// When it takes its next turn, whatever happens.
    pub(in crate::stream) fn due(&self) -> Instant {
        self.thread.due()
    }

    /// What its writers do now; each job takes as long as is said of it. Whether one was done.
    pub(in crate::stream) fn write(&mut self, takes: &mut dyn FnMut() -> Duration) -> bool {
        let mut any = false;
        for workers in &mut self.writers {
            any |= workers.work(|_| takes());
        }
        any
    }

    /// What hangs hangs no more.
    pub(in crate::stream) fn let_go(&mut self) {
        self.writers.iter_mut().for_each(HeldWorkers::let_go);
    }

    pub(in crate::stream) fn next_written(&self) -> Option<Instant> {
        let crews = self.writers.iter();
        crews.filter_map(HeldWorkers::next_done).min()
    }

    /// Connections that it has, and streams that are not over.
    pub(in crate::stream) fn busy(&self) -> usize {
        self.thread.connections() + self.thread.side().under_way()
    }

    pub(in crate::stream) fn describe(&self) -> String {
        self.thread.side().describe()
    }

    /// Tells it to stop at once, and ends it as its thread does: what is written goes on being
    /// written. None: it would not have stopped.
    pub(in crate::stream) fn end(mut self) -> Option<StreamReceiver> {
        self.handle.thread.cut();
        self.turn();
        let stops = self.thread.has_stopped();
        self.writers.iter_mut().for_each(HeldWorkers::finish);
        self.thread.end_now();
        stops.then_some(self.handle)
    }
}
