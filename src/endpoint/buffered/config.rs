//! `BufferedConfig`: the settings of a buffered endpoint.

use std::fmt;
use std::time::Duration;

use crate::Error;
use crate::buffer::SharedBufferManager;
use crate::coalesce::Format;
use crate::endpoint::buffered::core::OnAbandoned;
use crate::endpoint::buffered::event::Carried;
use crate::endpoint::limits::{check_count, check_flush_interval, check_size};
use crate::endpoint::settings::{ConnectionSettings, OutgoingSettings, SettingsOf};

/// The settings of a [`SendEndpointBuffered`](crate::SendEndpointBuffered): those of its
/// [connection](ConnectionSettings), of [what goes out](OutgoingSettings), and its own:
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `format` | | `Compact` | |
/// | `buffers` | count | 32 | 1 to 65,536 |
/// | `buffer_size` | bytes | 65,536 | 64 to 1 GiB |
/// | `pool` | | one of its own, of the two above | |
/// | `flush_interval` | time | 1 ms | 1 µs to 1 h, or none |
/// | `waiting` | packed buffers that wait to be sent | 8 | 1 to 65,536 |
///
/// The peer's [`max_message`](crate::endpoint::IncomingSettings::max_message) should be at least
/// the buffer size; where it is less, less of each buffer is used.
///
/// A packed buffer has no header: its header mode is always
/// [`HeaderMode::Raw`](crate::endpoint::HeaderMode::Raw), and there are no header slots to set.
pub struct BufferedConfig {
    pub(super) connection: ConnectionSettings,
    pub(super) outgoing: OutgoingSettings,
    pub(super) format: Format,
    pub(super) buffers: u32,
    pub(super) buffer_size: usize,
    pub(super) pool: Option<SharedBufferManager>,
    pub(super) flush_interval: Option<Duration>,
    pub(super) waiting: u32,
    pub(super) on_abandoned: Option<OnAbandoned>,
}

impl Default for BufferedConfig {
    fn default() -> Self {
        Self {
            connection: ConnectionSettings::default(),
            outgoing: OutgoingSettings::default(),
            format: Format::Compact,
            buffers: 32,
            buffer_size: 64 * 1024,
            pool: None,
            flush_interval: Some(Duration::from_millis(1)),
            waiting: 8,
            on_abandoned: None,
        }
    }
}

impl BufferedConfig {
    /// How the connection is made, watched and ended.
    #[must_use]
    pub fn connection(
        mut self,
        set: impl FnOnce(ConnectionSettings) -> ConnectionSettings,
    ) -> Self {
        self.connection = set(self.connection);
        self
    }

    /// What goes out, and how.
    #[must_use]
    pub fn outgoing(mut self, set: impl FnOnce(OutgoingSettings) -> OutgoingSettings) -> Self {
        self.outgoing = set(self.outgoing);
        self
    }

    /// How small messages lie in a buffer. The receiver must be told the same.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// How many buffers the endpoint has.
    #[must_use]
    pub fn buffers(mut self, count: u32) -> Self {
        self.buffers = count;
        self
    }

    /// Bytes of a buffer.
    #[must_use]
    pub fn buffer_size(mut self, bytes: usize) -> Self {
        self.buffer_size = bytes;
        self
    }

    /// Buffers of this pool instead, shared with other endpoints; it is registered with the domain.
    /// `buffers` and `buffer_size` are its own.
    #[must_use]
    pub fn pool(mut self, pool: &SharedBufferManager) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// How long a message waits for others, counted from the first in its buffer; `None`: until the
    /// buffer is full or [`flush`](crate::SendEndpointBuffered::flush). It is kept as well as the
    /// endpoint is polled, and a sleeping loop wakes for it. While the peer or the provider takes
    /// nothing, it can't be kept, and buffers fill up instead.
    #[must_use]
    pub fn flush_interval(mut self, time: Option<Duration>) -> Self {
        self.flush_interval = time;
        self
    }

    /// How many packed buffers may wait for credits or for sends in flight; beyond, a push is
    /// refused.
    #[must_use]
    pub fn waiting(mut self, buffers: u32) -> Self {
        self.waiting = buffers;
        self
    }

    /// Called for each buffer, and for what is packed and not sent, when the endpoint is dropped
    /// before their outcome is known; from within the drop: a panic of it is logged, and goes no
    /// further.
    #[must_use]
    pub fn on_abandoned(mut self, hear: impl FnMut(Carried) + Send + 'static) -> Self {
        self.on_abandoned = Some(Box::new(hear));
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.connection.check(SettingsOf::Buffered)?;
        self.outgoing.check(SettingsOf::Buffered)?;
        let count = "must be 1 to 65536";
        check_count("buffers", self.buffers, 65_536, count)?;
        check_count("waiting", self.waiting, 65_536, count)?;
        let size = self
            .pool
            .as_ref()
            .map_or(self.buffer_size, SharedBufferManager::slot_size);
        check_size("buffer_size", size)?;
        check_flush_interval(self.flush_interval)
    }
}

impl fmt::Debug for BufferedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferedConfig")
            .field("format", &self.format)
            .field("buffers", &self.buffers)
            .field("buffer_size", &self.buffer_size)
            .field("flush_interval", &self.flush_interval)
            .field("waiting", &self.waiting)
            .field("outgoing", &self.outgoing)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Setting, compare};
    use crate::protocol::wire::HeaderMode;

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<BufferedConfig>] = &[
            Setting {
                name: "buffers",
                get: |c| c.buffers.into(),
                set: |c, v| c.buffers(v.count()),
            },
            Setting {
                name: "buffer_size",
                get: |c| c.buffer_size.into(),
                set: |c, v| c.buffer_size(v.bytes()),
            },
            Setting {
                name: "flush_interval",
                get: |c| c.flush_interval.into(),
                set: |c, v| c.flush_interval(v.limit()),
            },
            Setting {
                name: "waiting",
                get: |c| c.waiting.into(),
                set: |c, v| c.waiting(v.count()),
            },
        ];
        compare(
            include_str!("config.rs"),
            "BufferedConfig",
            settings,
            BufferedConfig::check,
        );
    }

    /// The ranges themselves are those of the groups' tables.
    #[test]
    fn its_groups_are_checked() {
        let refused = [
            (
                BufferedConfig::default().connection(|c| c.close_timeout(Duration::ZERO)),
                "close_timeout",
            ),
            (
                BufferedConfig::default().outgoing(|out| out.depth(0)),
                "depth",
            ),
            (
                BufferedConfig::default().outgoing(|out| out.header_mode(HeaderMode::Prefixed)),
                "header_mode",
            ),
        ];
        for (config, named) in refused {
            let error = config.check().expect_err(named).to_string();
            assert!(error.starts_with(&format!("setting {named} = ")), "{error}");
        }
    }
}
