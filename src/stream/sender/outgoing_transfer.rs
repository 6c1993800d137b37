//! `OutgoingTransfer`: one transfer, on the network thread: what is to be read next, and its peers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::{SendOptions, SlowPeer};
use super::peer::{PeerContext, TransferPeer};
use super::peer_blocks::{Ready, ReadyBlock, ReadyPack};
use super::reading::{ReadDone, ReadJob, ReadOutcome, ReadWork, SumsWanted};
use super::side::{NewTransfer, Route, SenderTools};
use super::transfer::OutcomeGuard;
use crate::buffer::SharedBufferManager;
use crate::endpoint::{ReceiveEvent, SendErrorKind};
use crate::stream::block_set::BlockSet;
use crate::stream::content_hash::{BlockHash, ContentHash};
use crate::stream::meter::StreamMeter;
use crate::stream::pack::PackBuilder;
use crate::stream::rate::RateLimit;
use crate::stream::sums::BlockSums;
use crate::stream::wire::{Open, OpenFlags, ZEROS_BLOCKS_MAX};
use crate::stream::workers::Guarded;
use crate::stream::{
    Block, BlockPlan, BlockSource, RefusalCode, SourceError, StreamError, StreamIdentity,
};

/// How long the first peer that is ready waits for what the others say of the size of blocks, and
/// for their being ready.
const PLAN_WAIT: Duration = Duration::from_millis(500);

/// Bytes of zeros that a receiver is told of at once, at most: its sink deals with each of their
/// blocks, and says nothing meanwhile.
const ZEROS_BYTES_MAX: u64 = 128 << 20;

/// The only stream of a session: each transfer makes a session of its own with each peer.
const STREAM: u32 = 1;

/// What the peers of a transfer share.
pub(super) struct TransferState {
    pub(super) id: u64,
    pub(super) source: Guarded<dyn BlockSource>,
    pub(super) options: SendOptions,
    pub(super) shared: OutcomeGuard,
    /// None: no peer has said yet how long its blocks may be.
    pub(super) plan: Option<TransferPlan>,
    /// Where it was asked for, and there is a plan.
    content: Option<ReadContent>,
    pub(super) rate: RateLimit,
    pub(super) paused: bool,
    /// Since when reads are under way, of whichever transfer, and none has come back.
    pub(super) reads_since: Option<Instant>,
    /// Everything that was read is of the same state of the source.
    pub(super) checked: bool,
}

/// How the source is cut, and what that is called.
#[derive(Debug, Clone)]
pub(super) struct TransferPlan {
    pub(super) blocks: Arc<BlockPlan>,
    pub(super) identity: StreamIdentity,
    /// How many of the entries are symbolic links.
    pub(super) links: usize,
    /// Whether there are files with holes.
    pub(super) sparse: bool,
}

/// The hash of what was read, whichever peer it was read for.
struct ReadContent {
    hash: ContentHash,
    hashed: BlockSet,
}

impl ReadContent {
    fn new(plan: &BlockPlan, entries: usize) -> Self {
        Self {
            hash: ContentHash::new(plan, entries),
            hashed: BlockSet::new(plan.blocks()),
        }
    }

    fn add(&mut self, block: &Block, hash: BlockHash) {
        if self.hashed.insert(block.index) {
            self.hash.add(block, hash);
        }
    }
}

impl TransferState {
    /// What a peer is told first: how the source is cut, and what is asked of it.
    pub(super) fn open(&self, plan: &TransferPlan, by_write: bool, restart: bool) -> Open {
        let options = &self.options;
        let mut flags = OpenFlags::empty();
        flags.set(OpenFlags::CRC32C, options.crc32c);
        flags.set(OpenFlags::BLAKE3, options.blake3);
        flags.set(OpenFlags::BY_WRITE, by_write);
        flags.set(OpenFlags::SYNC, options.sync);
        flags.set(OpenFlags::READ_BACK, options.read_back);
        flags.set(OpenFlags::RESTART, restart);
        let manifest = self.source.manifest();
        flags.set(OpenFlags::ATTRIBUTES, manifest.has_attributes());
        Open {
            stream: STREAM,
            flags,
            block_bytes: plan.blocks.block_bytes(),
            entries: manifest.len() as u64,
            manifest_bytes: manifest.encoded_len(),
            bytes: manifest.bytes(),
            blocks: plan.blocks.blocks(),
            // A manifest has no more than `ATTRIBUTE_BYTES_MAX`.
            attribute_bytes: manifest.encoded_attributes().len() as u32,
            identity: plan.identity,
        }
    }

    /// BLAKE3 of the content, if it was asked for, and all of it was read.
    pub(super) fn blake3(&self) -> Option<[u8; 32]> {
        self.content.as_ref()?.hash.finish()
    }
}

pub(super) struct OutgoingTransfer {
    transfer: TransferState,
    peers: Vec<TransferPeer>,
    /// Where the search for the next block begins.
    cursor: u64,
    /// Reads that are under way.
    reading: usize,
    checking: bool,
    plan_by: Option<Instant>,
    /// Nothing is read before all are ready, or this.
    begin_by: Option<Instant>,
    deadline: Option<Instant>,
}

impl OutgoingTransfer {
    pub(super) fn new(begin: NewTransfer, tools: &mut SenderTools) -> Self {
        let NewTransfer {
            id,
            source,
            peers,
            options,
            shared,
        } = begin;
        let peers = peers.into_iter().enumerate();
        let peers = peers.map(|(number, peer)| {
            let meter = StreamMeter::begin(tools.watched.share());
            TransferPeer::new(peer, number, options.timeline, tools.now(), meter)
        });
        let mut this = Self {
            peers: peers.collect(),
            cursor: 0,
            reading: 0,
            checking: false,
            plan_by: None,
            begin_by: None,
            // One beyond what the clock can tell never comes.
            deadline: options
                .deadline
                .and_then(|time| tools.now().checked_add(time)),
            transfer: TransferState {
                id,
                source,
                rate: RateLimit::new(options.rate, tools.now()),
                options,
                shared,
                plan: None,
                content: None,
                paused: false,
                reads_since: None,
                checked: false,
            },
        };
        this.each_peer(tools, TransferPeer::connect);
        this
    }

    fn each_peer(
        &mut self,
        tools: &mut SenderTools,
        mut act: impl FnMut(&mut TransferPeer, &mut PeerContext<'_>),
    ) {
        let transfer = &mut self.transfer;
        let mut with = PeerContext { transfer, tools };
        for peer in &mut self.peers {
            act(peer, &mut with);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.peers.iter().all(TransferPeer::is_over)
    }

    // ---- control --------------------------------------------------------------------------------

    pub(super) fn priority(&self) -> u8 {
        self.transfer.options.priority
    }

    pub(super) fn set_priority(&mut self, priority: u8) {
        self.transfer.options.priority = priority;
    }

    pub(super) fn set_rate(&mut self, rate: Option<u64>, now: Instant) {
        self.transfer.rate = RateLimit::new(rate, now);
    }

    pub(super) fn pause(&mut self, on: bool, tools: &mut SenderTools) {
        if std::mem::replace(&mut self.transfer.paused, on) != on {
            for peer in &mut self.peers {
                peer.tell_paused(on, tools.now());
            }
        }
    }

    pub(super) fn cancel(&mut self, tools: &mut SenderTools) {
        let error = StreamError::GivenUp {
            code: RefusalCode::CANCELLED,
            reason: String::new(),
        };
        self.fail_all(&error, tools);
    }

    /// Every peer that is not done is told, and left.
    pub(super) fn fail_all(&mut self, error: &StreamError, tools: &mut SenderTools) {
        self.each_peer(tools, |peer, with| peer.give_up(error.clone(), with));
    }

    /// Code of the user's panicked somewhere here: nothing of this is asked any more, not even the
    /// source.
    pub(super) fn break_off(&mut self, error: &StreamError, tools: &mut SenderTools) {
        for peer in &mut self.peers {
            peer.break_off(tools);
        }
        self.transfer.shared.end_all(error);
    }

    // ---- what happens ---------------------------------------------------------------------------

    /// A block that had been given to a rail is not on its way.
    pub(super) fn on_refused(&mut self, route: Route, kind: &SendErrorKind) {
        if let Some(peer) = self.peers.get_mut(route.peer) {
            peer.on_unsent(route.rail, kind);
        }
    }

    pub(super) fn on_event(&mut self, route: Route, event: ReceiveEvent, tools: &mut SenderTools) {
        if let Some(peer) = self.peers.get_mut(route.peer) {
            let transfer = &mut self.transfer;
            peer.on_event(route.rail, event, &mut PeerContext { transfer, tools });
        }
    }

    pub(super) fn on_time(&mut self, tools: &mut SenderTools) {
        if self.deadline.is_some_and(|by| tools.now() >= by) {
            let what = "the deadline of the transfer is over";
            self.fail_all(&StreamError::Deadline { what }, tools);
        }
        self.transfer.reads_since = tools.reads_since;
        self.cut(tools.now(), tools.config.stream.block_bytes);
        self.each_peer(tools, TransferPeer::on_time);
        self.judge_slow(tools);
        if self.begin_by.is_none() && self.peers.iter().any(TransferPeer::is_sending) {
            self.begin_by = Some(tools.now() + PLAN_WAIT);
        }
    }

    /// Decides on the size of blocks: what there are buffers for and each peer takes, once each has
    /// spoken or has had its time.
    fn cut(&mut self, now: Instant, most: u32) {
        if self.transfer.plan.is_some() {
            return;
        }
        let rooms: Vec<u32> = self
            .peers
            .iter()
            .filter_map(TransferPeer::payload_max)
            .collect();
        if rooms.is_empty() {
            return;
        }
        let by = *self.plan_by.get_or_insert(now + PLAN_WAIT);
        let all = self
            .peers
            .iter()
            .all(|peer| peer.payload_max().is_some() || peer.has_failed_once());
        if !all && now < by {
            return;
        }
        let least = rooms.into_iter().min().unwrap_or(most).min(most);
        let source = &*self.transfer.source;
        let hashed = self.transfer.options.blake3;
        let block_bytes = match hashed {
            // Such blocks can be hashed each by itself.
            true => 1 << least.ilog2(),
            false => least,
        };
        let plan = TransferPlan::new(source, block_bytes);
        let content = || ReadContent::new(&plan.blocks, source.manifest().len());
        self.transfer.content = hashed.then(content);
        self.transfer.plan = Some(plan);
    }

    fn judge_slow(&mut self, tools: &mut SenderTools) {
        let several = self.peers.iter().filter(|peer| peer.is_sending()).count() > 1;
        let limit = match self.transfer.options.slow {
            SlowPeer::Wait(time) | SlowPeer::Drop(time) if several => time,
            _ => return,
        };
        self.each_peer(tools, |peer, with| {
            if peer.held_up_for(with.now()) > limit {
                let what = "the peer takes blocks more slowly than the others may wait for";
                peer.give_up(StreamError::Deadline { what }, with);
            }
        });
    }

    // ---- reading --------------------------------------------------------------------------------

    /// Whether a read could be begun now, `free`: if there is a buffer.
    pub(super) fn wants_read(&self, free: bool, slots: usize, now: Instant) -> bool {
        let transfer = &self.transfer;
        if self.checking_is_due() {
            return true;
        }
        let together = self.peers.iter().all(TransferPeer::is_settled);
        let begun = together || self.begin_by.is_some_and(|by| now >= by);
        if transfer.paused || !transfer.rate.may(now) || !free || !begun {
            return false;
        }
        // What is lent takes no buffer: it is bounded here.
        let held = self.peers.iter().map(TransferPeer::held).max().unwrap_or(0);
        held < slots && self.next_block(slots).is_some()
    }

    /// The next block that a peer wants which has room for it.
    fn next_block(&self, slots: usize) -> Option<u64> {
        let sending = self.peers.iter().filter(|peer| peer.is_sending());
        let share = self.share(slots);
        let first = |from: u64| {
            let able = sending.clone().filter(|peer| peer.held() < share);
            able.filter_map(|peer| peer.first_wanted(from)).min()
        };
        first(self.cursor).or_else(|| first(0))
    }

    /// Blocks that one peer may hold: all, where the others wait for it.
    fn share(&self, slots: usize) -> usize {
        let sending = self.peers.iter().filter(|peer| peer.is_sending()).count();
        match self.transfer.options.slow {
            SlowPeer::CatchUp | SlowPeer::Drop(_) if sending > 1 => (slots / sending).max(1),
            _ => slots,
        }
    }

    /// Takes the next block, or a pack of them, for all who want it and have room.
    pub(super) fn begin_read(&mut self, pool: &SharedBufferManager) -> Option<ReadWork> {
        if self.checking_is_due() {
            self.checking = true;
            return Some(ReadWork::Check);
        }
        let slots = pool.slots();
        let index = self.next_block(slots)?;
        let block = self.transfer.plan.as_ref()?.blocks.get(index)?;
        let lent = self
            .transfer
            .source
            .lend(block.entry, block.offset, block.len as usize);
        let share = self.share(slots);
        let (what, blocks) = match (lent, self.zeros_from(block, share)) {
            (_, Some(zeros)) => {
                let count = zeros.len();
                (ReadWork::Zeros(zeros), count)
            }
            (Some(bytes), None) => (ReadWork::Lent(block, bytes), 1),
            (None, None) => {
                let buffer = pool.try_acquire()?;
                match self.pack_from(block, share) {
                    Some(blocks) => {
                        let count = blocks.len();
                        (ReadWork::Pack(blocks, buffer), count)
                    }
                    None => (ReadWork::Read(block, buffer), 1),
                }
            }
        };
        for peer in &mut self.peers {
            if peer.held() < share {
                peer.assign(index, blocks);
            }
        }
        self.cursor = index + blocks as u64;
        self.reading += 1;
        self.transfer.checked = false;
        Some(what)
    }

    /// Small blocks from this one on that the same peers want, for one message. None: it goes by
    /// itself.
    fn pack_from(&self, first: Block, share: usize) -> Option<Vec<Block>> {
        let plan = &self.transfer.plan.as_ref()?.blocks;
        if !self.peers.iter().any(TransferPeer::takes_packs) {
            return None;
        }
        let able = || self.peers.iter().filter(|peer| peer.held() < share);
        let same = |index| able().all(|peer| peer.wants(index) == peer.wants(first.index));
        let mut pack = PackBuilder::new(first, plan.block_bytes() as usize)?;
        let behind = (first.index + 1..).map_while(|index| plan.get(index));
        for block in behind {
            if !same(block.index) || !pack.add(block) {
                break;
            }
        }
        pack.finish()
    }

    /// Blocks from this one on that lie in holes of their file, and that the same peers want, all
    /// of which take word of that. None: it is read.
    fn zeros_from(&self, first: Block, share: usize) -> Option<Vec<Block>> {
        let (plan, source) = (self.transfer.plan.as_ref()?, &self.transfer.source);
        // What a peer compares is read: where all of a file is equal, the file stays.
        let is_compared = |index| self.peers.iter().any(|peer| peer.compares(index));
        let is_hole = |block: &Block| {
            source.is_hole(block.entry, block.offset, block.len as usize)
                && !is_compared(block.index)
        };
        if !source.manifest().is_sparse(first.entry) || !is_hole(&first) {
            return None;
        }
        let able = || self.peers.iter().filter(|peer| peer.held() < share);
        let mut wanting = able().filter(|peer| peer.wants(first.index));
        if !wanting.all(TransferPeer::takes_zeros) {
            return None;
        }
        let same = |index| able().all(|peer| peer.wants(index) == peer.wants(first.index));
        let most = (ZEROS_BYTES_MAX / u64::from(plan.blocks.block_bytes())).max(1);
        let most = most.min(ZEROS_BLOCKS_MAX.into());
        let all = (first.index..first.index + most).map_while(|index| plan.blocks.get(index));
        let zeros = all.take_while(|it| it.entry == first.entry && is_hole(it) && same(it.index));
        Some(zeros.collect())
    }

    pub(super) fn job(&self, what: ReadWork) -> ReadJob {
        let transfer = &self.transfer;
        let blocks = match &what {
            ReadWork::Read(block, _) | ReadWork::Lent(block, _) => std::slice::from_ref(block),
            ReadWork::Pack(blocks, _) | ReadWork::Zeros(blocks) => blocks,
            ReadWork::Check => &[],
        };
        let hashed = match (&transfer.content, &transfer.plan) {
            (Some(content), Some(plan)) => {
                let mut new = blocks
                    .iter()
                    .map(|block| !content.hashed.contains(block.index));
                new.any(|new| new).then(|| Arc::clone(&plan.blocks))
            }
            _ => None,
        };
        let is_compared = |block: &Block| self.peers.iter().any(|it| it.compares(block.index));
        let compared = blocks.iter().any(is_compared);
        ReadJob {
            transfer: self.transfer.id,
            source: self.transfer.source.clone(),
            what,
            sums: SumsWanted {
                crc: transfer.options.crc32c,
                hashed,
                compared,
            },
        }
    }

    pub(super) fn on_read(&mut self, done: ReadDone, tools: &mut SenderTools) {
        match done.is_check {
            true => self.checking = false,
            false => self.reading -= 1,
        }
        match done.result {
            Ok(ReadOutcome::Unchanged) => self.transfer.checked = self.reading == 0,
            Ok(ReadOutcome::Block(block, sums, bytes)) => {
                let hash_time = self.add_hashes(&[(block, sums)]);
                let ready = Ready::Block(ReadyBlock {
                    block,
                    bytes,
                    crc: sums.crc,
                    content: sums.content,
                });
                self.hand_out(&ready, done.took, hash_time, tools.now());
            }
            Ok(ReadOutcome::Pack(read, payload)) => {
                let hash_time = self.add_hashes(&read);
                let contents = read.iter().map(|(_, sums)| sums.content).collect();
                let blocks = read.into_iter().map(|(block, sums)| (block, sums.crc));
                let blocks = blocks.collect();
                let ready = Ready::Pack(ReadyPack {
                    blocks,
                    contents,
                    payload,
                });
                self.hand_out(&ready, done.took, hash_time, tools.now());
            }
            Ok(ReadOutcome::Zeros(summed)) => {
                let hash_time = self.add_hashes(&summed);
                let blocks = summed.into_iter().map(|(block, sums)| (block, sums.crc));
                let ready = Ready::Zeros(blocks.collect());
                self.hand_out(&ready, done.took, hash_time, tools.now());
            }
            Err(error) => self.fail_all(&source_failed(error), tools),
        }
    }

    /// The hashes of blocks belong to that of the content. How long they took.
    fn add_hashes(&mut self, read: &[(Block, BlockSums)]) -> Duration {
        for (block, sums) in read {
            if let (Some(content), Some(hash)) = (&mut self.transfer.content, sums.hash) {
                content.add(block, hash);
            }
        }
        read.iter().map(|(_, sums)| sums.hash_time).sum()
    }

    fn hand_out(&mut self, ready: &Ready, took: Duration, hash_time: Duration, now: Instant) {
        for peer in &mut self.peers {
            peer.on_read(ready.clone(), took, hash_time, now);
        }
    }

    /// All blocks were read: before anybody is told so, the source is asked whether it is still
    /// what it was.
    fn checking_is_due(&self) -> bool {
        let waits = |peer: &TransferPeer| peer.waits_for_check();
        !self.checking
            && !self.transfer.checked
            && self.reading == 0
            && self.peers.iter().any(waits)
    }

    /// How it is, in words.
    pub(super) fn describe(&self, now: Instant) -> String {
        let transfer = &self.transfer;
        let mut lines = vec![format!(
            "transfer {}: {} reads under way{}{}{}{}",
            transfer.id,
            self.reading,
            if self.checking {
                ", the source is being checked"
            } else {
                ""
            },
            if transfer.checked {
                ", the source is checked"
            } else {
                ""
            },
            if transfer.plan.is_none() {
                ", no plan yet"
            } else {
                ""
            },
            if transfer.paused { ", paused" } else { "" },
        )];
        lines.extend(self.peers.iter().map(|peer| peer.describe(now)));
        lines.join("\n")
    }

    // ---- sending --------------------------------------------------------------------------------

    /// Sends what can be sent now; whether that was anything.
    pub(super) fn pump(&mut self, tools: &mut SenderTools) -> bool {
        let mut any = false;
        self.each_peer(tools, |peer, with| any |= peer.pump(with));
        any
    }
}

impl TransferPlan {
    fn new(source: &dyn BlockSource, block_bytes: u32) -> Self {
        let manifest = source.manifest();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&block_bytes.to_le_bytes());
        for entry in manifest.iter() {
            let name = entry.name.as_bytes();
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name);
        }
        let mut key = [0; 16];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self {
            blocks: Arc::new(BlockPlan::new(manifest, block_bytes)),
            identity: StreamIdentity {
                key,
                stamp: source.stamp(),
            },
            links: manifest.links(),
            sparse: manifest.has_sparse(),
        }
    }
}

fn source_failed(error: SourceError) -> StreamError {
    match error {
        SourceError::Changed { .. } => StreamError::SourceChanged {
            what: error.to_string(),
        },
        SourceError::File(error) => StreamError::File(error),
        other => StreamError::GivenUp {
            code: RefusalCode::SOURCE,
            reason: other.to_string(),
        },
    }
}
