//! `TransferEngine`: a channel's endpoints, and the transfers that they may be busy with. The one
//! place that posts, and the one that closes.
//!
//! ```text
//!  begin(transfer) ─► id ─► post(id, to) ─► pieces in flight ─► read: over ─► take(id) ─► transfer
//!                                                │
//!                               close(generation): all of its pieces are over
//! ```
//!
//! A *generation* is one endpoint with an address vector and a queue of its own, so that nothing is
//! ever asked of a queue whose endpoint was closed. A transfer stays here until each of its pieces
//! is over, in whatever generations they are.

#![allow(unsafe_code)]

use std::sync::Arc;

use libfabric_sys as sys;

use crate::Error;
use crate::endpoint::link::addressed_ep::AddressedEp;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Bound, IOV_MAX, RdmWait, settle};
use crate::fabric::{
    Av, COMPLETION_BATCH, Completions, Cq, Domain, Ep, FiAddr, Info, Level, PEER_WROTE, PeerAddr,
    PostRefused, RemoteRange, RmaLimits, RmaPost,
};
use crate::in_flight::{ContextKind, InFlight};
use crate::object::server::error::TransferErrorKind;
use crate::object::server::names::OwnNames;
use crate::object::server::queue_watch::QueueWatch;
use crate::object::server::transfer::ObjectTransfer;

/// Clients that an address vector has taken in before one that it does not take is believed to be
/// one too many: `shm` takes 256.
const CROWDED: u32 = 64;

/// Reads of a queue in one go, at most.
const READS_MAX: u32 = 16;

/// Names a generation of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GenerationId(u64);

/// A client in the address vector of a generation. It is no more once it was
/// [forgotten](TransferEngine::forget).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) generation: GenerationId,
    pub(super) number: FiAddr,
}

/// What became of a post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PostedPiece {
    /// It is in flight. `last`: nothing is left to be posted.
    Went { last: bool },
    /// Not now.
    Again,
    /// Never.
    Refused(TransferErrorKind),
}

/// A part of a transfer that the provider has.
#[derive(Debug)]
struct TransferPiece {
    transfer: usize,
}

/// An endpoint with all that is its own.
#[derive(Debug)]
struct ChannelGeneration {
    id: GenerationId,
    /// Taken when it is closed.
    ep: Option<Ep>,
    av: Arc<Av>,
    pieces: InFlight<TransferPiece>,
    wait: Arc<RdmWait>,
    cq: Arc<Cq>,
    local: PeerAddr,
    /// Clients that were taken in.
    taken_in: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct TransferEngine {
    /// What the provider may touch lies in here. Dropped behind the close of every endpoint.
    transfers: InFlight<ObjectTransfer>,
    generations: Vec<ChannelGeneration>,
    /// The last one, and its address.
    last: u64,
    local: PeerAddr,
    completions: Completions,
    /// Operations that were posted and are not over, at most.
    depth: u32,
    contexts: ContextKind,
    pub(super) rma: RmaLimits,
    /// What the client's card refuses ends the provider's connection to the client.
    pub(super) breaks: bool,
    info: Info,
    /// Of a test: the provider closes no endpoint.
    #[cfg(all(test, not(loom)))]
    pub(super) refuses_close: bool,
    names: Arc<OwnNames>,
    watch: Arc<QueueWatch>,
    domain: Arc<Domain>,
}

impl TransferEngine {
    pub(super) fn new(
        domain: &Arc<Domain>,
        rma: &RmaLimits,
        depth: u32,
        names: &Arc<OwnNames>,
        watch: &Arc<QueueWatch>,
    ) -> Result<Self, Error> {
        let info = domain.fabric().info().duplicate()?;
        let needs_cells = info.mode() & (sys::FI_CONTEXT | sys::FI_CONTEXT2) != 0;
        Ok(Self {
            transfers: InFlight::new(depth, ContextKind::Opaque),
            generations: Vec::new(),
            last: 0,
            local: PeerAddr::any(),
            completions: Completions::new(),
            depth,
            contexts: match needs_cells {
                true => ContextKind::Cells,
                false => ContextKind::Opaque,
            },
            rma: *rma,
            breaks: domain.fabric().provider().refusals_end_connections(),
            info,
            #[cfg(all(test, not(loom)))]
            refuses_close: false,
            names: Arc::clone(names),
            watch: Arc::clone(watch),
            domain: Arc::clone(domain),
        })
    }

    // ---- generations ----------------------------------------------------------------------------

    /// Opens another endpoint.
    pub(super) fn open(&mut self) -> Result<GenerationId, Error> {
        let depth = self.depth as usize;
        let cq = Arc::new(Cq::open(&self.domain, depth)?);
        let end = AddressedEp::open(&self.domain, &self.info, (depth, 0), &cq)?;
        self.last += 1;
        self.local = end.local;
        let id = GenerationId(self.last);
        let wait = Arc::new(RdmWait::new(&cq, &self.domain));
        self.watch.add(id, &wait)?;
        self.names.add(end.local);
        self.generations.push(ChannelGeneration {
            id,
            ep: Some(end.ep),
            av: end.av,
            pieces: InFlight::new(self.depth, self.contexts),
            wait,
            cq,
            local: end.local,
            taken_in: 0,
        });
        Ok(id)
    }

    /// Those that are open.
    pub(super) fn generations(&self) -> impl Iterator<Item = GenerationId> {
        self.generations.iter().map(|it| it.id)
    }

    /// One of them; they change their places when one is closed.
    pub(super) fn generation_at(&self, place: usize) -> Option<GenerationId> {
        Some(self.generations.get(place)?.id)
    }

    fn place(&self, id: GenerationId) -> Option<usize> {
        self.generations.iter().position(|it| it.id == id)
    }

    /// The address vector of a generation, for threads that take clients in.
    pub(super) fn av(&self, id: GenerationId) -> Option<&Arc<Av>> {
        let place = self.place(id)?;
        Some(&self.generations[place].av)
    }

    /// The address of the endpoint that was opened last; "any" before the first.
    pub(super) fn local(&self) -> PeerAddr {
        self.local
    }

    /// Lets a client go that nothing is outstanding to.
    ///
    /// Where endpoints have names, it stays until the generation is closed: `shm` takes it out of
    /// the client's memory, too, while that may be looking at it.
    pub(super) fn forget(&self, client: Reached) {
        let has_names = self.domain.fabric().provider().names.is_some();
        if let Some(av) = self.av(client.generation).filter(|_| !has_names) {
            av.remove(client.number);
        }
    }

    /// A client was taken in.
    pub(super) fn take_in(&mut self, id: GenerationId) {
        if let Some(place) = self.place(id) {
            self.generations[place].taken_in += 1;
        }
    }

    /// Whether an address that is not taken may be one too many.
    pub(super) fn is_crowded(&self, id: GenerationId) -> bool {
        let taken_in = self.place(id).map(|place| self.generations[place].taken_in);
        taken_in.is_some_and(|taken_in| taken_in >= CROWDED)
    }

    /// Whether a transfer that was told is in flight there (`told`), or one that was not.
    pub(super) fn holds(&self, id: GenerationId, told: bool) -> bool {
        let Some(place) = self.place(id) else {
            return false;
        };
        let is_so = |piece: &TransferPiece| {
            let transfer = self.transfers.get(piece.transfer);
            transfer.is_some_and(|transfer| transfer.told == told)
        };
        self.generations[place].pieces.iter().any(is_so)
    }

    /// The generations that have pieces of a transfer.
    pub(super) fn holders(&self, transfer: usize) -> Vec<GenerationId> {
        let has = |it: &&ChannelGeneration| it.pieces.iter().any(|p| p.transfer == transfer);
        self.generations
            .iter()
            .filter(has)
            .map(|it| it.id)
            .collect()
    }

    // ---- transfers ------------------------------------------------------------------------------

    /// Takes a transfer in, of which nothing is in flight.
    pub(super) fn begin(&mut self, transfer: ObjectTransfer) -> Result<usize, Box<ObjectTransfer>> {
        debug_assert_eq!(transfer.in_flight, 0);
        self.transfers.begin(transfer).map_err(Box::new)
    }

    pub(super) fn get(&self, id: usize) -> Option<&ObjectTransfer> {
        self.transfers.get(id)
    }

    /// Nothing more of it is posted, for this reason. What is in flight stays so.
    pub(super) fn fail(&mut self, id: usize, kind: TransferErrorKind) {
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.fail(kind);
        }
    }

    /// Its outcome is told now, though pieces are in flight.
    pub(super) fn tell(&mut self, id: usize) {
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.told = true;
        }
    }

    pub(super) fn poll_gate(&mut self, id: usize) -> Result<bool, TransferErrorKind> {
        let transfer = self.transfers.get_mut(id);
        transfer.map_or(Ok(true), ObjectTransfer::poll_gate)
    }

    /// Takes a transfer out of which nothing is in flight; none while there is.
    pub(super) fn take(&mut self, id: usize) -> Option<ObjectTransfer> {
        if self.transfers.get(id)?.in_flight > 0 {
            return None;
        }
        self.transfers.finish(id).ok()
    }

    pub(super) fn len(&self) -> usize {
        self.transfers.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.transfers.len() == self.transfers.capacity()
    }

    /// Every transfer that is here.
    pub(super) fn ids(&self) -> Vec<usize> {
        self.transfers.contexts().collect()
    }

    /// Posts the next piece of a transfer of which something is left.
    pub(super) fn post(&mut self, id: usize, to: Reached) -> PostedPiece {
        let place = self.place(to.generation);
        let generation = place.map(|place| &mut self.generations[place]);
        let (Some(generation), Some(transfer)) = (generation, self.transfers.get_mut(id)) else {
            return PostedPiece::Refused(TransferErrorKind::Reset);
        };
        let (Some(ep), Some(vacant)) = (&generation.ep, generation.pieces.vacant()) else {
            return PostedPiece::Again;
        };
        if transfer.begun == transfer.len {
            return PostedPiece::Went { last: true };
        }
        let mut iov = IovList::new();
        let segments = self.rma.iov_limit.min(IOV_MAX);
        let len = transfer.runs.next(segments, self.rma.max_bytes, &mut iov);
        let context = vacant.fill(TransferPiece { transfer: id });
        let post = RmaPost {
            iov: iov.iov(),
            desc: iov.desc(),
            remote: RemoteRange {
                addr: transfer.target.addr + transfer.begun,
                len,
                key: transfer.target.rkey,
            },
            context,
            data: None,
            level: Level::Delivered,
        };
        let posted = if transfer.is_write() {
            // SAFETY: the runs are those of the payload that the transfer leases, which keeps them
            // alive, registered and unwritten; and the transfer stays in `transfers` until
            // `in_flight`, which counts this piece below, is 0 (`take`), or is leaked. A piece is
            // over when its completion was read, or its endpoint was closed.
            unsafe { ep.write(to.number, &post) }
        } else {
            // SAFETY: as above, of the destination, which nobody else touches.
            unsafe { ep.read(to.number, &post) }
        };
        match posted {
            Ok(()) => {
                transfer.in_flight += 1;
                transfer.runs.advance(len);
                transfer.begun += len as u64;
                let last = transfer.begun == transfer.len;
                PostedPiece::Went { last }
            }
            Err(refused) => {
                generation.pieces.abort(context);
                refused_because(refused, transfer.is_write())
            }
        }
    }

    /// Reads what completed in a generation, and drives it. `over`: transfers of which a piece is
    /// over. False: the queue is broken, or is not to be believed.
    pub(super) fn read(&mut self, id: GenerationId, over: &mut Vec<usize>) -> bool {
        // What fills no batch was all that there was, and each look may cost the provider some.
        self.read_while(id, over, COMPLETION_BATCH)
    }

    /// Reads on as long as so many come at once.
    fn read_while(&mut self, id: GenerationId, over: &mut Vec<usize>, least: usize) -> bool {
        let Some(place) = self.place(id) else {
            return true;
        };
        for _ in 0..READS_MAX {
            let read = match self.generations[place].cq.read(&mut self.completions) {
                Ok(0) => return true,
                Ok(read) => read,
                Err(error) => {
                    tracing::warn!(%error, "a completion queue broke");
                    return false;
                }
            };
            if !self.sort_out(place, over) {
                return false;
            }
            if read < least {
                return true;
            }
        }
        true
    }

    /// Deals with completions that were read of a generation.
    fn sort_out(&mut self, place: usize, over: &mut Vec<usize>) -> bool {
        let generation = &mut self.generations[place];
        let broken = self.breaks.then_some(generation.id);
        let pieces = &mut generation.pieces;
        let mut believed = true;
        for completion in self.completions.drain(..) {
            // Somebody has written to memory of this domain: nobody was given a key for any.
            if completion.context == PEER_WROTE {
                continue;
            }
            let piece = match pieces.finish(completion.context) {
                Ok(piece) => piece,
                Err(error) => {
                    tracing::warn!(%error, "a completion of no transfer");
                    believed = false;
                    continue;
                }
            };
            let error = completion
                .error
                .map(|error| TransferErrorKind::Completion(*error));
            if error.is_some()
                && let Some(transfer) = self.transfers.get_mut(piece.transfer)
            {
                transfer.broke = broken;
            }
            end_piece(&mut self.transfers, &piece, error);
            over.push(piece.transfer);
        }
        believed
    }

    /// Closes a generation: all of its pieces are over, for this reason where the provider gives no
    /// other.
    pub(super) fn close(
        &mut self,
        id: GenerationId,
        why: &TransferErrorKind,
        over: &mut Vec<usize>,
    ) {
        let Some(place) = self.place(id) else {
            return;
        };
        // What it knows already it is made to deal with before (`settle`).
        let generation = &self.generations[place];
        settle(&generation.cq, &mut self.completions);
        self.sort_out(place, over);
        let generation = &mut self.generations[place];
        self.names.remove(&generation.local);
        self.watch.remove(id);
        generation.wait.set(Bound::Closed);
        let closed = generation.ep.take();
        let closed = closed.map_or(Ok(()), |ep| self.close_ep(ep));
        if closed.is_ok() && self.domain.fabric().provider().queues.reports_after_close {
            self.read_while(id, over, 1);
        }
        let generation = self.generations.swap_remove(place);
        for piece in generation.pieces.iter() {
            let Some(transfer) = self.transfers.get_mut(piece.transfer) else {
                continue;
            };
            // Where the client moves the bytes of a read by itself, it may go on.
            let goes_on = self.rma.reads_outlive_close && !transfer.is_write();
            transfer.leaked |= closed.is_err() || goes_on;
            end_piece(&mut self.transfers, piece, Some(why.clone()));
            over.push(piece.transfer);
        }
        if closed.is_err() {
            // The cells that contexts point to, and the queue.
            std::mem::forget(generation);
        }
    }
}

impl TransferEngine {
    fn close_ep(&self, ep: Ep) -> Result<(), i32> {
        #[cfg(all(test, not(loom)))]
        if self.refuses_close {
            std::mem::forget(ep);
            return Err(libc::EBUSY);
        }
        ep.close()
    }
}

/// A piece of a transfer is over.
fn end_piece(
    transfers: &mut InFlight<ObjectTransfer>,
    piece: &TransferPiece,
    error: Option<TransferErrorKind>,
) {
    if let Some(transfer) = transfers.get_mut(piece.transfer) {
        transfer.in_flight -= 1;
        if let Some(error) = error {
            transfer.fail(error);
        }
    }
}

fn refused_because(refused: PostRefused, write: bool) -> PostedPiece {
    match refused {
        PostRefused::Again => PostedPiece::Again,
        PostRefused::Errno(errno) => PostedPiece::Refused(TransferErrorKind::Fabric {
            call: if write { "fi_writemsg" } else { "fi_readmsg" },
            errno,
        }),
    }
}

impl Drop for TransferEngine {
    fn drop(&mut self) {
        let mut over = Vec::new();
        while let Some(id) = self.generations.first().map(|it| it.id) {
            self.close(id, &TransferErrorKind::Closed, &mut over);
        }
    }
}
