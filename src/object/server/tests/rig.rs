//! What the tests of the server need: a server with one channel, and clients that lend windows.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::buffer::{BufferMut, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::Access;
use crate::endpoint::link::addressed_ep::AddressedEp;
use crate::fabric::{Completions, Cq, Domain, Fabric};
use crate::memory::{RawRegistration, Registrar, volatile};
use crate::object::RdmaToken;
use crate::object::server::{ChannelEvent, ObjectChannel, ObjectServer, ObjectServerConfig};
use crate::object::testing::fabrics::fabrics_of;
pub(super) use crate::object::testing::raw_server::SOON;

/// Names the providers that a process of its own is to test.
pub(super) const PROVIDERS: &str = "FABRICAST_TEST_OBJECT_PROVIDERS";

/// Of those that have both ends in one process, and need nothing in the environment.
pub(super) fn fabrics() -> Vec<Arc<Fabric>> {
    let named = std::env::var(PROVIDERS).unwrap_or_else(|_| "tcp net".to_owned());
    fabrics_of(named.split(' '))
}

/// The first of them that there is.
pub(super) fn any_fabric() -> Option<Arc<Fabric>> {
    fabrics().into_iter().next()
}

/// A rig over that.
pub(super) fn any(config: ObjectServerConfig) -> Option<Rig> {
    Some(Rig::over(&any_fabric()?, config))
}

/// Memory that is lent, and the endpoint that it is reached by.
pub(super) struct WindowClient {
    /// First, so that nobody writes to the memory any more when that goes.
    end: Option<AddressedEp>,
    cq: Arc<Cq>,
    pub(super) window: Option<RawRegistration>,
    /// Of a window, whose bytes others write while it stands; and how many of them there are.
    words: Arc<[AtomicU64]>,
    len: usize,
    token: RdmaToken,
    /// Of addresses.
    pub(super) format: u32,
    completions: Completions,
}

impl WindowClient {
    pub(super) fn open(fabric: &Arc<Fabric>, len: usize, access: Access) -> Self {
        let domain = fabric.open_domain().expect("a domain");
        let cq = Arc::new(Cq::open(&domain, 16).expect("a queue"));
        let info = fabric.info();
        let end = AddressedEp::open(&domain, info, (1, 0), &cq).expect("an endpoint");
        let words: Arc<[AtomicU64]> = (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let base = NonNull::from(&*words).cast();
        let window = domain.register_window(base, len, access).expect("a window");
        let virtual_addresses = fabric.rma().expect("one-sided").virtual_addresses;
        let token = RdmaToken::new(
            if virtual_addresses {
                base.addr().get() as u64
            } else {
                0
            },
            len as u64,
            fabric.provider().name,
            &end.local.to_provider_bytes().expect("a name"),
            window.key,
        );
        Self {
            end: Some(end),
            cq,
            window: Some(window),
            words,
            len,
            token: token.expect("a token"),
            format: info.addr_format(),
            completions: Completions::new(),
        }
    }

    pub(super) fn token(&self) -> RdmaToken {
        self.token.clone()
    }

    /// Drives its provider.
    pub(super) fn progress(&mut self) {
        let _ = self.cq.read(&mut self.completions);
        self.completions.clear();
    }

    /// Takes what the network still has for it.
    pub(super) fn drain(&mut self) {
        (0..5000).for_each(|_| self.progress());
    }

    /// Every byte is this one.
    pub(super) fn fill(&self, byte: u8) {
        self.set(0, &vec![byte; self.len]);
    }

    /// What lies from there on is this.
    pub(super) fn set(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        let base = self.words.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: they lie within the words, by the check above, which are atomic, so that a shared
        // reference to them may be written through; in this process only `progress`, whose caller
        // has this client for itself, and this method write them.
        unsafe { volatile::copy_in(base.wrapping_add(at), bytes) };
    }

    pub(super) fn copy(&self) -> Vec<u8> {
        self.part(0..self.len)
    }

    pub(super) fn part(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.end <= self.len);
        let mut bytes = vec![0; range.len()];
        let base = self.words.as_ptr().cast::<u8>();
        // SAFETY: they lie within the words, by the check above; who writes them: see `set`.
        unsafe { volatile::copy_out(base.wrapping_add(range.start), &mut bytes) };
        bytes
    }

    /// Has a thread drive it.
    pub(super) fn drive(mut self) -> DrivenClient {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                self.progress();
                std::thread::sleep(Duration::from_micros(50));
            }
            self
        });
        DrivenClient { stop, thread }
    }

    /// Its endpoint is gone; its memory is not.
    pub(super) fn go(&mut self) {
        drop(self.end.take());
    }
}

impl Drop for WindowClient {
    fn drop(&mut self) {
        self.go();
    }
}

/// A client that a thread drives.
pub(super) struct DrivenClient {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<WindowClient>,
}

impl DrivenClient {
    pub(super) fn stop(self) -> WindowClient {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

/// A server with a channel.
pub(super) struct Rig {
    pub(super) channel: ObjectChannel,
    pub(super) events: Vec<ChannelEvent>,
    pub(super) pool: SharedBufferManager,
    pub(super) server: ObjectServer,
    pub(super) fabric: Arc<Fabric>,
}

/// Bytes of a buffer.
pub(super) const BUFFER: usize = 2 << 20;

impl Rig {
    pub(super) fn over(fabric: &Arc<Fabric>, config: ObjectServerConfig) -> Self {
        let server = ObjectServer::open(fabric, config).expect("a server");
        let mut channel = server.channel().expect("a channel");
        channel.core.clock = Clock::held();
        let pool = SharedBufferManager::allocate(8, BUFFER).expect("a pool");
        pool.region().register(server.domain()).expect("registered");
        Self {
            channel,
            events: Vec::new(),
            pool,
            server,
            fabric: Arc::clone(fabric),
        }
    }

    /// Of the channel, whose clock goes on with its polls: however busy the machine is, deadlines
    /// have as many of them.
    pub(super) fn now(&self) -> Instant {
        self.channel.core.clock.now()
    }

    /// A little time passes.
    pub(super) fn pass(&self) {
        if self.channel.core.clock.is_held() {
            self.channel.core.clock.advance(Duration::from_micros(20));
        }
    }

    /// The channel has the system's clock from now on.
    pub(super) fn real_time(&mut self) {
        self.channel.core.clock = Clock::system();
    }

    /// Closes the channel; another one is in its place.
    pub(super) fn close_within(&mut self, time: Duration) -> Vec<ChannelEvent> {
        let deadline = self.now() + time;
        let other = self.server.channel().expect("a channel");
        std::mem::replace(&mut self.channel, other).close(deadline)
    }

    pub(super) fn client(&self, len: usize) -> WindowClient {
        WindowClient::open(&self.fabric, len, Access::all())
    }

    /// A buffer with a pattern.
    pub(super) fn filled(&self, len: usize, seed: u8) -> BufferMut {
        let mut buffer = self.pool.try_acquire().expect("a free buffer");
        buffer[..len].copy_from_slice(&pattern(len, seed));
        buffer
    }

    /// Drives the channel and these clients until there is an event.
    pub(super) fn next(&mut self, clients: &mut [&mut WindowClient]) -> ChannelEvent {
        let until = Instant::now() + SOON;
        while self.events.is_empty() {
            assert!(
                Instant::now() < until,
                "no event: {:?}",
                self.channel.stats()
            );
            self.channel.poll(&mut self.events).expect("it polls");
            clients.iter_mut().for_each(|client| client.progress());
            self.pass();
        }
        self.events.remove(0)
    }

    /// Writes a pattern into a part of a window and reads it back, and looks at every byte.
    pub(super) fn get_and_put(&mut self, client: &mut WindowClient, at: usize, len: usize) {
        client.fill(0xee);
        let seed = (at * 7 + len) as u8;
        let payload = self.filled(len, seed).freeze(len);
        let deadline = self.now() + SOON;
        let token = client.token();
        let get = self
            .channel
            .handle_get(&token, at as u64, payload, 1, deadline);
        get.expect("accepted");
        match self.next(&mut [client]) {
            ChannelEvent::Written { key: 1, payload } => assert_eq!(payload.len_bytes(), len),
            other => panic!("{other:?}"),
        }
        let mut wanted = vec![0xee; client.len];
        wanted[at..at + len].copy_from_slice(&pattern(len, seed));
        assert_same(&client.copy(), &wanted, format_args!("{len} at {at}"));
        let into = self.pool.try_acquire().expect("a free buffer");
        let into = crate::endpoint::Destination::buffer(into, len);
        let put = self
            .channel
            .handle_put(&token, at as u64, into, 2, deadline);
        put.expect("accepted");
        match self.next(&mut [client]) {
            ChannelEvent::Read { key: 2, into } => {
                let buffer = into.into_buffer().expect("a buffer");
                assert!(buffer[..len] == pattern(len, seed));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Bytes of which each follows from its place: these come again after 64 KiB, and those of other
/// seeds are others at each place.
pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed;
    let mut bytes: Vec<u8> = (0..len.min(1 << 16)).map(byte).collect();
    while bytes.len() < len {
        bytes.extend_from_within(..bytes.len().min(len - bytes.len()));
    }
    bytes
}

/// Says where they differ first.
fn assert_same(got: &[u8], wanted: &[u8], what: std::fmt::Arguments<'_>) {
    if got != wanted {
        let at = got.iter().zip(wanted).position(|(a, b)| a != b);
        panic!(
            "{what}: {} bytes of {}, other at {at:?}",
            got.len(),
            wanted.len()
        );
    }
}

/// Another domain of the same fabric.
pub(super) fn domain(fabric: &Arc<Fabric>) -> Arc<Domain> {
    fabric.open_domain().expect("a domain")
}
