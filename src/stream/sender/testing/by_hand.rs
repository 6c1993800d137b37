//! `SenderByHand`: a sender without threads, for tests that drive it turn by turn.

use super::reading::{self, ReadDone, ReadJob, ReadersSettings};
use super::*;
use crate::stream::network::StreamSide;
use crate::stream::rehearsal::HeldWorkers;

/// A sender whose turns are taken, and whose blocks are read, when the test says so.
pub(in crate::stream) struct SenderByHand {
    /// For what an application asks of it.
    pub(in crate::stream) handle: StreamSender,
    thread: NetworkThread<SenderSide>,
    readers: HeldWorkers<ReadJob, ReadDone>,
}

impl SenderByHand {
    pub(in crate::stream) fn open(interface: Interface, config: SenderConfig) -> Self {
        let mut readers = None;
        let employ = |with: ReadersSettings| {
            let (workers, queue) = Workers::by_hand(with.bound);
            let run = reading::run;
            readers = Some(HeldWorkers::new(
                with.threads,
                (queue, with.done),
                with.clock,
                run,
            ));
            Ok(workers)
        };
        let (handle, thread) =
            StreamSender::prepare(vec![interface], config, employ).expect("a sender");
        Self {
            handle,
            thread,
            readers: readers.expect("they were employed"),
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

    /// What its readers do now; each job takes as long as is said of it. Whether one was done.
    pub(in crate::stream) fn read(&mut self, takes: &mut dyn FnMut() -> Duration) -> bool {
        self.readers.work(|_| takes())
    }

    /// What hangs hangs no more.
    pub(in crate::stream) fn let_go(&mut self) {
        self.readers.let_go();
    }

    pub(in crate::stream) fn next_read(&self) -> Option<Instant> {
        self.readers.next_done()
    }

    /// Connections that it has.
    pub(in crate::stream) fn busy(&self) -> usize {
        self.thread.connections()
    }

    pub(in crate::stream) fn describe(&self) -> String {
        self.thread.side().describe()
    }

    /// Tells it to stop at once, and ends it as its thread does: what is read goes on being read.
    /// None: it would not have stopped.
    pub(in crate::stream) fn end(mut self) -> Option<StreamSender> {
        self.handle.thread.cut();
        self.turn();
        let stops = self.thread.has_stopped();
        self.readers.finish();
        self.thread.end_now();
        stops.then_some(self.handle)
    }
}
