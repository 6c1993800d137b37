//! `Job`: one request that is being served.

use std::sync::Arc;
use std::time::Instant;

use crate::endpoint::ConnectionId;
use crate::object::service::account::Place;
use crate::object::service::get_job::GetJob;
use crate::object::service::put_job::PutJob;
use crate::object::store::{ObjectNameError, StoreError};
use crate::object::wire::ObjectStatus;
use crate::object::{TokenError, TransferErrorKind};

/// One request that is being served.
pub(super) struct Job {
    pub(super) connection: ConnectionId,
    /// What it counts by, with what the store is asked for it.
    pub(super) place: Arc<Place>,
    /// The client's number for it.
    pub(super) id: u64,
    /// The kind of the request, as the answer says it.
    pub(super) kind: u8,
    /// By when it is over.
    pub(super) by: Instant,
    /// When something of it was done last.
    pub(super) moved_at: Instant,
    /// Since when it has waited for a buffer, without any: that is not its own fault.
    pub(super) waits_since: Option<Instant>,
    pub(super) work: JobWork,
}

pub(super) enum JobWork {
    /// The store is asked, and its answer is the client's.
    Asked,
    Get(Box<GetJob>),
    Put(Box<PutJob>),
}

impl Job {
    /// Whether pieces are what it waits for, and not one answer of the store's.
    pub(super) fn is_moving(&self) -> bool {
        match &self.work {
            JobWork::Asked => false,
            JobWork::Get(get) => get.object.is_some(),
            JobWork::Put(put) => put.upload.is_some(),
        }
    }

    /// Bytes that may have been moved.
    pub(super) fn moved(&self) -> u64 {
        match &self.work {
            JobWork::Asked => 0,
            JobWork::Get(get) => get.walk.moved,
            JobWork::Put(put) => put.walk.moved,
        }
    }
}

/// Why a request is not done: what the client is told.
#[derive(Debug)]
pub(super) struct JobFailure {
    pub(super) status: ObjectStatus,
    pub(super) text: String,
}

impl JobFailure {
    pub(super) fn new(status: ObjectStatus, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { status, text }
    }

    pub(super) fn timed_out() -> Self {
        let text = "nothing was done for too long, or all of it took longer than it was given";
        Self::new(ObjectStatus::TIMED_OUT, text)
    }

    pub(super) fn no_buffer() -> Self {
        let text = "no memory was free for it for too long: wait, and ask again";
        Self::new(ObjectStatus::BUSY, text)
    }

    pub(super) fn malformed(text: &str) -> Self {
        Self::new(ObjectStatus::MALFORMED, text)
    }
}

impl From<StoreError> for JobFailure {
    fn from(error: StoreError) -> Self {
        let status = match &error {
            StoreError::NotFound | StoreError::NotAnObject => ObjectStatus::NOT_FOUND,
            StoreError::Exists => ObjectStatus::EXISTS,
            StoreError::EtagMismatch { .. } => ObjectStatus::ETAG_MISMATCH,
            StoreError::Name(_) | StoreError::NamePart | StoreError::NameTaken => {
                ObjectStatus::NAME
            }
            StoreError::Denied => ObjectStatus::DENIED,
            StoreError::TooLarge { .. } => ObjectStatus::TOO_LARGE,
            StoreError::NoSpace => ObjectStatus::NO_SPACE,
            StoreError::Changed => ObjectStatus::CHANGED,
            StoreError::Busy | StoreError::UploadTaken => ObjectStatus::BUSY,
            StoreError::Lost | StoreError::Failed(_) => {
                // What it says may name files: it is for the log, and for no client.
                tracing::warn!(%error, "a store failed");
                return Self::new(ObjectStatus::STORE, "the store failed: its log says more");
            }
        };
        Self::new(status, error.to_string())
    }
}

impl From<ObjectNameError> for JobFailure {
    fn from(error: ObjectNameError) -> Self {
        Self::new(ObjectStatus::NAME, error.to_string())
    }
}

impl From<TokenError> for JobFailure {
    fn from(error: TokenError) -> Self {
        Self::new(ObjectStatus::TOKEN, error.to_string())
    }
}

impl From<&TransferErrorKind> for JobFailure {
    fn from(kind: &TransferErrorKind) -> Self {
        let status = match kind {
            TransferErrorKind::Provider { .. }
            | TransferErrorKind::Name { .. }
            | TransferErrorKind::Peer { .. }
            | TransferErrorKind::Network { .. }
            | TransferErrorKind::OutOfRange { .. }
            | TransferErrorKind::Key { .. } => ObjectStatus::TOKEN,
            TransferErrorKind::Deadline | TransferErrorKind::Budget { .. } => {
                ObjectStatus::TIMED_OUT
            }
            TransferErrorKind::Closed => ObjectStatus::CLOSING,
            _ => ObjectStatus::TRANSFER,
        };
        Self::new(status, kind.to_string())
    }
}
