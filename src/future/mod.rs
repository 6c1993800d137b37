//! Endpoints as futures and streams, for any runtime or none.
//!
//! ```text
//!  AsyncSendEndpoint ── send ─► Sending         Events: Stream of events, or messages
//!          └── whichever future is polled drives the endpoint ─┘
//!                           │ nothing to do: wait
//!                Reactor ── Watch: descriptors, and a time
//!                   Executor (no runtime), TokioReactor, or yours
//! ```
//!
//! It is an adapter: the endpoints do the work, and are faster where every hundred nanoseconds
//! count: here each send takes a lock or two. The lock is held for one poll of the endpoint, never
//! while code of others runs (wakers, reactors, the drop of a payload), never across an `await`.
//!
//! # Waking
//!
//! Before a task waits, `fi_trywait` (fi_poll.3) is asked and then a [`Watch`]; it reports a
//! descriptor of the endpoint that is readable, or that the endpoint's next deadline is there. An
//! endpoint without descriptors is polled every millisecond while somebody waits, and any endpoint
//! once a second. Nobody waits: nothing is polled.
//!
//! # Cancelling
//!
//! Dropping a future is always safe, and takes nothing back that was posted: the buffer stays with
//! the endpoint until the network is done with it, and then goes back to its pool. See
//! [`AsyncSendEndpoint::send`].
//!
//! What it does not do: it starts no thread and no task, it keeps no queue (what waits is in the
//! futures that you hold), and it sets no deadline but the endpoint's own.
//!
//! Start with [`AsyncSendEndpoint`] and [`Events`], which have examples.

mod after;
mod driver;
mod error;
mod events;
mod executor;
mod posted;
mod reactor;
mod send;
mod send_engine;
mod sending;
#[cfg(feature = "tokio")]
mod tokio;
mod unread;
mod waiters;
mod work;

#[cfg(feature = "tokio")]
pub use self::tokio::TokioReactor;
pub use error::{Failed, SendFailure};
pub use events::{EventSource, Events, Messages};
pub use executor::{Executor, ExecutorStats};
pub use reactor::{EndpointFds, Reactor, Watch};
pub use send::{AsyncSendEndpoint, AsyncWindows, Reading, Sending};
pub use send_engine::FutureStats;

/// For the tests of the endpoints over the fake link.
#[cfg(all(test, not(loom)))]
pub(crate) mod parts {
    pub(crate) use super::driver::Driver;
    pub(crate) use super::sending::{
        Handle, SendOn, close, closed, connected, connection_event, drive,
    };
    pub(crate) use super::work::Sender;
}
