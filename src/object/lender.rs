//! `Lender`: registers memory for servers, behind endpoints that are closed when nothing else keeps
//! servers from memory that was lent.
//!
//! Each token has a registration of its own, with a key of its own. Where the close of that ends
//! all access (`AccessEnds::WithKey`) nothing more is needed. Elsewhere a server may go on writing
//! what it had begun, until the endpoint is closed. So endpoints are replaced: one *retires* when
//! somebody wants memory back. New tokens name the next one, and a retired one is closed when its
//! last token is dropped. Where a key can't be closed before its endpoint (`holds_registrations`),
//! each token has an endpoint of its own.
//!
//! ```text
//!  lend ─► key ─► token ──► dropped: key closed, epoch begins ─┐
//!   behind the current endpoint                                │ the memory is free when every
//!  retire ─► behind the next one                               │ endpoint that stood is closed
//!            the old one: closed with its last token ──────────┘
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::Error;
use crate::fabric::{AccessEnds, Domain, EndpointSettings, Fabric, RmaLimits};
use crate::memory::{
    Access, DevicePaths, Path, RawRegistration, RegisterError, Registrar, Watcher,
};
use crate::object::needs;
use crate::object::window_body::WindowBody;
use crate::object::window_ep::WindowEp;
use crate::object::{ObjectError, RdmaToken};

/// How long a sleeper sleeps at most before it looks again.
const LOOK: Duration = Duration::from_millis(1);

/// Lends memory behind endpoints of one domain, which nobody else has.
#[derive(Debug)]
pub(super) struct Lender {
    // Field order is drop order: endpoints, and what they hold, before the domain.
    endpoints: Mutex<Vec<Lending>>,
    /// Notified when an endpoint was closed.
    closed: Condvar,
    /// Changed where a watcher has to look anew at which endpoints there are.
    version: AtomicU64,
    next: AtomicU64,
    /// The last endpoint that was to be opened could not be.
    shut: AtomicBool,
    limits: LenderLimits,
    watcher: Watcher,
    domain: Arc<Domain>,
    wake: Box<dyn Wake>,
}

/// Tells whoever drives progress that there is something new to look at.
pub(super) trait Wake: Send + Sync + std::fmt::Debug {
    /// From any thread.
    fn wake(&self);
}

/// What is asked once.
#[derive(Debug)]
pub(super) struct LenderLimits {
    pub(super) settings: EndpointSettings,
    pub(super) rma: RmaLimits,
    /// The provider's name, as tokens say it.
    pub(super) provider: Box<str>,
    /// Tokens that stand at once.
    pub(super) tokens: usize,
}

/// An endpoint, and what is lent behind it.
#[derive(Debug)]
struct Lending {
    id: u64,
    ep: Arc<WindowEp>,
    /// Tokens that stand.
    tokens: usize,
    /// The thread that makes progress has it, or was told of it.
    watched: bool,
    retired: bool,
    /// Registrations that stay open until the endpoint is closed, with their memory.
    held: Vec<(RawRegistration, Arc<WindowBody>)>,
}

/// What a token stands on. It is given back once, by [`Lender::end`].
#[derive(Debug)]
pub(super) struct Lent {
    id: u64,
    registration: RawRegistration,
    body: Arc<WindowBody>,
}

/// How the use of a token ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The server has said that it is done.
    Done,
    /// Nobody knows what the server does.
    Abandoned,
}

impl Lender {
    pub(super) fn open(
        fabric: &Arc<Fabric>,
        settings: EndpointSettings,
        tokens: usize,
        wake: Box<dyn Wake>,
    ) -> Result<Arc<Self>, Error> {
        let limits = LenderLimits {
            settings,
            rma: needs::one_sided(fabric)?,
            provider: fabric.info().provider_name().into(),
            tokens,
        };
        let domain = fabric.open_domain()?;
        let first = WindowEp::open(&domain, &limits.settings)?;
        Ok(Arc::new_cyclic(|this: &std::sync::Weak<Self>| {
            let this = this.clone();
            let tell = move || {
                if let Some(lender) = this.upgrade() {
                    lender.closed.notify_all();
                }
            };
            Self {
                endpoints: Mutex::new(vec![Lending::new(0, first)]),
                closed: Condvar::new(),
                version: AtomicU64::new(0),
                next: AtomicU64::new(1),
                shut: AtomicBool::new(false),
                limits,
                watcher: domain.ledger().watch(Arc::new(tell)),
                domain,
                wake,
            }
        }))
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(super) fn limits(&self) -> &LenderLimits {
        &self.limits
    }

    fn endpoints(&self) -> MutexGuard<'_, Vec<Lending>> {
        self.endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes when there are endpoints to [`watch`](Self::watch) that were not, and when one must
    /// be let go.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The endpoints behind which something is lent: they are to be progressed.
    pub(super) fn in_use(&self) -> SmallVec<[Arc<WindowEp>; 2]> {
        let endpoints = self.endpoints();
        let used = endpoints.iter().filter(|lending| lending.tokens > 0);
        used.map(|lending| Arc::clone(&lending.ep)).collect()
    }

    /// The same, for the one who goes on with them until the version changes, or until some are
    /// [idle](Self::has_idle): that one need not be told of each token.
    pub(super) fn watch(&self) -> SmallVec<[Arc<WindowEp>; 2]> {
        let mut endpoints = self.endpoints();
        for lending in endpoints.iter_mut() {
            lending.watched = lending.tokens > 0;
        }
        let watched = endpoints.iter().filter(|lending| lending.watched);
        watched.map(|lending| Arc::clone(&lending.ep)).collect()
    }

    /// Whether nothing is lent behind an endpoint that is watched.
    pub(super) fn has_idle(&self) -> bool {
        let endpoints = self.endpoints();
        endpoints.iter().any(|it| it.watched && it.tokens == 0)
    }

    /// Whether servers can reach what is lent: the last endpoint could be opened, and the provider
    /// serves all that there are.
    pub(super) fn is_open(&self) -> bool {
        let endpoints = self.endpoints();
        !self.shut.load(Ordering::Relaxed) && endpoints.iter().all(|it| it.ep.is_served())
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
        self.wake.wake();
    }

    /// Lends `len` bytes of memory from `offset` on, which lie in it.
    pub(super) fn lend(
        &self,
        body: &Arc<WindowBody>,
        (offset, len): (usize, usize),
        access: Access,
    ) -> Result<(Lent, RdmaToken), ObjectError> {
        self.check_quarantine(body)?;
        let (lent, ep) = self.stand(body, (offset, len), access)?;
        match self.token_of(&lent, (offset, len), &ep) {
            Ok(token) => Ok((lent, token)),
            Err(error) => {
                drop(ep);
                self.end(lent, Ended::Done);
                Err(error)
            }
        }
    }

    /// What a token stands on, with nothing said of it yet.
    fn stand(
        &self,
        body: &Arc<WindowBody>,
        part: (usize, usize),
        access: Access,
    ) -> Result<(Lent, Arc<WindowEp>), ObjectError> {
        let (id, ep) = self.take_place()?;
        body.reach().tokens += 1;
        match self.register(body, part, access) {
            Ok(registration) => {
                let body = Arc::clone(body);
                let lent = Lent {
                    id,
                    registration,
                    body,
                };
                Ok((lent, ep))
            }
            Err(error) => {
                // Who closes an endpoint waits until nobody else has it.
                drop(ep);
                self.give_place_back(id, body);
                Err(error)
            }
        }
    }

    /// Which way the bytes of a device's memory go: the first `len` of them are lent, and nobody
    /// is told of the key. Memory that is refused was not lent.
    pub(super) fn try_path(
        &self,
        body: &Arc<WindowBody>,
        len: usize,
        access: Access,
    ) -> Result<Path, ObjectError> {
        let paths = self.domain.fabric().settings().device_paths;
        let (lent, ep) = match self.stand(body, (0, len), access) {
            Err(ObjectError::NotDirect { reason, .. }) if paths != DevicePaths::RequireDirect => {
                return Ok(Path::Staged(reason));
            }
            stands => stands?,
        };
        drop(ep);
        let path = lent.registration.path().clone();
        self.end(lent, Ended::Done);
        Ok(path)
    }

    /// A place for one token behind the current endpoint.
    fn take_place(&self) -> Result<(u64, Arc<WindowEp>), ObjectError> {
        let mut endpoints = self.endpoints();
        let limit = self.limits.tokens;
        if endpoints.iter().map(|it| it.tokens).sum::<usize>() >= limit {
            return Err(ObjectError::TooManyTokens { limit });
        }
        if endpoints.iter().all(|lending| lending.retired) {
            let ep = WindowEp::open(&self.domain, &self.limits.settings);
            self.shut.store(ep.is_err(), Ordering::Relaxed);
            let ep = ep?;
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            endpoints.push(Lending::new(id, ep));
        }
        let current = endpoints.iter_mut().find(|lending| !lending.retired);
        let current = current.expect("there is one, or one was just opened");
        current.tokens += 1;
        // Only the close of the endpoint ends what a token allows, so it has one of its own.
        current.retired |= self.limits.rma.holds_registrations;
        let place = (current.id, Arc::clone(&current.ep));
        let was_watched = std::mem::replace(&mut current.watched, true);
        drop(endpoints);
        if !was_watched {
            self.changed();
        }
        Ok(place)
    }

    fn give_place_back(&self, id: u64, body: &WindowBody) {
        body.reach().tokens -= 1;
        self.leave(id, None);
    }

    fn register(
        &self,
        body: &WindowBody,
        (offset, len): (usize, usize),
        access: Access,
    ) -> Result<RawRegistration, ObjectError> {
        let registered = match body.device() {
            Some(range) => {
                let mut part = *range;
                part.address += offset as u64;
                part.len = len;
                self.domain.register_device(&part, Some(access))
            }
            None => self.domain.register_window(body.at(offset), len, access),
        };
        registered.map_err(|error| match error {
            RegisterError::Device { kind, reason } => ObjectError::NotDirect { kind, reason },
            error => error.into(),
        })
    }

    fn token_of(
        &self,
        lent: &Lent,
        (offset, len): (usize, usize),
        ep: &WindowEp,
    ) -> Result<RdmaToken, ObjectError> {
        let base = match self.limits.rma.virtual_addresses {
            true => lent.body.at(offset).as_ptr().addr() as u64,
            false => 0,
        };
        let name = ep.address().to_provider_bytes().unwrap_or_default();
        let key = lent.registration.key;
        Ok(RdmaToken::new(
            base,
            len as u64,
            &self.limits.provider,
            &name,
            key,
        )?)
    }

    /// Memory into which a write may still land is not lent again before that is over.
    fn check_quarantine(&self, body: &WindowBody) -> Result<(), ObjectError> {
        if !body.is_quarantined(&mut body.reach()) {
            return Ok(());
        }
        self.retire();
        match body.is_quarantined(&mut body.reach()) {
            true => Err(ObjectError::Quarantined),
            false => Ok(()),
        }
    }

    /// The use of a token is over: nothing new begins with its key.
    pub(super) fn end(&self, lent: Lent, ended: Ended) {
        let Lent {
            id,
            registration,
            body,
        } = lent;
        let held = if self.limits.rma.holds_registrations {
            body.reach().held += 1;
            Some((registration, Arc::clone(&body)))
        } else {
            drop(registration);
            self.begin_for(&body);
            None
        };
        let mut reach = body.reach();
        reach.tokens -= 1;
        if ended == Ended::Abandoned {
            body.quarantine(&mut reach);
        }
        drop(reach);
        self.leave(id, held);
    }

    /// The keys that were closed are good for what began before, until an epoch is passed.
    fn begin_for(&self, body: &WindowBody) {
        if self.limits.rma.access_ends != AccessEnds::WithKey {
            let epoch = self.watcher.begin();
            let mut reach = body.reach();
            reach.epoch = reach.epoch.max(epoch);
        }
    }

    /// A token behind an endpoint is over.
    fn leave(&self, id: u64, held: Option<(RawRegistration, Arc<WindowBody>)>) {
        let mut endpoints = self.endpoints();
        let Some(at) = endpoints.iter().position(|lending| lending.id == id) else {
            return;
        };
        let lending = &mut endpoints[at];
        lending.tokens -= 1;
        lending.held.extend(held);
        let is_last = lending.tokens == 0;
        let over = (is_last && lending.retired).then(|| endpoints.swap_remove(at));
        drop(endpoints);
        if let Some(over) = over {
            // Whoever watches it lets it go.
            self.changed();
            self.close_these([over]);
        }
    }

    /// New tokens are lent behind another endpoint from now on; those that nothing is lent behind
    /// are closed.
    pub(super) fn retire(&self) {
        let mut endpoints = self.endpoints();
        endpoints
            .iter_mut()
            .for_each(|lending| lending.retired = true);
        let over: Vec<_> = endpoints.extract_if(.., |it| it.tokens == 0).collect();
        drop(endpoints);
        if !over.is_empty() {
            self.changed();
            self.close_these(over);
        }
    }

    fn close_these(&self, over: impl IntoIterator<Item = Lending>) {
        for lending in over {
            for body in lending.close() {
                self.begin_for(&body);
                body.reach().held -= 1;
            }
        }
        self.closed.notify_all();
    }

    /// Waits until nobody can reach memory; `false`: not by the deadline.
    pub(super) fn wait_free(&self, body: &WindowBody, deadline: Instant) -> bool {
        if body.is_free(&body.reach()) {
            return true;
        }
        self.retire();
        loop {
            let endpoints = self.endpoints();
            if body.is_free(&body.reach()) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // Who closes an endpoint notifies without this lock, so a notification may be missed.
            drop(self.closed.wait_timeout(endpoints, left.min(LOOK)));
        }
    }

    /// What stands: tokens, and registrations that wait for the end of their endpoint.
    pub(super) fn standing(&self) -> (usize, usize) {
        let endpoints = self.endpoints();
        let tokens = endpoints.iter().map(|it| it.tokens).sum();
        (tokens, endpoints.iter().map(|it| it.held.len()).sum())
    }
}

impl Lending {
    fn new(id: u64, ep: WindowEp) -> Self {
        Self {
            id,
            ep: Arc::new(ep),
            tokens: 0,
            watched: false,
            retired: false,
            held: Vec::new(),
        }
    }

    /// Closes the endpoint, then what it held; the memory of that.
    fn close(self) -> Vec<Arc<WindowBody>> {
        let Self { ep, held, .. } = self;
        // Whoever progresses it lets go of it soon.
        let mut ep = ep;
        let ep = loop {
            match Arc::try_unwrap(ep) {
                Ok(ep) => break ep,
                Err(shared) => {
                    ep = shared;
                    std::thread::yield_now();
                }
            }
        };
        if !ep.close() {
            held.into_iter().for_each(std::mem::forget);
            return Vec::new();
        }
        held.into_iter().map(|(_, body)| body).collect()
    }
}

impl Drop for Lender {
    /// Tokens and memory keep the lender, so nothing is lent any more.
    fn drop(&mut self) {
        let endpoints = std::mem::take(&mut *self.endpoints());
        self.close_these(endpoints);
    }
}
