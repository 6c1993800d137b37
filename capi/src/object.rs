//! Objects: what the errors of their clients, servers and services are for C.

use fabricast::object::{
    EtagError, ObjectError, ObjectNameError, ObjectStatus, RemoteError, StoreError, TokenError,
    TransferCause, TransferErrorKind, TransferFailed,
};

use crate::status::{
    FCAST_AGAIN, FCAST_BUSY, FCAST_CLOSED, FCAST_DATA, FCAST_DEVICE, FCAST_FABRIC, FCAST_FORKED,
    FCAST_INVALID, FCAST_NO_RESOURCES, FCAST_NOT_FOUND, FCAST_NOT_REGISTERED, FCAST_OK,
    FCAST_REFUSED, FCAST_SYSTEM, FCAST_TIMED_OUT, FCAST_TOO_LONG, FCAST_UNSUPPORTED, Failure,
    fcast_status, status_of_close,
};

/// A GET: a server writes an object, or a part of one, into memory that was lent.
pub const FCAST_OBJECT_GET: u32 = 1;
/// A PUT: a server reads an object, or a part of one, from memory that was lent.
pub const FCAST_OBJECT_PUT: u32 = 2;

impl From<ObjectError> for Failure {
    #[cold]
    fn from(error: ObjectError) -> Self {
        Self::of_object(&error)
    }
}

impl Failure {
    #[cold]
    fn of_object(error: &ObjectError) -> Self {
        let status = match error {
            ObjectError::Quarantined | ObjectError::StagingBusy { .. } => FCAST_AGAIN,
            ObjectError::TooManyTokens { .. }
            | ObjectError::Staging(_)
            | ObjectError::Register(_) => FCAST_NO_RESOURCES,
            ObjectError::NotCopied | ObjectError::NotDirect { .. } => FCAST_UNSUPPORTED,
            ObjectError::Copy(_) => FCAST_DEVICE,
            ObjectError::Endpoint(error) => return Self::of(error),
            ObjectError::Forked(_) => FCAST_FORKED,
            _ => FCAST_INVALID,
        };
        Self::new(status, error.to_string())
    }
}

impl From<TransferFailed> for Failure {
    #[cold]
    fn from(failed: TransferFailed) -> Self {
        let status = match &failed.cause {
            TransferCause::Object(error) => Self::of_object(error).status,
            TransferCause::Callback(_) => FCAST_CLOSED,
            TransferCause::Device(_) => FCAST_DEVICE,
            _ => FCAST_INVALID,
        };
        Self::new(status, failed.to_string())
    }
}

impl From<TransferErrorKind> for Failure {
    #[cold]
    fn from(kind: TransferErrorKind) -> Self {
        let (status, errno) = match &kind {
            kind if kind.is_would_block() => (FCAST_AGAIN, 0),
            TransferErrorKind::Key { .. } | TransferErrorKind::Provider { .. } => {
                (FCAST_UNSUPPORTED, 0)
            }
            TransferErrorKind::Peer { .. } | TransferErrorKind::Network { .. } => {
                (FCAST_REFUSED, 0)
            }
            TransferErrorKind::NotRegistered { .. }
            | TransferErrorKind::ForeignBuffer { .. }
            | TransferErrorKind::NotStaged { .. } => (FCAST_NOT_REGISTERED, 0),
            TransferErrorKind::Budget { .. } | TransferErrorKind::Deadline => (FCAST_TIMED_OUT, 0),
            TransferErrorKind::Endpoint { .. } => (FCAST_NO_RESOURCES, 0),
            TransferErrorKind::Contact { .. } => (FCAST_NOT_FOUND, 0),
            TransferErrorKind::Fabric { errno, .. } => (FCAST_FABRIC, errno.get()),
            TransferErrorKind::Completion(error) => (FCAST_FABRIC, error.errno.get()),
            TransferErrorKind::Reset | TransferErrorKind::Closed => (FCAST_CLOSED, 0),
            TransferErrorKind::Forked(_) => (FCAST_FORKED, 0),
            _ => (FCAST_INVALID, 0),
        };
        let mut failure = Self::new(status, kind.to_string());
        failure.errno = errno;
        failure
    }
}

impl From<RemoteError> for Failure {
    #[cold]
    fn from(error: RemoteError) -> Self {
        let text = error.to_string();
        let status = match error {
            RemoteError::Refused { status, .. } => of_service(status),
            RemoteError::Checksum { .. } => FCAST_DATA,
            RemoteError::TimedOut { .. } => FCAST_TIMED_OUT,
            RemoteError::Closed(Some(reason)) => match status_of_close(&reason) {
                FCAST_OK => FCAST_CLOSED,
                status => status,
            },
            RemoteError::Name(_) => FCAST_INVALID,
            RemoteError::Memory(error) => return error.into(),
            RemoteError::Transfer(failed) => return failed.into(),
            RemoteError::Endpoint(error) => return error.into(),
            _ => FCAST_CLOSED,
        };
        Self::new(status, text)
    }
}

/// Why a service did not do it.
fn of_service(status: ObjectStatus) -> fcast_status {
    match status {
        ObjectStatus::UNSUPPORTED => FCAST_UNSUPPORTED,
        ObjectStatus::NOT_FOUND => FCAST_NOT_FOUND,
        ObjectStatus::EXISTS | ObjectStatus::ETAG_MISMATCH | ObjectStatus::DENIED => FCAST_REFUSED,
        ObjectStatus::TIMED_OUT => FCAST_TIMED_OUT,
        ObjectStatus::BUSY => FCAST_AGAIN,
        ObjectStatus::TOO_LARGE => FCAST_TOO_LONG,
        ObjectStatus::NO_SPACE => FCAST_NO_RESOURCES,
        ObjectStatus::STORE => FCAST_SYSTEM,
        ObjectStatus::DAMAGED | ObjectStatus::CHANGED => FCAST_DATA,
        ObjectStatus::TRANSFER | ObjectStatus::CLOSING | ObjectStatus::CANCELLED => FCAST_CLOSED,
        _ => FCAST_INVALID,
    }
}

impl From<StoreError> for Failure {
    #[cold]
    fn from(error: StoreError) -> Self {
        let status = match &error {
            StoreError::NotFound => FCAST_NOT_FOUND,
            StoreError::Denied => FCAST_REFUSED,
            StoreError::NoSpace => FCAST_NO_RESOURCES,
            StoreError::Busy => FCAST_BUSY,
            StoreError::Failed(_) => FCAST_SYSTEM,
            _ => FCAST_INVALID,
        };
        Self::new(status, error.to_string())
    }
}

impl From<TokenError> for Failure {
    #[cold]
    fn from(error: TokenError) -> Self {
        Self::new(FCAST_INVALID, format!("token: {error}"))
    }
}

impl From<EtagError> for Failure {
    #[cold]
    fn from(error: EtagError) -> Self {
        Self::new(FCAST_INVALID, error.to_string())
    }
}

impl From<ObjectNameError> for Failure {
    #[cold]
    fn from(error: ObjectNameError) -> Self {
        Self::new(FCAST_INVALID, error.to_string())
    }
}
