//! What a sender is opened with, and what each transfer may ask for.

use std::time::Duration;

use crate::PeerAddr;
use crate::clock::Clock;
#[cfg(test)]
use crate::endpoint::duplex::faults::FaultConfig;
use crate::stream::{LeftOut, StreamError, StreamSettings};

/// The settings of a [`StreamSender`](super::StreamSender): those that both sides have
/// ([`StreamSettings`]), and its own:
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `depth` | blocks on their way on one connection | 8 | 1 to 256 |
///
/// The pool takes `buffers × block_bytes` bytes whatever the sources' size, and control messages 1
/// MiB.
#[derive(Debug, Clone)]
pub struct SenderConfig {
    pub(super) stream: StreamSettings,
    pub(super) depth: u32,
    /// What everything judges deadlines by.
    pub(super) clock: Clock,
    /// What becomes of the blocks that it sends.
    #[cfg(test)]
    pub(super) faults: Option<FaultConfig>,
    #[cfg(test)]
    pub(in crate::stream) swallow: Option<crate::stream::outbox::Swallow>,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            stream: StreamSettings::of_sender(),
            depth: 8,
            clock: Clock::system(),
            #[cfg(test)]
            faults: None,
            #[cfg(test)]
            swallow: None,
        }
    }
}

impl SenderConfig {
    /// Blocks, connections and threads.
    #[must_use]
    pub fn stream(mut self, set: impl FnOnce(StreamSettings) -> StreamSettings) -> Self {
        self.stream = set(self.stream);
        self
    }

    /// Blocks on their way on one connection.
    #[must_use]
    pub fn depth(mut self, blocks: u32) -> Self {
        self.depth = blocks;
        self
    }

    /// What everything judges deadlines by.
    #[cfg(test)]
    pub(in crate::stream) fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    #[cfg(test)]
    pub(in crate::stream) fn faults(mut self, faults: FaultConfig) -> Self {
        self.faults = Some(faults);
        self
    }

    pub(super) fn check(&self) -> Result<(), StreamError> {
        self.stream.check_sender()?;
        setting("depth", self.depth.into(), 1, 256, "1 to 256 blocks")
    }
}

/// Milliseconds of a day.
const DAY: u64 = 86_400_000;

pub(in crate::stream) fn setting(
    name: &'static str,
    value: u64,
    least: u64,
    most: u64,
    range: &'static str,
) -> Result<(), StreamError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(StreamError::Setting { name, value, range }),
    }
}

/// The same for a time; the limits are milliseconds.
pub(in crate::stream) fn time(
    name: &'static str,
    value: Duration,
    least: u64,
    most: u64,
    range: &'static str,
) -> Result<(), StreamError> {
    match (Duration::from_millis(least)..=Duration::from_millis(most)).contains(&value) {
        true => Ok(()),
        false => {
            let value = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
            Err(StreamError::Setting { name, value, range })
        }
    }
}

/// What happens to a peer of several that takes blocks more slowly than the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowPeer {
    /// The others wait for it, but only as long as something of it moves: a peer that takes nothing
    /// for so long is given up. The default, 30 s.
    Wait(Duration),
    /// The others go on without it. It gets what it missed when it has room: those blocks are read
    /// once more.
    CatchUp,
    /// The others go on without it, and a peer that has held them up for so long is given up.
    Drop(Duration),
}

impl Default for SlowPeer {
    fn default() -> Self {
        Self::Wait(Duration::from_secs(30))
    }
}

/// What one transfer asks for.
///
/// | setting | what it is | default | range |
/// |---|---|---|---|
/// | `crc32c` | each block carries its CRC32C, and the sink checks it | yes | |
/// | `blake3` | both sides compute the BLAKE3 of the content, and compare | no | |
/// | `transport` | how blocks go | [`Transport::Auto`] | |
/// | `sync` | the content is on the receiver's device before it says that it is complete | no | |
/// | `read_back` | the receiver reads what it wrote, and checks it | no | off where `crc32c` is |
/// | `restart` | what the receiver has of an earlier, cut stream is thrown away | no | |
/// | `skip_unchanged` | files that are there, of that size and time, are kept | no | see there |
/// | `compare_content` | of files of another time, the content is compared | no | see there |
/// | `delete` | what is at the receiver besides is removed | [`Deletion::None`] | see there |
/// | `slow` | what becomes of a slower peer, and when | [`SlowPeer::Wait`] 30 s | 10 ms to 24 h |
/// | `reconnects` | attempts for each peer, in a row without more of the content there | 8 | |
/// | `retry_for` | time: a lost peer is tried again for so long | none | 1 ms to 24 h, or none |
/// | `stalled_after` | time without progress that ends an attempt | 60 s | 10 ms to 24 h |
/// | `deadline` | time: all of it must be done by then | none | 1 ms to 3,650 days, or none |
/// | `rate` | bytes a second, all peers together | none | |
/// | `priority` | of two transfers that could send, the one with the higher number does | 0 | |
/// | `rails` | connections to each address of a peer | as many as pay | |
/// | `timeline` | reports say how it went over time | no | |
#[derive(Debug, Clone)]
pub struct SendOptions {
    pub(super) crc32c: bool,
    pub(super) blake3: bool,
    pub(super) transport: Transport,
    pub(super) sync: bool,
    pub(super) read_back: bool,
    pub(super) restart: bool,
    pub(super) skip_unchanged: bool,
    pub(super) compare_content: bool,
    pub(super) delete: Deletion,
    pub(super) slow: SlowPeer,
    pub(super) reconnects: u32,
    pub(super) retry_for: Option<Duration>,
    pub(super) stalled_after: Duration,
    pub(super) deadline: Option<Duration>,
    pub(super) rate: Option<u64>,
    pub(super) priority: u8,
    pub(super) rails: Option<u16>,
    pub(super) timeline: bool,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self {
            crc32c: true,
            blake3: false,
            transport: Transport::Auto,
            sync: false,
            read_back: false,
            restart: false,
            skip_unchanged: false,
            compare_content: false,
            delete: Deletion::None,
            slow: SlowPeer::default(),
            reconnects: 8,
            retry_for: None,
            stalled_after: Duration::from_secs(60),
            deadline: None,
            rate: None,
            priority: 0,
            rails: None,
            timeline: false,
        }
    }
}

impl SendOptions {
    /// Whether each block carries its CRC32C.
    #[must_use]
    pub fn crc32c(mut self, yes: bool) -> Self {
        self.crc32c = yes;
        self
    }

    /// Whether both sides compute the BLAKE3 of the content, block by block as they have it, and
    /// compare before the receiver says that it is complete. Blocks are the largest power of two
    /// then that both sides take. What it costs is in the report.
    #[must_use]
    pub fn blake3(mut self, yes: bool) -> Self {
        self.blake3 = yes;
        self
    }

    /// How blocks go to peers.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Whether the content is to be on the receiver's device before it says that it is complete.
    #[must_use]
    pub fn sync(mut self, yes: bool) -> Self {
        self.sync = yes;
        self
    }

    /// Whether the receiver is to read back what it wrote, and check it. It needs
    /// [`crc32c`](Self::crc32c), which is what it compares with.
    #[must_use]
    pub fn read_back(mut self, yes: bool) -> Self {
        self.read_back = yes;
        self
    }

    /// Whether what the receiver has of an earlier, cut stream is thrown away.
    #[must_use]
    pub fn restart(mut self, yes: bool) -> Self {
        self.restart = yes;
        self
    }

    /// Whether files that are at the receiver already, under their names, with the same size and
    /// the same time of their last change, are kept as they are and not sent: for a tree of which
    /// little has changed since it was sent last. It trusts sizes and times: nothing of what is
    /// kept is read, and other content of the same size and time is not found out. So it does not
    /// go with [`blake3`](Self::blake3), nor with [`read_back`](Self::read_back), and it needs
    /// [`crc32c`](Self::crc32c). What is kept counts as
    /// [unchanged](crate::stream::StreamReport::unchanged) and as
    /// [resumed](crate::stream::StreamReport::resumed_bytes). What has no time is always sent:
    /// buffers, and files whose time is the beginning of 1970. Ranges of one file have its time:
    /// don't ask for this where a name stands for one range now and for another one later. A
    /// receiver of an older version takes everything anew.
    #[must_use]
    pub fn skip_unchanged(mut self, yes: bool) -> Self {
        self.skip_unchanged = yes;
        self
    }

    /// With [`skip_unchanged`](Self::skip_unchanged): whether files that are at the receiver with
    /// the same size and another time are compared block by block, so that what is equal there is
    /// not sent: for a tree whose times say nothing, such as a new checkout. The receiver reads
    /// these files before it accepts the stream, and says the hashes of their blocks (16 bytes each
    /// of BLAKE3); this side reads its own and compares. A file of which all is equal is kept, and
    /// gets the sender's time and rights; of another one, the equal blocks are copied there. How
    /// many bytes that were is [reported](crate::stream::StreamReport::equal_bytes). It
    /// takes 64 bytes a block of the receiver's [memory](crate::stream::Limits::memory). A receiver
    /// of an older version, or whose sink does not compare, takes these files anew.
    #[must_use]
    pub fn compare_content(mut self, yes: bool) -> Self {
        self.compare_content = yes;
        self
    }

    /// Whether what lies at the receiver in directories of the stream, or below them, and is not of
    /// the stream is removed, once all of the stream is checked and in its place; as rsync's
    /// `--delete` does. A receiver that [does not
    /// allow](crate::stream::DirectorySink::allow_delete) it ends the stream, with code
    /// [`RefusalCode::FEATURE`](crate::stream::RefusalCode::FEATURE). How many files and
    /// directories went is [reported](crate::stream::StreamReport::deleted).
    ///
    /// A source that has [skipped](crate::stream::LeftOut::Skipped) something is refused with this,
    /// whatever it says: its copy would lose that. So is one with a
    /// [filter](crate::stream::FileSourceBuilder::filter), unless
    /// [`Deletion::ExtraUnlessProtected`] says that receivers know what it leaves out.
    #[must_use]
    pub fn delete(mut self, what: Deletion) -> Self {
        self.delete = what;
        self
    }

    /// What happens to a peer that is slower than the others.
    #[must_use]
    pub fn slow(mut self, policy: SlowPeer) -> Self {
        self.slow = policy;
        self
    }

    /// Attempts to connect again to a peer that was lost, in a row, between which it did not say
    /// that it has more of the content than it ever had; 0: none. Each waits twice as long as the
    /// last, from 100 ms to 5 s.
    #[must_use]
    pub fn reconnects(mut self, attempts: u32) -> Self {
        self.reconnects = attempts;
        self
    }

    /// For how long attempts to connect again to a lost peer go on, from the first one that failed
    /// without more of the content there, if [`reconnects`](Self::reconnects) allows as many;
    /// none: their number alone ends them. With a time, a peer that has never answered is tried for
    /// [`connect_timeout`](crate::stream::StreamSettings::connect_timeout) in all. An attempt that
    /// is under way then goes on to its end.
    #[must_use]
    pub fn retry_for(mut self, time: Option<Duration>) -> Self {
        self.retry_for = time;
        self
    }

    /// For how long nothing may move while this side waits for a peer: no block is taken, granted
    /// or answered, and the peer does not say that its sink works; that word counts for twenty
    /// times as long without a movement. The peer is told what is waited for, and a new attempt is
    /// made, as after a lost connection, which is one of those that
    /// [`reconnects`](Self::reconnects) counts; after the last one, the peer's outcome is
    /// [`StreamError::Stalled`].
    ///
    /// A pause, a rate, and other transfers that come first take as long as they do. A source that
    /// gives nothing has ten times this time, and so has a receiver of an older version before it
    /// accepts (reading what it has) and at the end (syncing, reading back).
    #[must_use]
    pub fn stalled_after(mut self, silence: Duration) -> Self {
        self.stalled_after = silence;
        self
    }

    /// All of it must be done within this time, of 1 ms to 3,650 days.
    #[must_use]
    pub fn deadline(mut self, deadline: Option<Duration>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Bytes a second at most, all peers together.
    #[must_use]
    pub fn rate(mut self, bytes_per_second: Option<u64>) -> Self {
        self.rate = bytes_per_second;
        self
    }

    /// Of two transfers that could send, the one with the higher number does.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Connections to each address of a peer: blocks go by whichever has room.
    ///
    /// Unless this is set, there is one, and as long as more of them make it faster, twice as many:
    /// up to one for each [thread](crate::stream::StreamSettings::rail_threads) that this side and
    /// the receiver have for connections.
    #[must_use]
    pub fn rails(mut self, rails: u16) -> Self {
        self.rails = Some(rails);
        self
    }

    /// The [report](crate::stream::StreamReport::timeline) of each peer says how the transfer went
    /// over time. It takes some 100 KiB for each peer, however long the transfer takes.
    #[must_use]
    pub fn timeline(mut self, on: bool) -> Self {
        self.timeline = on;
        self
    }

    /// Whether a source may be sent with these options.
    pub(super) fn check_source(&self, left_out: LeftOut) -> Result<(), StreamError> {
        let (may, range) = match (self.delete, left_out) {
            (Deletion::Extra, LeftOut::ByFilter) => (
                0,
                "0 where a filter leaves something out, which would be removed: have the receivers \
                 protect that, and say so (Deletion::ExtraUnlessProtected)",
            ),
            (_, LeftOut::Skipped(_)) => (
                0,
                "0 where the source has skipped something, which would be removed: remove it \
                 there, or leave it out by a filter that the receivers have, too",
            ),
            _ => (1, ""),
        };
        let asked = self.delete != Deletion::None;
        setting("delete", asked.into(), 0, may, range)
    }

    pub(super) fn check(&self) -> Result<(), StreamError> {
        let day = "10 ms to 24 h";
        time("stalled_after", self.stalled_after, 10, DAY, day)?;
        if let SlowPeer::Wait(patience) | SlowPeer::Drop(patience) = self.slow {
            time("slow", patience, 10, DAY, day)?;
        }
        if let Some(retry_for) = self.retry_for {
            time("retry_for", retry_for, 1, DAY, "1 ms to 24 h, or none")?;
        }
        if let Some(deadline) = self.deadline {
            time("deadline", deadline, 1, 3650 * DAY, "1 ms to 3650 days")?;
        }
        // Without sums nothing is known of what was written that what is read could be compared
        // with.
        let range = "0 where `crc32c` is off, since it compares with those sums";
        let most = u64::from(self.crc32c);
        setting("read_back", self.read_back.into(), 0, most, range)?;
        let range = "0 where `crc32c` is off, or `blake3` or `read_back` is on";
        let most = u64::from(self.crc32c && !self.blake3 && !self.read_back);
        let name = "skip_unchanged";
        setting(name, self.skip_unchanged.into(), 0, most, range)?;
        let range = "0 where `skip_unchanged` is off";
        let most = u64::from(self.skip_unchanged);
        setting(
            "compare_content",
            self.compare_content.into(),
            0,
            most,
            range,
        )
    }
}

/// What a receiver removes of what it has besides a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Deletion {
    /// Nothing.
    #[default]
    None,
    /// What lies in directories of the stream, or below them, and is not of it.
    Extra,
    /// The same of a source with a filter, whose receivers protect what it leaves out
    /// ([`DirectorySink::protect`](crate::stream::DirectorySink::protect)): what they don't protect
    /// is removed.
    ExtraUnlessProtected,
}

/// How blocks go to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Transport {
    /// By what is better over this provider, as far as was measured
    /// ([`Provider::favours_writes`](crate::fabric::Provider::favours_writes)), and by messages if
    /// the receiver takes nothing else. The report says which, and why.
    #[default]
    Auto,
    /// As messages: each into the next buffer that the receiver has posted, and from there to the
    /// sink.
    Message,
    /// By RMA write into slots that the receiver has granted
    /// ([`ReceiverConfig::rma_slots`](crate::stream::ReceiverConfig::rma_slots)). It writes
    /// whenever it likes, so the receiver copies each block out before it checks it: a pass over
    /// the bytes more than with messages. A receiver that takes no writes ends the stream, with
    /// code [`RefusalCode::FEATURE`](crate::stream::RefusalCode::FEATURE).
    Write,
}

impl Transport {
    /// Whether blocks go by write, and why, in words. `offered`: both sides can; `favoured`: the
    /// provider does it better.
    pub(super) fn choose(
        self,
        offered: bool,
        favoured: bool,
    ) -> Result<(bool, &'static str), &'static str> {
        match self {
            Self::Message => Ok((false, "messages: asked for")),
            Self::Write if offered => Ok((true, "RMA writes: asked for")),
            Self::Write => Err("one of the two sides, or the provider, has no RMA writes"),
            Self::Auto if !favoured => {
                Ok((false, "messages: the provider does them as well or better"))
            }
            Self::Auto if offered => Ok((true, "RMA writes: the provider does them better")),
            Self::Auto => Ok((false, "messages: the receiver has no windows to write into")),
        }
    }
}

/// Where a stream goes: one address of a receiver, or several of the same one, each with a
/// connection (a rail) of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub(super) addrs: Vec<PeerAddr>,
    /// The number of the sender's domain for each; empty: the n-th for the n-th.
    domains: Vec<usize>,
}

impl Peer {
    /// The addresses of one receiver. The first is the one it is known by; the n-th is reached by
    /// the sender's n-th domain, from the first again when there are more.
    pub fn new(addrs: impl IntoIterator<Item = PeerAddr>) -> Self {
        Self {
            addrs: addrs.into_iter().collect(),
            domains: Vec::new(),
        }
    }

    /// Which domain of the sender each of the addresses is reached by: its place among those that
    /// were given to [`StreamSender::over`](super::StreamSender::over), from 0. For receivers on
    /// different networks, each of which has a domain.
    #[must_use]
    pub fn by_domains(mut self, domains: impl IntoIterator<Item = usize>) -> Self {
        self.domains = domains.into_iter().collect();
        self
    }

    /// Which of so many domains an address is reached by.
    pub(super) fn domain(&self, addr: usize, of: usize) -> usize {
        self.domains.get(addr).copied().unwrap_or(addr % of)
    }

    /// `of`: domains of the sender.
    pub(super) fn check(&self, of: usize) -> Result<(), StreamError> {
        let (named, all) = (self.domains.len() as u64, self.addrs.len() as u64);
        if named > 0 {
            let range = "one for each of its addresses, or none";
            setting("domains of a peer", named, all, all, range)?;
        }
        for &domain in &self.domains {
            let range = "a domain of its sender, counted from 0";
            setting("domain of a peer", domain as u64, 0, of as u64 - 1, range)?;
        }
        Ok(())
    }
}

impl From<PeerAddr> for Peer {
    fn from(addr: PeerAddr) -> Self {
        Self::new([addr])
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.addrs.first() {
            Some(addr) => addr.fmt(f),
            None => f.write_str("nobody"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod documented {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Setting, Value, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<SenderConfig>] = &[Setting {
            name: "depth",
            get: |c| c.depth.into(),
            set: |c, v| c.depth(v.count()),
        }];
        let source = include_str!("config.rs");
        compare(source, "SenderConfig", settings, SenderConfig::check);
    }

    #[test]
    fn the_table_of_options_is_what_the_code_does() {
        let settings: &[Setting<SendOptions>] = &[
            Setting {
                name: "slow",
                get: |c| match c.slow {
                    SlowPeer::Wait(time) | SlowPeer::Drop(time) => time.into(),
                    SlowPeer::CatchUp => Value::Time(None),
                },
                set: |c, v| c.slow(SlowPeer::Drop(v.time())),
            },
            Setting {
                name: "retry_for",
                get: |c| c.retry_for.into(),
                set: |c, v| c.retry_for(v.limit()),
            },
            Setting {
                name: "stalled_after",
                get: |c| c.stalled_after.into(),
                set: |c, v| c.stalled_after(v.time()),
            },
            Setting {
                name: "deadline",
                get: |c| c.deadline.into(),
                set: |c, v| c.deadline(v.limit()),
            },
        ];
        let source = include_str!("config.rs");
        compare(source, "SendOptions", settings, SendOptions::check);
    }
}
