//! `RemoteConfig`: the settings of a client of a service.

use std::time::Duration;

use crate::object::store::ChecksumKind;

/// The settings of a [`RemoteObjects`](super::RemoteObjects).
///
/// | setting | default |
/// |---|---|
/// | `checksum` | [`ChecksumKind::Crc64Nvme`] |
/// | `connect_timeout` | 10 s |
/// | `lost_after` | 30 s |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteConfig {
    pub(super) checksum: Option<ChecksumKind>,
    pub(super) connect_timeout: Duration,
    pub(super) lost_after: Duration,
}

impl Default for RemoteConfig {
    fn default() -> Self {
        Self {
            checksum: Some(ChecksumKind::default()),
            connect_timeout: Duration::from_secs(10),
            lost_after: Duration::from_secs(30),
        }
    }
}

impl RemoteConfig {
    /// Which checksum both sides compute; `None`: none.
    #[must_use]
    pub fn checksum(mut self, kind: Option<ChecksumKind>) -> Self {
        self.checksum = kind;
        self
    }

    /// How long a connection may take to be made.
    #[must_use]
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = time;
        self
    }

    /// How long the service may be silent.
    #[must_use]
    pub fn lost_after(mut self, time: Duration) -> Self {
        self.lost_after = time;
        self
    }
}
