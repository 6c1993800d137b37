//! `ObjectServiceConfig`: the settings of a service.

use std::time::Duration;

use crate::Error;
use crate::endpoint::limits::{check_count, check_range};
use crate::object::ObjectServerConfig;

/// The settings of an [`ObjectService`](super::ObjectService):
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `workers` | threads that move bytes, each with an address of its own | 1 | 1 to 64 |
/// | `store_threads` | threads of a worker that wait for the store | 2 | 1 to 64 |
/// | `piece_bytes` | bytes that are moved at once | 1 MiB | 4 KiB to 1 GiB |
/// | `buffers` | pieces that a worker has memory for | 32 | 4 to 65,536 |
/// | `pieces` | pieces of one request that are under way at once | 4 | 1 to 1,024 |
/// | `connections` | connections of a worker; of one host, three fourths | 64 | 1 to 4,096 |
/// | `connection_requests` | requests of a connection at once | 16 | 1 to 1,024 |
/// | `requests` | requests of a worker at once | 256 | 1 to 65,536 |
/// | `stall` | how long a request may go without a piece being done | 10 s | 10 ms to 1 h |
/// | `budget` | how long a request may take | 1 h | 10 ms to 24 h |
/// | `page` | objects in a part of a list | 1,000 | 1 to 100,000 |
/// | `lost_after` | how long a client may be silent | 30 s | 100 ms to 1 h |
/// | `server` | of the channels that move bytes | | see [`ObjectServerConfig`] |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectServiceConfig {
    pub(super) workers: u32,
    pub(super) store_threads: u32,
    pub(super) piece_bytes: usize,
    pub(super) buffers: u32,
    pub(super) pieces: u32,
    pub(super) connections: u32,
    pub(super) connection_requests: u32,
    pub(super) requests: u32,
    pub(super) stall: Duration,
    pub(super) budget: Duration,
    pub(super) page: usize,
    pub(super) lost_after: Duration,
    pub(super) server: ObjectServerConfig,
}

impl Default for ObjectServiceConfig {
    fn default() -> Self {
        Self {
            workers: 1,
            store_threads: 2,
            piece_bytes: 1 << 20,
            buffers: 32,
            pieces: 4,
            connections: 64,
            connection_requests: 16,
            requests: 256,
            stall: Duration::from_secs(10),
            budget: Duration::from_secs(3600),
            page: 1000,
            lost_after: Duration::from_secs(30),
            server: ObjectServerConfig::default(),
        }
    }
}

impl ObjectServiceConfig {
    /// Threads that move bytes. Each has an address of its own: clients are to be spread over them.
    #[must_use]
    pub fn workers(mut self, threads: u32) -> Self {
        self.workers = threads;
        self
    }

    /// Threads of a worker that wait for the store, where the
    /// [store says](crate::object::ObjectStore::may_block) that it may block. Where there are
    /// several, one of them is kept free of lists.
    #[must_use]
    pub fn store_threads(mut self, threads: u32) -> Self {
        self.store_threads = threads;
        self
    }

    /// Bytes that are moved at once: of the buffers between the store and clients.
    #[must_use]
    pub fn piece_bytes(mut self, bytes: usize) -> Self {
        self.piece_bytes = bytes;
        self
    }

    /// Pieces that a worker has memory for. A client that does not answer holds some until it is
    /// cut off: [`ObjectService`](super::ObjectService) says how many. A request that gets none for
    /// twice as long as [`stall`](Self::stall) is answered with
    /// [`ObjectStatus::BUSY`](crate::object::ObjectStatus::BUSY).
    #[must_use]
    pub fn buffers(mut self, pieces: u32) -> Self {
        self.buffers = pieces;
        self
    }

    /// Pieces of one request that are under way at once.
    #[must_use]
    pub fn pieces(mut self, pieces: u32) -> Self {
        self.pieces = pieces;
        self
    }

    /// Connections of a worker. One host (of IPv6, one network of 64 bits) has at most three
    /// fourths of them, rounded up, and leaves at least one where there are several: one more is
    /// refused, and the refusal names that limit. Clients of providers whose addresses say no host
    /// (`shm`) share them as they come.
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Requests of a connection at once; one more is answered with
    /// [`ObjectStatus::BUSY`](crate::object::ObjectStatus::BUSY). As many objects may be half put.
    #[must_use]
    pub fn connection_requests(mut self, requests: u32) -> Self {
        self.connection_requests = requests;
        self
    }

    /// Requests of a worker at once; one more is answered as one of a connection. One for each of
    /// [`connections`](Self::connections), but at most half of all, is kept for connections that
    /// have none. A request that was given up counts until the store is done with it.
    #[must_use]
    pub fn requests(mut self, requests: u32) -> Self {
        self.requests = requests;
        self
    }

    /// How long a request may go without a piece being done. Then it is answered with
    /// [`ObjectStatus::TIMED_OUT`](crate::object::ObjectStatus::TIMED_OUT).
    #[must_use]
    pub fn stall(mut self, time: Duration) -> Self {
        self.stall = time;
        self
    }

    /// How long a request may take; a client may ask for less.
    #[must_use]
    pub fn budget(mut self, time: Duration) -> Self {
        self.budget = time;
        self
    }

    /// Objects in a part of a list; a part has at most 16 KiB besides.
    #[must_use]
    pub fn page(mut self, objects: usize) -> Self {
        self.page = objects;
        self
    }

    /// How long a client may be silent. Its connection lives by itself while it polls.
    #[must_use]
    pub fn lost_after(mut self, time: Duration) -> Self {
        self.lost_after = time;
        self
    }

    /// The settings of the channels that move bytes. Without
    /// [`ObjectServerConfig::clients`], a client's memory has to be where its requests come from.
    #[must_use]
    pub fn server(mut self, config: ObjectServerConfig) -> Self {
        self.server = config;
        self
    }

    /// Those that one host may have.
    pub(super) fn connections_of_host(&self) -> u32 {
        let kept = (self.connections / 4).max(1);
        self.connections.saturating_sub(kept).max(1)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let few = "must be 1 to 64 threads";
        let thousand = "must be 1 to 1,024";
        check_count("workers", self.workers, 64, few)?;
        check_count("store_threads", self.store_threads, 64, few)?;
        let pieces = "must be 4 to 65,536 pieces";
        check_range("buffers", self.buffers, 4..=65_536, pieces)?;
        check_count("pieces", self.pieces, 1024, thousand)?;
        check_count("connections", self.connections, 4096, "must be 1 to 4,096")?;
        let requests = self.connection_requests;
        check_count("connection_requests", requests, 1024, thousand)?;
        check_count("requests", self.requests, 65_536, "must be 1 to 65,536")?;
        let (bytes, page) = (4096..=1 << 30, 1..=100_000);
        check_range(
            "piece_bytes",
            self.piece_bytes,
            bytes,
            "must be 4 KiB to 1 GiB",
        )?;
        check_range("page", self.page, page, "must be 1 to 100,000 objects")?;
        self.check_times()
    }

    fn check_times(&self) -> Result<(), Error> {
        let (ms, hour) = (Duration::from_millis, Duration::from_secs(3600));
        check_range("stall", self.stall, ms(10)..=hour, "must be 10 ms to 1 h")?;
        check_range(
            "budget",
            self.budget,
            ms(10)..=24 * hour,
            "must be 10 ms to 24 h",
        )?;
        check_range(
            "lost_after",
            self.lost_after,
            ms(100)..=hour,
            "must be 100 ms to 1 h",
        )
    }
}
