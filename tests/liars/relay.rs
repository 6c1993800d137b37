//! A wire that stops: a relay of ours between a liar and its victim, which holds either direction
//! after so many bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use fabricast::PeerAddr;

/// Bytes that are passed on at a time.
const CHUNK: usize = 16 * 1024;

#[derive(Debug)]
struct Flow {
    /// Bytes that may still pass; `u64::MAX`: all.
    left: u64,
    passed: u64,
    over: bool,
}

/// One direction.
#[derive(Debug)]
struct Direction {
    flow: Mutex<Flow>,
    changed: Condvar,
}

impl Direction {
    fn new() -> Arc<Self> {
        let flow = Flow {
            left: u64::MAX,
            passed: 0,
            over: false,
        };
        Arc::new(Self {
            flow: Mutex::new(flow),
            changed: Condvar::new(),
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Flow) -> T) -> T {
        let mut flow = self.flow.lock().unwrap_or_else(PoisonError::into_inner);
        let out = f(&mut flow);
        self.changed.notify_all();
        out
    }

    /// Waits until something may pass; how much. `None`: it is over.
    fn room(&self) -> Option<usize> {
        let flow = self.flow.lock().unwrap_or_else(PoisonError::into_inner);
        let held = |flow: &mut Flow| flow.left == 0 && !flow.over;
        let flow = self.changed.wait_while(flow, held);
        let flow = flow.unwrap_or_else(PoisonError::into_inner);
        (!flow.over).then(|| flow.left.min(CHUNK as u64) as usize)
    }

    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; CHUNK];
        while let Some(room) = self.room() {
            match from.read(&mut bytes[..room]) {
                Ok(n) if n > 0 && to.write_all(&bytes[..n]).is_ok() => self.with(|flow| {
                    flow.passed += n as u64;
                    if flow.left != u64::MAX {
                        flow.left = flow.left.saturating_sub(n as u64);
                    }
                }),
                _ => break,
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
        self.with(|flow| flow.over = true);
    }
}

/// What a test holds in its hand: the two directions of one connection.
#[derive(Debug)]
pub(crate) struct Relay {
    addr: PeerAddr,
    up: Arc<Direction>,
    down: Arc<Direction>,
}

impl Relay {
    /// In front of this address; whoever connects to the relay's own is passed on, once.
    pub(crate) fn before(victim: PeerAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("its number").into();
        let (up, down) = (Direction::new(), Direction::new());
        let (there, back) = (Arc::clone(&up), Arc::clone(&down));
        std::thread::spawn(move || {
            let (near, _) = listener.accept().expect("the liar connects");
            let to = victim.socket_addr().expect("tcp");
            let far = TcpStream::connect(to).expect("the victim listens");
            for stream in [&near, &far] {
                stream.set_nodelay(true).expect("a socket");
            }
            let returns = (
                far.try_clone().expect("a socket"),
                near.try_clone().expect("a socket"),
            );
            std::thread::spawn(move || back.pass_on(returns.0, returns.1));
            there.pass_on(near, far);
        });
        Self { addr, up, down }
    }

    pub(crate) fn addr(&self) -> PeerAddr {
        self.addr
    }

    /// So many more bytes pass from the liar to the victim, and then none. A read that has begun
    /// may pass a chunk more.
    pub(crate) fn hold_up_after(&self, bytes: u64) {
        self.up.with(|flow| flow.left = bytes);
    }

    /// The same from the victim to the liar.
    pub(crate) fn hold_down_after(&self, bytes: u64) {
        self.down.with(|flow| flow.left = bytes);
    }

    /// Nothing passes to the victim any more, for now.
    pub(crate) fn up_is_held(&self) -> bool {
        self.up.with(|flow| flow.left == 0)
    }

    pub(crate) fn down_is_held(&self) -> bool {
        self.down.with(|flow| flow.left == 0)
    }

    /// Everything passes from now on.
    pub(crate) fn open(&self) {
        self.up.with(|flow| flow.left = u64::MAX);
        self.down.with(|flow| flow.left = u64::MAX);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.up.with(|flow| flow.over = true);
        self.down.with(|flow| flow.over = true);
    }
}
