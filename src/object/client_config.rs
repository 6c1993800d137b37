//! `ObjectClientConfig`: the settings of a client.

use std::time::Duration;

use crate::Error;
use crate::fabric::EndpointSettings;

/// How an [`ObjectClient`](crate::object::ObjectClient) behaves.
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `callback_bytes` | bytes that one callback is given at most | 1 GiB | at least 1 |
/// | `tokens` | tokens that stand at once | 4,096 | at least 1 |
/// | `quarantine` | how long a transfer waits for memory that is quarantined | 5 s | |
/// | `progress_thread` | a thread serves the endpoint while tokens stand | true | |
/// | `name` | what statistics call it | `client` | |
/// | `endpoint` | what the endpoint asks of the provider | | see [`EndpointSettings`] |
#[derive(Debug, Clone)]
pub struct ObjectClientConfig {
    pub(super) callback_bytes: u64,
    pub(super) tokens: usize,
    pub(super) quarantine: Duration,
    pub(super) progress_thread: bool,
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
    /// (but where the card does all by itself) while nobody calls [`ObjectClient::progress`](crate::object::ObjectClient::progress).
    #[must_use]
    pub fn progress_thread(mut self, has_one: bool) -> Self {
        self.progress_thread = has_one;
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
        let zero = |field| Error::Config {
            field,
            value: "0".to_owned(),
            reason: "must be at least 1".into(),
        };
        match (self.callback_bytes, self.tokens) {
            (0, _) => Err(zero("callback_bytes")),
            (_, 0) => Err(zero("tokens")),
            _ => Ok(()),
        }
    }
}
