//! `FirstContacts`: takes clients into address vectors, without anybody who waits for another's.
//!
//! Most providers only note an address, and look for its owner when something is posted: there it
//! is done at once. Others ask the network, or a card, and may take seconds (`fi_av_insert` of efa,
//! psm3): a thread of the domain's does that, of which there are few, and so many clients at once
//! wait for them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::EventfdFlags;

use crate::Error;
use crate::endpoint::PeerAddr;
use crate::fabric::{Av, Domain, FiAddr, JobId};
use crate::object::server::engine::{GenerationId, Reached};

/// What the provider said of a client.
#[derive(Debug)]
pub(super) struct ContactAnswer {
    pub(super) addr: PeerAddr,
    pub(super) generation: GenerationId,
    pub(super) reached: Result<Reached, Arc<str>>,
    ticket: u64,
}

/// What came of asking.
#[derive(Debug)]
pub(super) enum Asked {
    /// The answer is here.
    Now(Result<Reached, Arc<str>>),
    /// A thread will bring it.
    Later,
    /// As many wait as may.
    Full,
}

/// What tests do before a client is taken in.
#[cfg(all(test, not(loom)))]
pub(super) type BeforeContact = Arc<dyn Fn(&PeerAddr) + Send + Sync>;

/// The first contacts of one channel.
#[derive(Debug)]
pub(super) struct FirstContacts {
    inbox: Arc<ContactInbox>,
    /// What was asked for, by its ticket.
    pending: BTreeMap<u64, JobId>,
    last_ticket: u64,
    limit: u32,
    pub(super) by_thread: bool,
    domain: Arc<Domain>,
    #[cfg(all(test, not(loom)))]
    pub(super) before: Hook,
}

/// Of a test.
#[cfg(all(test, not(loom)))]
#[derive(Clone, Default)]
pub(super) struct Hook(pub(super) Option<BeforeContact>);

#[cfg(all(test, not(loom)))]
impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hook({})", self.0.is_some())
    }
}

/// Where threads put their answers.
#[derive(Debug)]
struct ContactInbox {
    answers: Mutex<Vec<ContactAnswer>>,
    has_some: AtomicBool,
    /// Readable when something came that nobody took.
    bell: OwnedFd,
}

impl FirstContacts {
    pub(super) fn new(domain: &Arc<Domain>, limit: u32) -> Result<Self, Error> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::os("eventfd", error))?;
        let row = domain.fabric().provider();
        Ok(Self {
            inbox: Arc::new(ContactInbox {
                answers: Mutex::default(),
                has_some: AtomicBool::new(false),
                bell,
            }),
            pending: BTreeMap::new(),
            last_ticket: 0,
            limit,
            // Addresses of sockets are copied (`ofi_ip_av_insert`), names of shared memory opened.
            by_thread: !row.over_tcp && row.names.is_none(),
            domain: Arc::clone(domain),
            #[cfg(all(test, not(loom)))]
            before: Hook::default(),
        })
    }

    /// So many wait for an answer.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Rings when there are answers.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.inbox.bell.as_fd()
    }

    /// Takes a client in. At most once at a time for each.
    pub(super) fn ask(&mut self, addr: PeerAddr, generation: GenerationId, av: &Arc<Av>) -> Asked {
        if !self.by_thread {
            return Asked::Now(reached(generation, av.insert(&addr)));
        }
        if self.pending.len() >= self.limit as usize {
            return Asked::Full;
        }
        self.last_ticket += 1;
        let av = Arc::clone(av);
        let mut answer = AnswerLater {
            inbox: Arc::clone(&self.inbox),
            ticket: self.last_ticket,
            addr,
            generation,
            found: Err(Error::fabric("fi_av_insert", libc::EIO)),
        };
        #[cfg(all(test, not(loom)))]
        let before = self.before.clone();
        let job = move || {
            #[cfg(all(test, not(loom)))]
            if let Some(before) = before.0 {
                before(&addr);
            }
            answer.found = av.insert(&addr);
            drop(answer);
        };
        match self.domain.resolver().submit(Box::new(job)) {
            Ok(id) => {
                self.pending.insert(self.last_ticket, id);
                Asked::Later
            }
            Err(error) => Asked::Now(Err(error.to_string().into())),
        }
    }

    /// What came meanwhile.
    pub(super) fn take(&mut self) -> Vec<ContactAnswer> {
        let mut answers = self.inbox.take();
        // What no thread was found for was answered at once.
        answers.retain(|answer| self.pending.remove(&answer.ticket).is_some());
        answers
    }
}

impl Drop for FirstContacts {
    fn drop(&mut self) {
        for job in std::mem::take(&mut self.pending).into_values() {
            self.domain.resolver().cancel(job);
        }
    }
}

fn reached(generation: GenerationId, found: Result<FiAddr, Error>) -> Result<Reached, Arc<str>> {
    match found {
        Ok(number) => Ok(Reached { generation, number }),
        Err(error) => Err(error.to_string().into()),
    }
}

/// Puts its answer into the inbox when it is dropped, whatever happened.
struct AnswerLater {
    inbox: Arc<ContactInbox>,
    ticket: u64,
    addr: PeerAddr,
    generation: GenerationId,
    found: Result<FiAddr, Error>,
}

impl Drop for AnswerLater {
    fn drop(&mut self) {
        let nothing = Err(Error::fabric("fi_av_insert", libc::EIO));
        let found = std::mem::replace(&mut self.found, nothing);
        self.inbox.put(ContactAnswer {
            addr: self.addr,
            generation: self.generation,
            reached: reached(self.generation, found),
            ticket: self.ticket,
        });
    }
}

impl ContactInbox {
    fn put(&self, answer: ContactAnswer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push(answer);
        drop(answers);
        // The bell first, and the flag last: who sees the flag finds the bell rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        self.has_some.store(true, Ordering::Release);
    }

    fn take(&self) -> Vec<ContactAnswer> {
        if !self.has_some.load(Ordering::Relaxed) {
            return Vec::new();
        }
        // The list last: what is put meanwhile is taken with it, or its bell and its flag stay.
        self.has_some.swap(false, Ordering::AcqRel);
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *answers)
    }
}
