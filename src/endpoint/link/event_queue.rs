//! `EventQueue`: what an event queue says of connections that stand.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;
use crate::endpoint::link::{CmData, ConnKey};
use crate::errno::FabricErrno;
use crate::fabric::{Ep, Eq, Fabric, RawEvent};

/// The most events that are kept while those of a closed endpoint are looked for: requests come as
/// fast as peers like.
const EVENTS_KEPT_MAX: usize = 1024;

/// The event queue of a link, and what was read of it early. A closed endpoint may have events in
/// it, and its address may be the next endpoint's.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// Events read while looking for stale ones, not yet handed out.
    pub(super) kept: VecDeque<RawEvent>,
    /// There are such. They lie in no queue of the provider's, so who is about to sleep looks here.
    keeps: Arc<AtomicBool>,
    /// Closed endpoints that may have events further back in the event queue, until that was seen
    /// empty.
    stale: Vec<ConnKey>,
    eq: Arc<Eq>,
}

impl EventQueue {
    pub(crate) fn open(fabric: &Arc<Fabric>) -> Result<Self, Error> {
        Ok(Self {
            kept: VecDeque::new(),
            keeps: Arc::default(),
            stale: Vec::new(),
            eq: Arc::new(Eq::open(fabric)?),
        })
    }

    /// The queue that endpoints are bound to.
    pub(crate) fn queue(&self) -> &Arc<Eq> {
        &self.eq
    }

    /// Whether some are kept, for threads that are about to sleep.
    pub(crate) fn keeps(&self) -> &Arc<AtomicBool> {
        &self.keeps
    }

    /// The next one that is not of a closed endpoint.
    pub(crate) fn next(&mut self) -> Result<Option<RawEvent>, Error> {
        match self.kept.pop_front() {
            Some(event) => Ok(Some(event)),
            None => self.read(),
        }
    }

    fn read(&mut self) -> Result<Option<RawEvent>, Error> {
        loop {
            match self.eq.read()? {
                // They end: nothing more is said of a closed endpoint.
                Some(event) if self.stale.contains(&event.fid) => {}
                Some(event) => return Ok(Some(event)),
                None => {
                    self.stale.clear();
                    return Ok(None);
                }
            }
        }
    }

    /// A connection is over before it had an endpoint.
    pub(crate) fn push_failure(&mut self, key: ConnKey, errno: FabricErrno) {
        self.kept.push_back(RawEvent {
            kind: 0,
            fid: key,
            info: None,
            errno: errno.get(),
            data: CmData::new(&[]),
        });
    }

    /// Nothing is said of that connection any more, which had no endpoint.
    pub(crate) fn drop_kept(&mut self, key: ConnKey) {
        self.kept.retain(|event| event.fid != key);
    }

    /// Takes events of a closed endpoint out of the event queue: its address may be the next
    /// endpoint's. Those that lie too far back are passed over when they are read (`stale`).
    pub(crate) fn forget(&mut self, key: ConnKey) {
        self.keep_all_but(key);
        self.note_kept();
    }

    fn keep_all_but(&mut self, key: ConnKey) {
        self.drop_kept(key);
        for _ in self.kept.len()..EVENTS_KEPT_MAX {
            match self.read() {
                Ok(Some(event)) if event.fid != key => self.kept.push_back(event),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
        self.stale.push(key);
    }

    /// Nobody sleeps while there are some. Release: who finds the flag finds the events, although
    /// the thread that watches the endpoint may be another one than polled it last.
    pub(crate) fn note_kept(&self) {
        let some = !self.kept.is_empty();
        self.keeps.store(some, Ordering::Release);
    }

    /// What is still to come of the endpoint that was here before would be taken for this one's.
    pub(crate) fn unstale(&self, ep: Ep) -> Result<Ep, Error> {
        match self.stale.contains(&(ep.as_ptr() as ConnKey)) {
            true => Err(Error::fabric("fi_endpoint", libc::EAGAIN)),
            false => Ok(ep),
        }
    }
}
