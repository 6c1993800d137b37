//! `Whose`: which kinds of endpoints have which settings.

use crate::settings::fcast_settings;
use crate::status::Failure;

/// Whose settings they are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Sender,
    Receiver,
    Buffered,
    Connectionless,
    Publisher,
    BufferedPublisher,
    Subscriber,
}

impl Whose {
    fn kind(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
            Self::Buffered => "buffered sender",
            Self::Connectionless => "connectionless endpoint",
            Self::Publisher => "publisher",
            Self::BufferedPublisher => "buffered publisher",
            Self::Subscriber => "subscriber",
        }
    }
}

/// Those with settings of what comes in.
const RECEIVING: &[Whose] = &[Whose::Receiver, Whose::Connectionless, Whose::Subscriber];
/// Those that take pools.
const WITH_POOL: &[Whose] = &[
    Whose::Receiver,
    Whose::Connectionless,
    Whose::Subscriber,
    Whose::Buffered,
    Whose::BufferedPublisher,
];
/// Those whose headers lie in slots.
const WITH_HEADERS: &[Whose] = &[
    Whose::Sender,
    Whose::Connectionless,
    Whose::Publisher,
    Whose::BufferedPublisher,
];
/// Those with settings of what goes out.
const OUTGOING: &[Whose] = &[
    Whose::Sender,
    Whose::Receiver,
    Whose::Buffered,
    Whose::Connectionless,
    Whose::Publisher,
    Whose::BufferedPublisher,
];
const BUFFERED: &[Whose] = &[Whose::Buffered, Whose::BufferedPublisher];
const BUFFERED_SENDER: &[Whose] = &[Whose::Buffered];
const BUFFERED_PUBLISHER: &[Whose] = &[Whose::BufferedPublisher];
const CONNECTIONLESS: &[Whose] = &[Whose::Connectionless];
const PUBLISHER: &[Whose] = &[Whose::Publisher, Whose::BufferedPublisher];
const PUBLISHING: &[Whose] = &[
    Whose::Publisher,
    Whose::BufferedPublisher,
    Whose::Subscriber,
];

/// A setting's name, whether it is set, and who has it.
type Owned = (&'static str, bool, &'static [Whose]);

impl fcast_settings {
    /// What would have no effect is refused: this kind of endpoint has no such setting. The library
    /// refuses by itself what is not here.
    pub(crate) fn refuse_others(&self, whose: Whose) -> Result<(), Failure> {
        let others = self.of_what_goes().into_iter().chain(self.of_kinds());
        let mut others = others.filter(|(_, is_set, of)| *is_set && !of.contains(&whose));
        others.next().map_or(Ok(()), |(field, ..)| {
            let kind = whose.kind();
            let text = format!("setting {field}: a {kind} has none, leave it 0");
            Err(Failure::invalid(text))
        })
    }

    /// What comes in and goes out.
    fn of_what_goes(&self) -> [Owned; 25] {
        [
            ("max_message", self.max_message != 0, RECEIVING),
            ("slots", self.slots != 0, RECEIVING),
            ("credits", self.credits != 0, RECEIVING),
            ("deliver_to", self.deliver_to.id != 0, RECEIVING),
            ("long_pool", self.long_pool.id != 0, RECEIVING),
            ("long_device", self.long_device.id != 0, RECEIVING),
            ("long_deadline_ms", self.long_deadline_ms != 0, RECEIVING),
            ("pool_reserved", self.pool_reserved != 0, RECEIVING),
            ("pool_most", self.pool_most != 0, RECEIVING),
            ("pool", self.pool.id != 0, WITH_POOL),
            ("region", self.region.id != 0, WITH_HEADERS),
            ("header_slots", self.header_slots != 0, WITH_HEADERS),
            ("header_slot_size", self.header_slot_size != 0, WITH_HEADERS),
            ("headers", self.headers.id != 0, WITH_HEADERS),
            ("header_mode", self.header_mode != 0, WITH_HEADERS),
            ("header_fixed", self.header_fixed != 0, WITH_HEADERS),
            ("depth", self.depth != 0, OUTGOING),
            ("shape", self.shape != 0, OUTGOING),
            ("inject", self.inject != 0, OUTGOING),
            ("packing", self.packing != 0, OUTGOING),
            ("no_gather", self.no_gather != 0, OUTGOING),
            ("delivered", self.delivered != 0, OUTGOING),
            ("deadline_ms", self.deadline_ms != 0, OUTGOING),
            ("tell_late", self.tell_late != 0, OUTGOING),
            ("staging", self.staging.id != 0, OUTGOING),
        ]
    }

    /// What single kinds have.
    fn of_kinds(&self) -> [Owned; 17] {
        let per_connection = self.subscriptions_per_connection != 0;
        [
            ("format", self.format != 0, BUFFERED),
            ("buffers", self.buffers != 0, BUFFERED),
            ("buffer_size", self.buffer_size != 0, BUFFERED),
            ("flush_interval_us", self.flush_interval_us != 0, BUFFERED),
            ("waiting", self.waiting != 0, BUFFERED_SENDER),
            ("tags", self.tags != 0, BUFFERED_PUBLISHER),
            ("max_peers", self.max_peers != 0, CONNECTIONLESS),
            ("refuse_unknown", self.refuse_unknown != 0, CONNECTIONLESS),
            ("no_add_on_send", self.no_add_on_send != 0, CONNECTIONLESS),
            ("total_depth", self.total_depth != 0, CONNECTIONLESS),
            ("publications", self.publications != 0, PUBLISHER),
            ("slow", self.slow != 0, PUBLISHER),
            ("slow_queue", self.slow_queue != 0, PUBLISHER),
            ("slow_ms", self.slow_ms != 0, PUBLISHER),
            ("tell_sent", self.tell_sent != 0, PUBLISHER),
            ("subscriptions_per_connection", per_connection, PUBLISHER),
            ("subscriptions", self.subscriptions != 0, PUBLISHING),
        ]
    }
}
