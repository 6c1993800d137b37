//! `RawServer`: an endpoint that writes and reads what a token names, whatever that may be: an
//! honest server, or a liar.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::endpoint::link::addressed_ep::AddressedEp;
use crate::errno::CompletionError;
use crate::fabric::{
    Completions, Cq, Domain, Fabric, FiAddr, Level, PeerAddr, PostRefused, RemoteRange, RmaPost,
};
use crate::memory::Region;
use crate::object::RdmaToken;

/// Long enough for any machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) struct RawServer {
    end: AddressedEp,
    cq: Arc<Cq>,
    region: Arc<Region>,
    domain: Arc<Domain>,
    next: usize,
}

impl RawServer {
    pub(crate) fn open(fabric: &Arc<Fabric>, bytes: usize) -> Self {
        let domain = fabric.open_domain().expect("a domain");
        let info = fabric.info().duplicate().expect("an info");
        let cq = Arc::new(Cq::open(&domain, 256).expect("a queue"));
        let end = AddressedEp::open(&domain, &info, (64, 64), &cq).expect("an endpoint");
        let region = Region::host(bytes).build().expect("memory");
        region.register_with(&*domain).expect("registered");
        Self {
            end,
            cq,
            region,
            domain,
            next: 1,
        }
    }

    /// What it sends, and where it reads to.
    pub(crate) fn memory(&mut self) -> &mut [u8] {
        let (at, len) = (self.region.as_ptr(), self.region.len());
        // SAFETY: nothing is in flight between calls, and the region is its own.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }

    fn peer(&self, token: &RdmaToken) -> FiAddr {
        let format = self.domain.fabric().info().addr_format();
        let addr = PeerAddr::from_provider_bytes(format, token.name()).expect("a name");
        self.end.av.insert(&addr).expect("known")
    }

    /// Writes `len` bytes of its memory into the window from `at` on.
    pub(crate) fn write(
        &mut self,
        token: &RdmaToken,
        at: u64,
        len: usize,
    ) -> Result<(), CompletionError> {
        self.run(token, at, len, (true, SOON)).expect("an outcome")
    }

    /// Reads them.
    pub(crate) fn read(
        &mut self,
        token: &RdmaToken,
        at: u64,
        len: usize,
    ) -> Result<(), CompletionError> {
        self.run(token, at, len, (false, SOON)).expect("an outcome")
    }

    /// Whether a write, or a read, that must not be done is not: it fails, or has no outcome, where
    /// the endpoint that it names is gone.
    pub(crate) fn is_refused(&mut self, token: &RdmaToken, len: usize, writes: bool) -> bool {
        self.run(token, 0, len, (writes, Duration::from_secs(2)))
            .is_none_or(|outcome| outcome.is_err())
    }

    fn run(
        &mut self,
        token: &RdmaToken,
        at: u64,
        len: usize,
        (writes, at_most): (bool, Duration),
    ) -> Option<Result<(), CompletionError>> {
        let peer = self.peer(token);
        let until = Instant::now() + at_most;
        let context = match self.post(peer, token, at, len, (writes, until))? {
            Ok(context) => context,
            Err(error) => return Some(Err(error)),
        };
        let mut got = Completions::new();
        loop {
            self.cq.read(&mut got).expect("a queue");
            for completion in got.drain(..) {
                if completion.context == context {
                    return Some(completion.error.map_or(Ok(()), |error| Err(*error)));
                }
            }
            if Instant::now() >= until {
                return None;
            }
        }
    }

    fn post(
        &mut self,
        peer: FiAddr,
        token: &RdmaToken,
        at: u64,
        len: usize,
        (writes, until): (bool, Instant),
    ) -> Option<Result<usize, CompletionError>> {
        let scope = crate::memory::Registrar::scope(&*self.domain);
        let desc = self.region.lease(scope).expect("registered");
        let iov = [libc::iovec {
            iov_base: self.region.as_ptr().cast(),
            iov_len: len,
        }];
        let context = self.next;
        self.next += 1;
        let post = RmaPost {
            iov: &iov,
            desc: &[desc],
            remote: RemoteRange {
                addr: token.base().wrapping_add(at),
                len,
                key: token.key(),
            },
            context,
            level: Level::Delivered,
            data: None,
        };
        loop {
            // SAFETY: the region outlives the endpoint, and nobody touches it before the outcome.
            let written = || unsafe { self.end.ep.write(peer, &post) };
            // SAFETY: as above.
            let read = || unsafe { self.end.ep.read(peer, &post) };
            let posted = if writes { written() } else { read() };
            match posted {
                Ok(()) => return Some(Ok(context)),
                Err(PostRefused::Again) => {
                    self.cq.read(&mut Completions::new()).expect("a queue");
                    if Instant::now() >= until {
                        return None;
                    }
                }
                Err(PostRefused::Errno(errno)) => {
                    return Some(Err(CompletionError::new(errno.get())));
                }
            }
        }
    }
}
