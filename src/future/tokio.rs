//! `TokioReactor`: wakes the futures of endpoints by a tokio runtime (feature `tokio`).

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::time::Sleep;

use super::reactor::{EndpointFds, Reactor, Watch};

/// Watches endpoints by a tokio runtime, which must have its I/O and its time enabled
/// (`enable_all`).
///
/// The futures of such an endpoint may be polled by any executor; they are woken as long as that
/// runtime runs, and polling one that waits after the runtime has ended panics, as tokio's own
/// timers do.
///
/// ```
/// use fabricast::endpoint::SendConfig;
/// use fabricast::future::{AsyncSendEndpoint, TokioReactor};
/// use fabricast::{Error, Fabric, SendEndpointZeroCopy};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
/// let sender =
///     SendEndpointZeroCopy::connect(&domain, "127.0.0.1:1".parse()?, SendConfig::default())?;
/// let sender = AsyncSendEndpoint::new(sender, &TokioReactor::current())?;
/// tokio::spawn(sender.driver());
/// // Nobody listens there.
/// assert!(matches!(sender.connected().await, Err(Error::NotConnected { .. })));
/// # Ok::<(), Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokioReactor {
    handle: Handle,
}

impl TokioReactor {
    /// Of the runtime that the calling code runs in.
    ///
    /// # Panics
    ///
    /// Outside of a runtime. An endpoint that is made with it panics when the runtime lacks I/O or
    /// time.
    pub fn current() -> Self {
        Self::new(Handle::current())
    }

    /// Of this runtime.
    pub fn new(handle: Handle) -> Self {
        Self { handle }
    }
}

impl Reactor for TokioReactor {
    fn watch(&self, fds: EndpointFds) -> io::Result<Box<dyn Watch>> {
        let _in_runtime = self.handle.enter();
        let numbers: Vec<RawFd> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
        let watched = numbers.into_iter().map(|fd| {
            let fd = WatchedFd {
                fd,
                _open: fds.clone(),
            };
            register(fd)
        });
        Ok(Box::new(TokioWatch {
            watched: watched.collect::<io::Result<_>>()?,
            fds,
            sleep: None,
            handle: self.handle.clone(),
        }))
    }
}

/// A descriptor that stays open while tokio has it: a number that was closed and used again would
/// be another's.
struct WatchedFd {
    fd: RawFd,
    _open: EndpointFds,
}

impl AsRawFd for WatchedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}

#[allow(
    deprecated,
    reason = "works with every tokio 1; what the unsafe call of newer ones asks for, `WatchedFd` \
        keeps"
)]
fn register(fd: WatchedFd) -> io::Result<AsyncFd<WatchedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

struct TokioWatch {
    watched: Vec<AsyncFd<WatchedFd>>,
    fds: EndpointFds,
    sleep: Option<Pin<Box<Sleep>>>,
    handle: Handle,
}

impl TokioWatch {
    /// Leaves the waker at each descriptor. False: tokio says that there may be more; it is asked
    /// again later.
    fn leave_waker(&self, cx: &mut Context<'_>) -> bool {
        // What tokio remembers is an edge that the endpoint may have served long ago. Clearing it
        // and asking once more leaves the waker for the next edge, except when one comes in that
        // very moment.
        self.watched.iter().all(|fd| {
            (0..2).any(|_| match fd.poll_read_ready(cx) {
                Poll::Ready(Ok(mut guard)) => {
                    guard.clear_ready();
                    false
                }
                // The runtime shuts down and wakes nobody any more.
                Poll::Ready(Err(_)) | Poll::Pending => true,
            })
        })
    }

    /// Leaves the waker at the timer; true when the time is over.
    fn poll_time(&mut self, cx: &mut Context<'_>, until: Instant) -> bool {
        if until <= Instant::now() {
            return true;
        }
        let at = tokio::time::Instant::from_std(until);
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        // A timer that comes earlier is left as it is: setting it anew for each wait costs more
        // than one wake-up too many.
        if sleep.is_elapsed() || sleep.deadline() > at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(cx).is_ready()
    }
}

impl Watch for TokioWatch {
    fn poll_ready(&mut self, cx: &mut Context<'_>, until: Instant) -> Poll<()> {
        let handle = self.handle.clone();
        let _in_runtime = handle.enter();
        // First the wakers, then the look: what comes in between is seen by the one or tells the
        // other.
        let left = self.leave_waker(cx);
        if self.poll_time(cx, until) || !left || self.fds.any_readable().unwrap_or(true) {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl fmt::Debug for TokioWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioWatch")
            .field("fds", &self.fds)
            .finish_non_exhaustive()
    }
}
