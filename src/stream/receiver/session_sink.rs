//! `SessionSink`: the sink of one session, and the jobs that it was given.

use std::sync::Arc;

use super::events::Arrival;
use super::side::{ReceiverTools, RemotePeer};
use super::writing::{ArrivedBlock, ArrivedPack, ArrivedZeros, BlockBytes, WriteJob, WriteWork};
use crate::buffer::BufferMut;
use crate::endpoint::Message as Arrived;
use crate::stream::incoming::IncomingStream;
use crate::stream::pack::PackedBlock;
use crate::stream::sink::{BlockSink, SinkError, SinkFactory, Stop, StreamOffer};
use crate::stream::wire::OpenFlags;
use crate::stream::workers::{Guarded, guarded};
use crate::stream::{Block, RefusalCode};

/// What a session has of its sink.
pub(super) struct SessionSink {
    session: u64,
    sink: Option<Guarded<dyn BlockSink>>,
    offer: Option<StreamOffer>,
    /// Memory that the sender is to write into, until the sink is open.
    memory: Vec<BufferMut>,
    /// Jobs that the sink was given and has not done.
    jobs: usize,
    stop: Stop,
}

impl SessionSink {
    pub(super) fn new(session: u64) -> Self {
        Self {
            session,
            sink: None,
            offer: None,
            memory: Vec::new(),
            jobs: 0,
            stop: Stop::default(),
        }
    }

    /// Memory that the sender is to write into.
    pub(super) fn set_memory(&mut self, memory: Vec<BufferMut>) {
        self.memory = memory;
    }

    /// Makes the sink of a stream whose manifest is whole, and asks it what it has.
    ///
    /// # Errors
    /// What the factory answers.
    pub(super) fn open(
        &mut self,
        incoming: &IncomingStream,
        tools: &ReceiverTools,
    ) -> Result<(), SinkError> {
        let offer = offer_of(incoming);
        let made = guarded(|| SinkFactory::make(&*tools.config.sink, &offer));
        let sink = made.unwrap_or_else(|text| Err(SinkError::Other(text)))?;
        self.sink = Some(Guarded::new(sink.into()));
        self.offer = Some(offer.clone());
        let memory = std::mem::take(&mut self.memory);
        self.give(WriteWork::Open(offer, self.stop.clone(), memory), tools);
        Ok(())
    }

    /// Gives a block to the sink, which was taken in by `incoming`.
    pub(super) fn write(
        &mut self,
        incoming: &IncomingStream,
        (block, crc): (Block, u32),
        bytes: BlockBytes,
        tools: &ReceiverTools,
    ) {
        let flags = incoming.open().flags;
        let hashed = flags.contains(OpenFlags::BLAKE3);
        let arrived = ArrivedBlock {
            block,
            crc: flags.contains(OpenFlags::CRC32C).then_some(crc),
            hashed: hashed.then(|| Arc::clone(incoming.plan())),
            bytes,
        };
        self.give(WriteWork::Write(arrived), tools);
    }

    /// Gives the blocks of a pack to the sink, which were taken in by `incoming`; their bytes begin
    /// at `bytes_at` of the message.
    pub(super) fn write_all(
        &mut self,
        incoming: &IncomingStream,
        blocks: Vec<PackedBlock>,
        (message, bytes_at): (Arrived, usize),
        tools: &ReceiverTools,
    ) {
        let flags = incoming.open().flags;
        let hashed = flags.contains(OpenFlags::BLAKE3);
        let pack = ArrivedPack {
            blocks,
            has_crc: flags.contains(OpenFlags::CRC32C),
            hashed: hashed.then(|| Arc::clone(incoming.plan())),
            message,
            bytes_at,
        };
        self.give(WriteWork::WriteAll(pack), tools);
    }

    /// Has the sink write blocks that are zeros, which were taken in by `incoming`. The message
    /// keeps its buffer until then, as one with bytes does: there are no more such jobs than
    /// buffers.
    pub(super) fn write_zeros(
        &mut self,
        incoming: &IncomingStream,
        blocks: Vec<Block>,
        message: Arrived,
        tools: &ReceiverTools,
    ) {
        let flags = incoming.open().flags;
        let hashed = flags.contains(OpenFlags::BLAKE3);
        let zeros = ArrivedZeros {
            blocks,
            has_crc: flags.contains(OpenFlags::CRC32C),
            hashed: hashed.then(|| Arc::clone(incoming.plan())),
            _message: message,
        };
        self.give(WriteWork::WriteZeros(zeros), tools);
    }

    /// Has the sink keep blocks that lie in files of the same names.
    pub(super) fn keep(&mut self, blocks: Vec<(Block, u32)>, tools: &ReceiverTools) {
        self.give(WriteWork::Keep(blocks), tools);
    }

    /// All blocks are written.
    pub(super) fn finish(&mut self, tools: &ReceiverTools) {
        self.give(WriteWork::Finish(self.stop.clone()), tools);
    }

    /// The stream is given up.
    pub(super) fn abandon(&mut self, tools: &ReceiverTools) {
        self.give(WriteWork::Abandon, tools);
    }

    fn give(&mut self, what: WriteWork, tools: &ReceiverTools) {
        if let Some(sink) = &self.sink {
            self.jobs += 1;
            tools.give(WriteJob {
                session: self.session,
                sink: sink.clone(),
                what,
            });
        }
    }

    /// A job is done.
    pub(super) fn on_done(&mut self) {
        self.jobs -= 1;
    }

    /// Jobs that are not done.
    pub(super) fn jobs(&self) -> usize {
        self.jobs
    }

    pub(super) fn is_idle(&self) -> bool {
        self.jobs == 0
    }

    /// Tells the sink to give up what it is doing.
    pub(super) fn stop(&self) {
        self.stop.set();
    }

    pub(super) fn get(&self) -> Option<&dyn BlockSink> {
        self.sink.as_deref()
    }

    /// The sink is done with.
    pub(super) fn close(&mut self) {
        self.sink = None;
    }

    /// What the stream is, once it was offered to a sink.
    pub(super) fn offer(&self) -> Option<&StreamOffer> {
        self.offer.as_ref()
    }

    /// The stream, as the application is told of it.
    pub(super) fn arrival(&self, peer: RemotePeer) -> Arrival {
        let offer = self.offer.as_ref();
        Arrival {
            session: self.session,
            peer,
            identity: offer.map(|offer| offer.identity).unwrap_or_default(),
            entries: offer.map_or(0, |offer| offer.manifest.len() as u64),
            bytes: offer.map_or(0, |offer| offer.manifest.bytes()),
            manifest: offer.map(|offer| Arc::clone(&offer.manifest)),
        }
    }

    /// Tells the sink at once that the stream is given up: no thread is left that would.
    pub(super) fn abandon_now(&self) {
        if let Some(sink) = &self.sink
            && let Err(text) = guarded(|| sink.abandon())
        {
            tracing::warn!(%text, "a sink panicked");
        }
    }
}

/// What a sink is offered of a stream whose manifest is whole.
fn offer_of(incoming: &IncomingStream) -> StreamOffer {
    let open = *incoming.open();
    let has = |flag| open.flags.contains(flag);
    // What is not read is neither hashed nor read back, whatever a peer asks for.
    let reads_all = has(OpenFlags::BLAKE3) || has(OpenFlags::READ_BACK);
    let may_skip = has(OpenFlags::CRC32C) && !reads_all;
    StreamOffer {
        identity: open.identity,
        manifest: Arc::clone(incoming.manifest()),
        plan: Arc::clone(incoming.plan()),
        crc32c: has(OpenFlags::CRC32C),
        blake3: has(OpenFlags::BLAKE3),
        sync: has(OpenFlags::SYNC),
        read_back: has(OpenFlags::READ_BACK),
        restart: has(OpenFlags::RESTART),
        skip_unchanged: has(OpenFlags::SKIP_UNCHANGED) && may_skip,
        compare_content: has(OpenFlags::SKIP_UNCHANGED | OpenFlags::COMPARE) && may_skip,
        delete: has(OpenFlags::DELETE),
    }
}

/// What a sender is told of a sink's error.
pub(super) fn reason_of(error: &SinkError) -> (RefusalCode, String) {
    let cause = match error {
        SinkError::Placed { error, .. } | SinkError::Delete { error, .. } => error,
        error => error,
    };
    let code = match cause {
        SinkError::SourceChanged => RefusalCode::SOURCE_CHANGED,
        SinkError::Busy => RefusalCode::ALREADY,
        SinkError::TooLarge { .. } => RefusalCode::SPACE,
        SinkError::Os { errno, .. } if [libc::ENOSPC, libc::EDQUOT].contains(errno) => {
            RefusalCode::SPACE
        }
        SinkError::Stopped => RefusalCode::CLOSING,
        _ => RefusalCode::SINK,
    };
    (code, error.to_string())
}
