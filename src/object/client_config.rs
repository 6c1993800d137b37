//! `ObjectClientConfig`: the settings of a client.

use std::time::Duration;

use crate::Error;
use crate::endpoint::limits::check_range;
use crate::fabric::EndpointSettings;

/// How an [`ObjectClient`](crate::object::ObjectClient) behaves.
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `callback_bytes` | bytes that one callback is given at most | 1 GiB | at least 1 |
/// | `tokens` | tokens that stand at once | 4,096 | at least 1 |
/// | `quarantine` | how long a transfer waits for memory that is quarantined | 5 s | |
/// | `progress_thread` | a thread serves the endpoint while tokens stand | true | |
/// | `staging_bytes` | bytes of one buffer that a device's memory passes | 8 MiB | at least 1 |
/// | `staging_buffers` | such buffers, each in use by one transfer | 4 | at least 1 |
/// | `name` | what statistics call it | `client` | |
/// | `endpoint` | what the endpoint asks of the provider | | see [`EndpointSettings`] |
#[derive(Debug, Clone)]
pub struct ObjectClientConfig {
    pub(super) callback_bytes: u64,
    pub(super) tokens: usize,
    pub(super) quarantine: Duration,
    pub(super) progress_thread: bool,
    pub(super) staging_bytes: usize,
    pub(super) staging_buffers: usize,
    pub(super) name: String,
    pub(super) endpoint: EndpointSettings,
}

impl Default for ObjectClientConfig {
    fn default() -> Self {
        Self {
            callback_bytes: 1 << 30,
            tokens: 4096,
            quarantine: Duration::from_secs(5),
            progress_thread: true,
            staging_bytes: 8 << 20,
            staging_buffers: 4,
            name: "client".to_owned(),
            endpoint: EndpointSettings::default(),
        }
    }
}

impl ObjectClientConfig {
    /// Bytes that one callback is given at most.
    #[must_use]
    pub fn callback_bytes(mut self, bytes: u64) -> Self {
        self.callback_bytes = bytes;
        self
    }

    /// Tokens that stand at once, of all memory together.
    #[must_use]
    pub fn tokens(mut self, tokens: usize) -> Self {
        self.tokens = tokens;
        self
    }

    /// How long a transfer waits until memory is not quarantined any more.
    #[must_use]
    pub fn quarantine(mut self, at_most: Duration) -> Self {
        self.quarantine = at_most;
        self
    }

    /// Whether a thread serves the endpoint while tokens stand. Without it, servers get nowhere
    /// (but where the card does all by itself) while nobody calls
    /// [`ObjectClient::progress`](crate::object::ObjectClient::progress).
    #[must_use]
    pub fn progress_thread(mut self, has_one: bool) -> Self {
        self.progress_thread = has_one;
        self
    }

    /// Bytes of one buffer of the host's that a device's memory passes where the provider can't
    /// reach it by itself ([`ObjectMemory::path`](crate::object::ObjectMemory::path)): a callback
    /// is given so many at most. It is pinned memory, made when it is needed first, and kept.
    #[must_use]
    pub fn staging_bytes(mut self, bytes: usize) -> Self {
        self.staging_bytes = bytes;
        self
    }

    /// How many of them there are at most: as many transfers can be under way at once. A further
    /// one waits as long as for memory that is [quarantined](Self::quarantine).
    #[must_use]
    pub fn staging_buffers(mut self, buffers: usize) -> Self {
        self.staging_buffers = buffers;
        self
    }

    /// What statistics call it ([`TelemetryReport`](crate::object::TelemetryReport)).
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// What the endpoint asks of the provider.
    #[must_use]
    pub fn endpoint(mut self, settings: EndpointSettings) -> Self {
        self.endpoint = settings;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let least = "must be at least 1";
        check_range("callback_bytes", self.callback_bytes, 1..=u64::MAX, least)?;
        check_range("tokens", self.tokens, 1..=usize::MAX, least)?;
        check_range("staging_bytes", self.staging_bytes, 1..=usize::MAX, least)?;
        check_range(
            "staging_buffers",
            self.staging_buffers,
            1..=usize::MAX,
            least,
        )
    }
}
