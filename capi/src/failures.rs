//! What the errors of windows, peers, small messages, subscriptions, rings and CUDA are for C.

use fabricast::buffer::RingError;
use fabricast::coalesce::FormatError;
use fabricast::cuda::CudaError;
use fabricast::endpoint::{PeerError, PushError, SubscribeError, WindowError};

use crate::status::{
    FCAST_AGAIN, FCAST_BUSY, FCAST_CLOSED, FCAST_DATA, FCAST_DEVICE, FCAST_FABRIC, FCAST_FORKED,
    FCAST_INVALID, FCAST_NO_RESOURCES, FCAST_NOT_FOUND, FCAST_TOO_LONG, FCAST_UNSUPPORTED, Failure,
    again,
};

impl From<WindowError> for Failure {
    #[cold]
    fn from(error: WindowError) -> Self {
        let (status, errno) = match &error {
            WindowError::Unsupported
            | WindowError::PeerWithoutWindows
            | WindowError::NoImmediateData { .. }
            | WindowError::NotDirect { .. } => (FCAST_UNSUPPORTED, 0),
            WindowError::NotConnected | WindowError::Revoked => (FCAST_CLOSED, 0),
            WindowError::TooManyWindows { .. } | WindowError::Register(_) => {
                (FCAST_NO_RESOURCES, 0)
            }
            WindowError::Forked(_) => (FCAST_FORKED, 0),
            WindowError::Fabric { errno, .. } => (FCAST_FABRIC, errno.get()),
            // Another connection's, a right that is not given, beyond the window, no byte.
            _ => (FCAST_INVALID, 0),
        };
        Self::new(status, error.to_string()).with_errno(errno)
    }
}

impl From<PeerError> for Failure {
    #[cold]
    fn from(error: PeerError) -> Self {
        let (status, errno) = match &error {
            PeerError::Unknown => (FCAST_NOT_FOUND, 0),
            PeerError::InUse(_) => (FCAST_BUSY, 0),
            PeerError::Forked(_) => (FCAST_FORKED, 0),
            PeerError::TooMany { .. } | PeerError::NoReceiveBuffers { .. } => {
                (FCAST_NO_RESOURCES, 0)
            }
            PeerError::Fabric { errno, .. } => (FCAST_FABRIC, errno.get()),
            _ => (FCAST_INVALID, 0),
        };
        Self::new(status, error.to_string()).with_errno(errno)
    }
}

impl From<PushError> for Failure {
    #[cold]
    fn from(error: PushError) -> Self {
        let status = match &error {
            // Often, and at once again: no text is made before it is asked for.
            PushError::WouldBlock(blocked) => return Self::new(FCAST_AGAIN, again(*blocked)),
            PushError::TooLong { .. } => FCAST_TOO_LONG,
            PushError::NoSubscribers { .. } => FCAST_NOT_FOUND,
            PushError::Closing | PushError::Closed(_) => FCAST_CLOSED,
            PushError::Forked(_) => FCAST_FORKED,
            _ => FCAST_INVALID,
        };
        Self::new(status, error.to_string())
    }
}

impl From<SubscribeError> for Failure {
    #[cold]
    fn from(error: SubscribeError) -> Self {
        let status = match &error {
            SubscribeError::NoPublisher | SubscribeError::NotSubscribed => FCAST_NOT_FOUND,
            SubscribeError::Leaving => FCAST_AGAIN,
            SubscribeError::TooMany { .. } => FCAST_NO_RESOURCES,
            SubscribeError::Forked(_) => FCAST_FORKED,
            _ => FCAST_INVALID,
        };
        Self::new(status, error.to_string())
    }
}

impl From<RingError> for Failure {
    #[cold]
    fn from(error: RingError) -> Self {
        match error {
            RingError::Full { .. } => Self::new(
                FCAST_AGAIN,
                "would block: the ring has not so many bytes free; the oldest are still out",
            ),
            RingError::TooManyFragments { .. } => Self::new(
                FCAST_AGAIN,
                "would block: as many fragments are out as max_fragments allows",
            ),
            error => Self::new(FCAST_TOO_LONG, error.to_string()),
        }
    }
}

impl From<FormatError> for Failure {
    #[cold]
    fn from(error: FormatError) -> Self {
        Self::new(FCAST_DATA, error.to_string())
    }
}

impl From<CudaError> for Failure {
    #[cold]
    fn from(error: CudaError) -> Self {
        Self::new(FCAST_DEVICE, error.to_string())
    }
}
