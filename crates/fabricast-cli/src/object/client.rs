//! A client of a server of objects, and how its errors end a command.

use std::time::{Duration, Instant};

use fabricast::PeerAddr;
use fabricast::object::{
    ObjectClient, ObjectClientConfig, ObjectEtag, ObjectStatus, RemoteConfig, RemoteError,
    RemoteObjects,
};

use super::args::ClientArgs;
use super::open_fabric;
use crate::failure::{End, Failure};
use crate::stream::local_address;

/// A client with its connection.
pub(crate) struct Connected {
    pub(crate) remote: RemoteObjects,
    timeout: Duration,
}

impl Connected {
    pub(crate) fn new(args: &ClientArgs, server: &PeerAddr) -> Result<Self, Failure> {
        let local = server.socket_addr().map(local_address).transpose()?;
        let fabric = open_fabric(&args.common, local)?;
        let client = ObjectClient::open(&fabric, ObjectClientConfig::default())?;
        let remote = RemoteObjects::connect(&client, &fabric, server, RemoteConfig::default());
        let remote = remote.map_err(|error| failed(&server.to_string(), &error))?;
        let timeout = Duration::from_secs(args.timeout);
        Ok(Self { remote, timeout })
    }

    /// By when the next object is to be done.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }
}

/// Why a command ends that asked this of a server.
pub(crate) fn failed(what: &str, error: &RemoteError) -> Failure {
    let end = match error {
        RemoteError::Refused { status, .. } => end_of(*status),
        RemoteError::TimedOut { .. } | RemoteError::Closed(_) => End::Unreachable,
        RemoteError::Name(_) => End::Usage,
        RemoteError::Wire(_) | RemoteError::Violation(_) => End::Refused,
        _ => End::Failed,
    };
    // A library's words are of its calls.
    let why = match error {
        RemoteError::Refused { status, text, .. } if text.is_empty() => status.to_string(),
        RemoteError::Refused { text, .. } => text.clone(),
        RemoteError::Closed(Some(reason)) => reason.to_string(),
        other => other.to_string(),
    };
    Failure::new(format!("{what}: {why}")).ends(end)
}

fn end_of(status: ObjectStatus) -> End {
    match status {
        ObjectStatus::NOT_FOUND => End::Absent,
        ObjectStatus::EXISTS | ObjectStatus::ETAG_MISMATCH | ObjectStatus::CHANGED => {
            End::Condition
        }
        ObjectStatus::NO_SPACE => End::Sink,
        ObjectStatus::TIMED_OUT | ObjectStatus::CLOSING => End::Unreachable,
        ObjectStatus::STORE | ObjectStatus::DAMAGED | ObjectStatus::CANCELLED => End::Failed,
        _ => End::Refused,
    }
}

/// An etag of a command line, with or without the quotes that HTTP has.
pub(crate) fn etag(text: &str) -> Result<ObjectEtag, Failure> {
    let plain = text.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    ObjectEtag::new(plain.unwrap_or(text))
        .map_err(|error| Failure::new(format!("{text}: {error}")).ends(End::Usage))
}
