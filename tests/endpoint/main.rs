//! Endpoints over real providers: messages of every shape and length, connections from their
//! beginning to their end, publishing, futures; and two versions of libfabric that talk to each
//! other.

#[path = "../common/mod.rs"]
mod common;
mod connectionless;
mod ended;
mod endpoints;
mod far;
mod future;
#[cfg(feature = "tokio")]
mod future_tokio;
mod hooked;
mod lifecycle;
mod long;
mod mixed;
mod named;
#[path = "../common/namespaces.rs"]
mod namespaces;
mod packed;
mod publish;
mod publish_buffered;
mod shapes;
mod shared_receives;
mod words;
