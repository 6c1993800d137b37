//! `EpResolver`: connections whose provider looks for the peer while it opens their endpoint. A
//! thread of the domain does that meanwhile.
//!
//! ```text
//!  prepare_connect ─► ResolvingEp ◄─ receives and the hello wait     thread: fi_endpoint, seconds
//!                       ▲                                               │
//!                       │                                               ▼
//!                       │                                     ResolverInbox, which rings a bell
//!                       └── poll_cm: bound, enabled, receives, fi_connect ◄─┘
//! ```
//!
//! Whoever polls never waits. A connection that ends meanwhile, by its deadline or because it is
//! closed or dropped, forgets what it asked for: the thread, or the link, closes the endpoint that
//! nobody wants when it comes. The domain stays open until then.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::event::EventfdFlags;
use smallvec::SmallVec;

use crate::Error;
use crate::endpoint::link::{ConnKey, PostRefused};
use crate::errno::FabricErrno;
use crate::fabric::{Domain, Ep, Info, JobId, OpenedEp, PeerAddr};

/// The endpoint of a connection, which a thread may still be opening. Its connection and its link
/// share it, on one thread at a time.
pub(super) struct ResolvingEp {
    key: ConnKey,
    ep: OnceLock<Ep>,
    waits: Mutex<WaitingForEp>,
}

/// What waits for the endpoint.
#[derive(Default)]
struct WaitingForEp {
    receives: Vec<Receive>,
    hello: Option<(PeerAddr, SmallVec<[u8; 64]>)>,
    /// There will be none, for this reason.
    failed: Option<FabricErrno>,
}

struct Receive {
    base: *mut u8,
    len: usize,
    desc: *mut c_void,
    context: usize,
}

// SAFETY: whoever posted it promised that the memory is there and that nobody else touches it; the
// descriptor is an opaque value of a provider that was opened with FI_THREAD_SAFE.
unsafe impl Send for Receive {}

impl ResolvingEp {
    fn new(key: ConnKey, failed: Option<FabricErrno>) -> Arc<Self> {
        Arc::new(Self {
            key,
            ep: OnceLock::new(),
            waits: Mutex::new(WaitingForEp {
                failed,
                ..WaitingForEp::default()
            }),
        })
    }

    pub(super) fn key(&self) -> ConnKey {
        self.key
    }

    #[inline]
    pub(super) fn ep(&self) -> Option<&Ep> {
        self.ep.get()
    }

    pub(super) fn into_ep(self) -> Option<Ep> {
        self.ep.into_inner()
    }

    /// Connects, now or when the endpoint is there.
    pub(super) fn connect(&self, peer: &PeerAddr, data: &[u8]) -> Result<(), Error> {
        if let Some(ep) = self.ep.get() {
            return ep.connect(peer, data);
        }
        let mut waits = lock(&self.waits);
        if let Some(errno) = waits.failed {
            return Err(Error::fabric("fi_endpoint", errno.get()));
        }
        waits.hello = Some((*peer, SmallVec::from_slice(data)));
        Ok(())
    }

    /// Posts a receive, now or when the endpoint is there; at most so many wait.
    ///
    /// # Safety
    /// As [`Ep::receive`].
    pub(super) unsafe fn receive(
        &self,
        limit: usize,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        if let Some(ep) = self.ep.get() {
            // SAFETY: the caller's promises.
            return unsafe { ep.receive(base, len, desc, context) };
        }
        let mut waits = lock(&self.waits);
        if waits.receives.len() >= limit {
            return Err(PostRefused::Again);
        }
        waits.receives.push(Receive {
            base,
            len,
            desc,
            context,
        });
        Ok(())
    }

    /// The endpoint is there: posts what waited for it, and connects if it was told to.
    ///
    /// # Errors
    /// The connection can't be made; it has the endpoint, to be closed with it.
    fn arrive(&self, ep: Ep) -> Result<(), FabricErrno> {
        let waits = std::mem::take(&mut *lock(&self.waits));
        let ep = self.ep.get_or_init(|| ep);
        for it in waits.receives {
            // SAFETY: the promises of who posted it, which hold until it is completed or the
            // connection is closed, and then this is not called.
            unsafe { ep.receive(it.base, it.len, it.desc, it.context) }.map_err(|refused| {
                match refused {
                    PostRefused::Again => FabricErrno::new(libc::ENOBUFS),
                    PostRefused::Errno(errno) => errno,
                }
            })?;
        }
        match waits.hello {
            Some((peer, data)) => ep.connect(&peer, &data).map_err(|error| errno_of(&error)),
            None => Ok(()),
        }
    }

    /// There is no endpoint. True: somebody waits for it, and has to be told.
    fn fail(&self, errno: FabricErrno) -> bool {
        let mut waits = lock(&self.waits);
        waits.failed = Some(errno);
        waits.hello.take().is_some()
    }
}

/// The connections of one link whose endpoints a thread opens.
#[derive(Debug, Default)]
pub(super) struct EpResolver {
    /// None: endpoints are opened by who polls.
    inbox: Option<Arc<ResolverInbox>>,
    waiting: BTreeMap<ConnKey, (Weak<ResolvingEp>, JobId)>,
    /// Connections whose endpoints are open, by those.
    found: BTreeMap<usize, ConnKey>,
    /// Odd, so that no endpoint has the address.
    last_key: ConnKey,
}

impl EpResolver {
    pub(super) fn by_thread() -> Result<Self, Error> {
        Ok(Self {
            inbox: Some(Arc::new(ResolverInbox::new()?)),
            ..Self::default()
        })
    }

    pub(super) fn inbox(&self) -> Option<&Arc<ResolverInbox>> {
        self.inbox.as_ref()
    }

    fn next_key(&mut self) -> ConnKey {
        self.last_key = self.last_key.wrapping_add(2) | 1;
        self.last_key
    }

    /// A connection that is over before it began, for this reason.
    pub(super) fn lost(&mut self, errno: FabricErrno) -> Arc<ResolvingEp> {
        ResolvingEp::new(self.next_key(), Some(errno))
    }

    /// Has a thread open an endpoint for a connection to a peer.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn begin(
        &mut self,
        domain: &Arc<Domain>,
        mut info: Info,
        peer: PeerAddr,
        sizes: (usize, usize),
    ) -> Result<Arc<ResolvingEp>, Error> {
        let key = self.next_key();
        let inbox = self.inbox.as_ref().map(Arc::downgrade).unwrap_or_default();
        let theirs = Arc::clone(domain);
        let job = domain.resolver().submit(Box::new(move || {
            let opened = OpenedEp::active(&theirs, &mut info, &peer, sizes);
            // Where the link is gone, it is closed here.
            if let Some(inbox) = inbox.upgrade() {
                inbox.put(key, opened);
            }
        }))?;
        let resolving = ResolvingEp::new(key, None);
        self.waiting.insert(key, (Arc::downgrade(&resolving), job));
        Ok(resolving)
    }

    /// Nobody wants it any more.
    pub(super) fn forget(&mut self, domain: &Domain, key: ConnKey) {
        if let Some((_, job)) = self.waiting.remove(&key) {
            domain.resolver().cancel(job);
        }
    }

    /// What came meanwhile; `connect` makes an endpoint of the link's of one that was opened. Gives
    /// those connections whose end is to be told.
    pub(super) fn take(
        &mut self,
        mut connect: impl FnMut(OpenedEp) -> Result<Ep, Error>,
    ) -> SmallVec<[(ConnKey, FabricErrno); 4]> {
        let mut over = SmallVec::new();
        let Some(inbox) = &self.inbox else {
            return over;
        };
        for (key, opened) in inbox.take() {
            // What nobody wants any more is closed here.
            let resolving = self.waiting.remove(&key).and_then(|(it, _)| it.upgrade());
            let Some(resolving) = resolving else { continue };
            match opened.and_then(&mut connect) {
                Ok(ep) => {
                    self.found.insert(ep.as_ptr() as usize, key);
                    over.extend(resolving.arrive(ep).err().map(|errno| (key, errno)));
                }
                Err(error) => {
                    let errno = errno_of(&error);
                    tracing::debug!(%error, "no endpoint for a connection");
                    over.extend(resolving.fail(errno).then_some((key, errno)));
                }
            }
        }
        over
    }

    /// The connection that an event is about.
    #[inline]
    pub(super) fn key_of(&self, fid: usize) -> ConnKey {
        match self.found.is_empty() {
            true => fid,
            false => self.found.get(&fid).copied().unwrap_or(fid),
        }
    }

    /// The address is another endpoint's, or nobody's.
    pub(super) fn forget_endpoint(&mut self, fid: usize) {
        self.found.remove(&fid);
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// With the link.
    pub(super) fn end(&mut self, domain: &Domain) {
        for (_, (_, job)) in std::mem::take(&mut self.waiting) {
            domain.resolver().cancel(job);
        }
    }
}

/// Where threads put what they have opened.
#[derive(Debug)]
pub(super) struct ResolverInbox {
    opened: Mutex<Vec<(ConnKey, Result<OpenedEp, Error>)>>,
    has_some: AtomicBool,
    /// Readable when something came that nobody took.
    bell: OwnedFd,
}

impl ResolverInbox {
    pub(super) fn new() -> Result<Self, Error> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::os("eventfd", error))?;
        Ok(Self {
            opened: Mutex::default(),
            has_some: AtomicBool::new(false),
            bell,
        })
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(super) fn put(&self, key: ConnKey, opened: Result<OpenedEp, Error>) {
        lock(&self.opened).push((key, opened));
        // The counter can't be full: it is read each time that something is taken. The flag last:
        // who sees it finds the bell rung. The other way round the bell might ring after all was
        // taken, and go on ringing, since without the flag nobody looks.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        self.has_some.store(true, Ordering::Release);
    }

    pub(super) fn take(&self) -> Vec<(ConnKey, Result<OpenedEp, Error>)> {
        if !self.has_some.load(Ordering::Relaxed) {
            return Vec::new();
        }
        // The list last: what is put meanwhile is taken with it, or its bell and its flag stay.
        self.has_some.swap(false, Ordering::AcqRel);
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *lock(&self.opened))
    }
}

fn errno_of(error: &Error) -> FabricErrno {
    match error {
        Error::Fabric { errno, .. } => *errno,
        Error::Address { .. } => FabricErrno::new(libc::EADDRNOTAVAIL),
        _ => FabricErrno::new(libc::EIO),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for ResolvingEp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResolvingEp")
            .field("key", &self.key)
            .field("ep", &self.ep)
            .finish_non_exhaustive()
    }
}
