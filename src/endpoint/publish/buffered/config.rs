//! `PublishBufferedConfig`: the settings of a buffered publisher.

use std::fmt;
use std::time::Duration;

use super::event::PublishedContent;
use crate::Error;
use crate::buffer::SharedBufferManager;
use crate::coalesce::Format;
use crate::endpoint::limits::{check_count, check_flush_interval, check_size, config};
use crate::endpoint::publish::PublishConfig;

/// Called with a tag, and what was in a publication of it that is not over.
pub(super) type OnUnpublished = Box<dyn FnMut(u64, PublishedContent) + Send>;

/// The settings of a [`PublishEndpointBuffered`](crate::PublishEndpointBuffered): those of [its
/// publisher](PublishConfig), and its own:
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `format` | | `Compact` | |
/// | `buffers` | count | 64 | 1 to 65,536 |
/// | `buffer_size` | bytes | 61,440 | 64 to 1 GiB |
/// | `pool` | | one of its own, of the two above | |
/// | `flush_interval` | time | 1 ms | 1 µs to 1 h, or none |
/// | `tags` | tags whose messages are being packed | 32 | 1 to 65,536 |
///
/// A subscriber's [`max_message`](crate::endpoint::IncomingSettings::max_message) has to be the
/// buffer size and 18 bytes at least, or full buffers are too long for it, and dropped for it.
pub struct PublishBufferedConfig {
    pub(super) publishing: PublishConfig,
    pub(super) format: Format,
    pub(super) buffers: u32,
    pub(super) buffer_size: usize,
    pub(super) pool: Option<SharedBufferManager>,
    pub(super) flush_interval: Option<Duration>,
    pub(super) tags: u32,
    pub(super) on_abandoned: Option<OnUnpublished>,
}

impl Default for PublishBufferedConfig {
    fn default() -> Self {
        Self {
            publishing: PublishConfig::default(),
            format: Format::Compact,
            buffers: 64,
            buffer_size: 60 * 1024,
            pool: None,
            flush_interval: Some(Duration::from_millis(1)),
            tags: 32,
            on_abandoned: None,
        }
    }
}

impl PublishBufferedConfig {
    /// How it publishes: connections, what goes out, slow subscribers.
    #[must_use]
    pub fn publishing(mut self, set: impl FnOnce(PublishConfig) -> PublishConfig) -> Self {
        self.publishing = set(self.publishing);
        self
    }

    /// How small messages lie in a buffer. Subscribers must be told the same.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// How many buffers the endpoint has. One is taken for each tag that is being packed, and each
    /// publication keeps its own until it is over for the last subscriber.
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

    /// Buffers of this pool instead, shared with others; it is registered with the domain.
    /// `buffers` and `buffer_size` are its own.
    #[must_use]
    pub fn pool(mut self, pool: &SharedBufferManager) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// How long a message waits for others of its tag, counted from the first in its buffer;
    /// `None`: until the buffer is full or
    /// [`flush`](crate::PublishEndpointBuffered::flush). It is kept as well as the endpoint is
    /// polled, and a sleeping loop wakes for it.
    #[must_use]
    pub fn flush_interval(mut self, interval: Option<Duration>) -> Self {
        self.flush_interval = interval;
        self
    }

    /// Tags whose messages are being packed at once; for one more, the buffer that began first
    /// leaves before its time.
    #[must_use]
    pub fn tags(mut self, tags: u32) -> Self {
        self.tags = tags;
        self
    }

    /// Called with what is not over when the endpoint is dropped, publications and messages that
    /// were only packed, from within the drop: a panic of it is logged, and goes no further. The
    /// publisher's own `on_abandoned` can't be set.
    #[must_use]
    pub fn on_abandoned(
        mut self,
        hear: impl FnMut(u64, PublishedContent) + Send + 'static,
    ) -> Self {
        self.on_abandoned = Some(Box::new(hear));
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.publishing.on_abandoned.is_some() {
            let reason = "is to be set by PublishBufferedConfig::on_abandoned";
            return Err(config(
                "on_abandoned",
                "of PublishConfig".to_owned(),
                reason,
            ));
        }
        let count = "must be 1 to 65536";
        check_count("buffers", self.buffers, 65_536, count)?;
        check_count("tags", self.tags, 65_536, count)?;
        let pool = self.pool.as_ref();
        let size = pool.map_or(self.buffer_size, SharedBufferManager::slot_size);
        check_size("buffer_size", size)?;
        check_flush_interval(self.flush_interval)
    }
}

impl fmt::Debug for PublishBufferedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishBufferedConfig")
            .field("publishing", &self.publishing)
            .field("format", &self.format)
            .field("buffers", &self.buffers)
            .field("buffer_size", &self.buffer_size)
            .field("flush_interval", &self.flush_interval)
            .field("tags", &self.tags)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Setting, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<PublishBufferedConfig>] = &[
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
                name: "tags",
                get: |c| c.tags.into(),
                set: |c, v| c.tags(v.count()),
            },
        ];
        compare(
            include_str!("config.rs"),
            "PublishBufferedConfig",
            settings,
            PublishBufferedConfig::check,
        );
    }

    #[test]
    fn the_hook_of_the_publisher_is_refused_by_name() {
        let config = PublishBufferedConfig::default().publishing(|p| p.on_abandoned(|_| {}));
        let error = config.check().expect_err("it would hear numbers of ours");
        assert!(
            matches!(error, Error::Config { field, .. } if field == "on_abandoned"),
            "{error}"
        );
    }
}
