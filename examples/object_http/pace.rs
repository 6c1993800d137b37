//! `Pace`: how long a connection has waited for its client.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// So many bytes are progress: who sends or reads them one by one is as slow as who does nothing.
const STEP: u64 = 16 << 10;

/// What a connection waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    /// The head of a request.
    Request = 1,
    /// More of a request's body.
    Body = 2,
    /// Room for more of a reply.
    Reader = 4,
}

/// Counts the time that a connection waited for its client since the last progress. The time that
/// the server itself takes does not count.
#[derive(Debug)]
pub(crate) struct Pace(Mutex<State>);

#[derive(Debug)]
struct State {
    /// A bit for each wait that there is now.
    waits: u8,
    /// When the waits of now began.
    since: Instant,
    /// How long those before took.
    waited: Duration,
    /// Bytes since the last progress.
    moved: u64,
}

impl Pace {
    /// Of a connection that was accepted now.
    pub(crate) fn new() -> Arc<Self> {
        Self::waiting(Wait::Request, Duration::ZERO)
    }

    /// Of one that has waited for so long already.
    pub(crate) fn waiting(wait: Wait, waited: Duration) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            waits: wait as u8,
            since: Instant::now(),
            waited,
            moved: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, wait: Wait) {
        let mut state = self.state();
        if state.waits == 0 {
            state.since = Instant::now();
        }
        state.waits |= wait as u8;
    }

    fn end(&self, wait: Wait) {
        let mut state = self.state();
        if state.waits == wait as u8 {
            let waited = state.since.elapsed();
            state.waited += waited;
        }
        state.waits &= !(wait as u8);
    }

    /// So many bytes came or went.
    pub(crate) fn moved(&self, bytes: usize) {
        let mut state = self.state();
        state.moved += bytes as u64;
        if state.moved >= STEP {
            state.renew();
        }
    }

    /// How long the client has been waited for since its last progress, and whether that is more
    /// than a wait for a request. `None`: it is not waited for now.
    pub(crate) fn waits(&self) -> Option<(Duration, bool)> {
        let state = self.state();
        let is_in_request = state.waits != Wait::Request as u8;
        (state.waits != 0).then(|| (state.waited + state.since.elapsed(), is_in_request))
    }

    /// Waits for a part of a body, not longer than until the client has been waited for so long in
    /// all. `None`: it has.
    pub(crate) async fn part<T>(
        &self,
        limit: Duration,
        part: impl Future<Output = T>,
    ) -> Option<T> {
        self.begin(Wait::Body);
        let waited = self.waits().map_or(Duration::ZERO, |(waited, _)| waited);
        let part = tokio::time::timeout(limit.saturating_sub(waited), part).await;
        self.end(Wait::Body);
        part.ok()
    }

    /// Ends when the client has been waited for so long.
    pub(crate) async fn exceeds(&self, limit: Duration) {
        loop {
            let waited = self.waits().map_or(Duration::ZERO, |(waited, _)| waited);
            if waited >= limit {
                return;
            }
            // While it is not waited for, it is looked at again and again.
            tokio::time::sleep(limit - waited).await;
        }
    }

    /// A request has come. It is over when what this returns is dropped.
    pub(crate) fn answering(self: &Arc<Self>) -> Answering {
        self.state().renew();
        self.end(Wait::Request);
        Answering(Arc::clone(self))
    }
}

impl State {
    fn renew(&mut self) {
        (self.since, self.waited, self.moved) = (Instant::now(), Duration::ZERO, 0);
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Answering(Arc<Pace>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.state().renew();
        self.0.begin(Wait::Request);
    }
}

/// A reply's body, at whose end its request is over.
pub(crate) struct PacedBody<B> {
    pub(crate) body: B,
    pub(crate) _request: Answering,
}

impl<B: Body<Data = Bytes> + Unpin> Body for PacedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection whose writes are watched.
pub(crate) struct PacedStream {
    pub(crate) stream: TcpStream,
    pub(crate) pace: Arc<Pace>,
}

impl PacedStream {
    fn written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_pending() {
            self.pace.begin(Wait::Reader);
        }
        let written = ready!(written);
        self.pace.end(Wait::Reader);
        if let Ok(bytes) = written {
            self.pace.moved(bytes);
        }
        Poll::Ready(written)
    }
}

impl AsyncRead for PacedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for PacedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        runs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, runs);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
