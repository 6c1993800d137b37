//! Every interleaving of futures on several threads and the reactor (loom): a wake-up that is lost
//! is reported as a deadlock.

use std::future::Future;
use std::os::fd::RawFd;
use std::pin::{Pin, pin};

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc as LoomArc, Condvar, Mutex};
use loom::thread;
use smallvec::SmallVec;

use super::super::sending::{SendOn, connected};
use super::*;
use crate::buffer::Payload;
use crate::endpoint::{
    CloseReason, ConnectionEvent, ConnectionInfo, Destination, HeaderMode, Refused, SendErrorKind,
    SendEvent, WindowPlace,
};
use crate::error::Error;
use crate::fabric::Shape;
use crate::stats::SendStats;

/// A network that does one thing, once: it connects, and all that was posted by then is done.
#[derive(Debug)]
struct Net {
    happened: AtomicBool,
    /// The endpoint was polled since.
    seen: AtomicBool,
    armed: Mutex<Option<Waker>>,
}

impl Net {
    fn new() -> LoomArc<Self> {
        LoomArc::new(Self {
            happened: AtomicBool::new(false),
            seen: AtomicBool::new(false),
            armed: Mutex::new(None),
        })
    }

    fn is_quiet(&self) -> bool {
        !self.happened.load(Ordering::SeqCst) || self.seen.load(Ordering::SeqCst)
    }

    /// What the reactor's thread does: the descriptor becomes readable, and whoever waits for that
    /// is called.
    fn happen(&self) {
        self.happened.store(true, Ordering::SeqCst);
        let waker = self.armed.lock().unwrap().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The endpoint, the wait source and the reactor of that network.
#[derive(Clone, Debug)]
struct On(LoomArc<Net>);

struct One {
    net: LoomArc<Net>,
    connected: bool,
    posted: Option<u64>,
}

impl Sender for One {
    fn send_data(
        &mut self,
        _payload: Payload,
        _header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        self.posted = Some(key);
        Ok(())
    }

    fn write(
        &mut self,
        payload: Payload,
        _place: WindowPlace<'_>,
        _data: Option<u32>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        self.send_data(payload, &[], key)
    }

    fn read(
        &mut self,
        into: Destination,
        _place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), Refused<Destination>> {
        Err(Refused::new(SendErrorKind::Closing, into, key))
    }

    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error> {
        if !self.net.happened.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.net.seen.store(true, Ordering::SeqCst);
        if !std::mem::replace(&mut self.connected, true) {
            events.push(SendEvent::Connection(ConnectionEvent::Connected(info())));
        }
        let done = self.posted.take().map(|key| SendEvent::Completed {
            key,
            payload: Payload::empty(),
        });
        events.extend(done);
        Ok(())
    }

    fn begin_close(&mut self, _deadline: Instant) {}

    fn info(&self) -> Option<ConnectionInfo> {
        None
    }

    fn close_reason(&self) -> Option<CloseReason> {
        None
    }

    fn error_of_end(&self, reason: CloseReason) -> Error {
        Error::Closed(reason)
    }

    fn stats(&self) -> SendStats {
        SendStats::default()
    }
}

fn info() -> ConnectionInfo {
    ConnectionInfo {
        peer: None,
        peer_incarnation: 0,
        max_message: 0,
        credits: 0,
        header_mode: HeaderMode::Raw,
        shape: Shape::Iov,
        inject: 0,
        kernel_watch: crate::endpoint::KernelWatch::default(),
    }
}

impl WaitSource for On {
    fn fds(&self) -> SmallVec<[RawFd; 3]> {
        SmallVec::from_slice(&[0])
    }

    fn prepare_wait(&self) -> Result<bool, Error> {
        Ok(self.0.is_quiet())
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

impl Reactor for On {
    fn watch(&self, _fds: EndpointFds) -> std::io::Result<Box<dyn Watch>> {
        Ok(Box::new(self.clone()))
    }
}

impl Watch for On {
    /// As the trait asks of a reactor that knows edges only: the waker first, then the level.
    fn poll_ready(&mut self, cx: &mut Context<'_>, _until: Instant) -> Poll<()> {
        let old = self.0.armed.lock().unwrap().replace(cx.waker().clone());
        drop(old);
        match self.0.is_quiet() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

#[derive(Default)]
struct Parked {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.wake.notify_one();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let parked = Arc::new(Parked::default());
    let waker = Waker::from(Arc::clone(&parked));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut woken = parked.woken.lock().unwrap();
        while !std::mem::take(&mut *woken) {
            woken = parked.wake.wait(woken).unwrap();
        }
    }
}

fn driver(net: &LoomArc<Net>) -> Arc<Driver<One>> {
    let sender = One {
        net: LoomArc::clone(net),
        connected: false,
        posted: None,
    };
    let on = On(LoomArc::clone(net));
    Driver::new(sender, Arc::new(on.clone()), &on).expect("watched")
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(check);
}

fn reactor(net: &LoomArc<Net>) -> thread::JoinHandle<()> {
    let net = LoomArc::clone(net);
    thread::spawn(move || net.happen())
}

/// Breaks the circle of driver, watch and bell in the net, which loom would call a leak.
fn end(net: &Net) {
    let waker = net.armed.lock().unwrap().take();
    drop(waker);
}

#[test]
fn loom_hub_wakes_a_send_when_it_is_done() {
    model(|| {
        let net = Net::new();
        let driver = driver(&net);
        let reactor = reactor(&net);
        assert!(block_on(SendOn::new(&driver, Payload::empty(), b"")).is_ok());
        reactor.join().unwrap();
        end(&net);
    });
}

#[test]
fn loom_hub_wakes_everybody_whoever_turns() {
    model(|| {
        let net = Net::new();
        let driver = driver(&net);
        let reactor = reactor(&net);
        let other = {
            let driver = Arc::clone(&driver);
            thread::spawn(move || assert!(block_on(connected(driver)).is_ok()))
        };
        assert!(block_on(SendOn::new(&driver, Payload::empty(), b"")).is_ok());
        reactor.join().unwrap();
        other.join().unwrap();
        end(&net);
    });
}

#[test]
fn loom_hub_wakes_the_others_when_one_is_dropped() {
    model(|| {
        let net = Net::new();
        let driver = driver(&net);
        let reactor = reactor(&net);
        let other = {
            let driver = Arc::clone(&driver);
            thread::spawn(move || assert!(block_on(connected(driver)).is_ok()))
        };
        // Polled once, maybe the one that arms the watch or is woken to turn, and gone.
        let mut send = SendOn::new(&driver, Payload::empty(), b"");
        let _ = Pin::new(&mut send).poll(&mut Context::from_waker(Waker::noop()));
        drop(send);
        reactor.join().unwrap();
        other.join().unwrap();
        end(&net);
    });
}
