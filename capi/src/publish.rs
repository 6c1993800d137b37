//! Publishers: one payload to everybody who has subscribed to its tag.

#![allow(unsafe_code)] // Functions that C calls.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::time::Duration;

use fabricast::PublishEndpoint;
use fabricast::buffer::Payload;
use fabricast::endpoint::{
    ConnectionId, PeerOutcome, Publication, PublishConfig, PublishEvent, SlowPolicy,
};

use crate::call::call;
use crate::endpoint::{Endpoint, address, fcast_endpoint, open};
use crate::event::{
    FCAST_EVENT_LATE, FCAST_EVENT_OTHER, FCAST_EVENT_PUBLISHED, FCAST_EVENT_PUBLISHED_TO,
    FCAST_EVENT_SUBSCRIBED, FCAST_EVENT_SUBSCRIPTIONS_GONE, FCAST_EVENT_UNSUBSCRIBED,
    FCAST_EVENT_WRITABLE, Held, Tell, done, failed, fcast_event, request, words,
};
use crate::fabric::fcast_domain;
use crate::face::Face;
use crate::handle::{DOMAINS, ENDPOINTS};
use crate::payload::fcast_payload;
use crate::pointer::{self, Out};
use crate::region::fcast_region;
use crate::send::{slice_of, using};
use crate::settings::{fcast_settings, out_of_range};
use crate::settings_of::Whose;
use crate::status::{FCAST_AGAIN, FCAST_NOT_FOUND, Failure, fcast_status};

/// A subscriber that has no room does not get this publication.
pub const FCAST_SLOW_DROP: u32 = 0;
/// Publications wait for a subscriber that has no room; what comes to a full queue, or has waited
/// too long, is dropped.
pub const FCAST_SLOW_WAIT: u32 = 1;
/// As FCAST_SLOW_WAIT, but then the subscriber's connection is ended.
pub const FCAST_SLOW_DISCONNECT: u32 = 2;

/// What became of a publication at once. FCAST_EVENT_PUBLISHED follows when the rest is known.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_publication {
    /// Its number among the tag's publications, which the subscribers see.
    pub number: u64,
    /// Subscribers that it is on its way to.
    pub posted: u32,
    /// Subscribers that it waits for.
    pub waiting: u32,
    /// Subscribers that do not get it.
    pub dropped: u32,
    /// 0.
    pub reserved: u32,
}

impl From<Publication> for fcast_publication {
    fn from(publication: Publication) -> Self {
        Self {
            number: publication.number,
            posted: publication.posted,
            waiting: publication.waiting,
            dropped: publication.dropped,
            reserved: 0,
        }
    }
}

fn policy(slow: u32, queue: u32, ms: u32) -> Result<SlowPolicy, Failure> {
    let time = Duration::from_millis(u64::from(ms));
    match slow {
        FCAST_SLOW_DROP => Ok(SlowPolicy::Drop),
        FCAST_SLOW_WAIT => Ok(SlowPolicy::Wait {
            queue,
            deadline: time,
        }),
        FCAST_SLOW_DISCONNECT => Ok(SlowPolicy::Disconnect { queue, after: time }),
        other => Err(out_of_range("slow", other, "0 to 2")),
    }
}

impl fcast_settings {
    pub(crate) fn publisher(&self) -> Result<PublishConfig, Failure> {
        let slow = policy(self.slow, self.slow_queue, self.slow_ms)?;
        let mut config = PublishConfig::default()
            .connection(|of| self.connection(of))
            .slow(slow)
            .tell_sent(self.tell_sent != 0);
        if self.publications != 0 {
            config = config.publications(self.publications);
        }
        if self.subscriptions != 0 {
            config = config.subscriptions(self.subscriptions);
        }
        if self.subscriptions_per_connection != 0 {
            config = config.subscriptions_per_connection(self.subscriptions_per_connection);
        }
        Ok(config)
    }
}

/// Listens for subscribers at an address of this machine. Any thread.
///
/// # Safety
///
/// As fcast_sender_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_publisher_open(
    domain: fcast_domain,
    local: *const c_char,
    settings: *const fcast_settings,
    endpoint: *mut fcast_endpoint,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(endpoint, "endpoint") }?;
        // SAFETY: the caller's promise.
        let settings: fcast_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let local = unsafe { address(local, "local") }?;
        settings.refuse_others(Whose::Publisher)?;
        let domain = DOMAINS.share(domain.id)?.clone();
        let (outgoing, region) = settings.outgoing(Whose::Publisher)?;
        let config = settings.publisher()?.outgoing(|_| outgoing);
        let publisher = PublishEndpoint::listen(&domain, local, config)?;
        let face = Face::Publish(Box::new(publisher), VecDeque::new());
        open(out, face, region)
    })
}

/// Sends `len` bytes at `data` with a header to everybody who has subscribed to the tag, without a
/// copy, by a publisher or a buffered one. Returns at once; the data must not change before
/// FCAST_EVENT_PUBLISHED comes with the key. `region`: as for fcast_send. One thread at a time.
///
/// FCAST_NOT_FOUND: nobody has subscribed to the tag, or the data are outside of the region;
/// FCAST_AGAIN: as many publications are under way as may; nothing was taken.
///
/// # Safety
///
/// `header`: NULL, or `header_len` bytes; `publication`: NULL, or writable. `data` is looked up in
/// the region, not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_publish(
    endpoint: fcast_endpoint,
    tag: u64,
    region: fcast_region,
    data: *const c_void,
    len: usize,
    header: *const c_void,
    header_len: usize,
    key: u64,
    publication: *mut fcast_publication,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let header = unsafe { pointer::bytes(header.cast::<u8>(), header_len, "header") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let slice = slice_of(entry.region.as_ref(), region, data.addr(), len)?;
        let told = publish(&mut entry, tag, slice.into(), header, key);
        let told = told.map_err(|(failure, _)| failure)?;
        // SAFETY: the caller's promise.
        unsafe { pointer::put(publication, told.into()) };
        Ok(())
    })
}

/// As fcast_publish, of a payload, whose handle is used up, unless this fails. One thread at a
/// time.
///
/// # Safety
///
/// `header`: NULL, or `header_len` bytes; `publication`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_publish_payload(
    endpoint: fcast_endpoint,
    tag: u64,
    payload: fcast_payload,
    header: *const c_void,
    header_len: usize,
    key: u64,
    publication: *mut fcast_publication,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let header = unsafe { pointer::bytes(header.cast::<u8>(), header_len, "header") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let told = using(payload, |given| {
            publish(&mut entry, tag, given, header, key)
        })?;
        // SAFETY: the caller's promise.
        unsafe { pointer::put(publication, told.into()) };
        Ok(())
    })
}

/// Publishes; a refused payload comes back.
#[inline]
fn publish(
    entry: &mut Endpoint,
    tag: u64,
    payload: Payload,
    header: &[u8],
    key: u64,
) -> Result<Publication, (Failure, Payload)> {
    match &mut entry.face {
        Face::Publish(publisher, _) => publisher
            .publish(tag, payload, header, key)
            .map_err(|refused| (refused.kind.into(), refused.given)),
        Face::PublishBuffered(publisher, _) => publisher
            .publish(tag, payload, header, key)
            .map_err(|refused| (refused.kind.into(), refused.given)),
        face => Err((face.cannot("publish"), payload)),
    }
}

/// What becomes of publications for one subscriber when it has no room, instead of what the
/// settings say: FCAST_SLOW_DROP or another, how many may wait, and for how long. FCAST_NOT_FOUND:
/// there is no such subscriber. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_publisher_set_slow(
    endpoint: fcast_endpoint,
    connection: u64,
    slow: u32,
    queue: u32,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        let policy = policy(slow, queue, timeout_ms)?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let connection = ConnectionId::from_u64(connection);
        let stands = match &mut entry.face {
            Face::Publish(publisher, _) => publisher.set_slow_policy(connection, policy)?,
            Face::PublishBuffered(publisher, _) => publisher.set_slow_policy(connection, policy)?,
            face => return Err(face.cannot("publish")),
        };
        match stands {
            true => Ok(()),
            false => Err(Failure::new(FCAST_NOT_FOUND, "there is no such subscriber")),
        }
    })
}

/// How many have subscribed to a tag. One thread at a time.
///
/// # Safety
///
/// `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_publisher_subscribers(
    endpoint: fcast_endpoint,
    tag: u64,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        let entry = ENDPOINTS.enter(endpoint.id)?;
        out.set(entry.face.publisher()?.subscribers(tag));
        Ok(())
    })
}

/// How a publication ended for one subscriber.
pub(crate) fn outcome(key: u64, outcome: PeerOutcome) -> (fcast_event, Held) {
    let kind = FCAST_EVENT_PUBLISHED_TO;
    match outcome {
        PeerOutcome::Sent => (fcast_event::keyed(kind, key), Held::Nothing),
        PeerOutcome::Failed(error) => failed(kind, key, &error),
        PeerOutcome::Dropped(why) => {
            let mut event = fcast_event::keyed(kind, key);
            event.status = FCAST_AGAIN;
            words(event, why)
        }
        other => words(fcast_event::keyed(kind, key), format!("{other:?}")),
    }
}

impl Tell for PublishEvent {
    fn tell(self) -> (fcast_event, Held) {
        let of = |connection: ConnectionId, (mut event, held): (fcast_event, Held)| {
            event.connection = connection.as_u64();
            (event, held)
        };
        let keyed = |kind, key| (fcast_event::keyed(kind, key), Held::Nothing);
        match self {
            Self::Request(asked) => request(&asked),
            Self::Connection(connection, event) => of(connection, event.tell()),
            Self::Subscribed { connection, tag } => {
                of(connection, keyed(FCAST_EVENT_SUBSCRIBED, tag))
            }
            Self::Unsubscribed { connection, tag } => {
                of(connection, keyed(FCAST_EVENT_UNSUBSCRIBED, tag))
            }
            Self::Peer {
                key,
                connection,
                outcome: how,
            } => of(connection, outcome(key, how)),
            Self::Late { key, connection } => of(connection, keyed(FCAST_EVENT_LATE, key)),
            Self::Published {
                key,
                payload,
                outcomes,
            } => {
                let (mut event, held) = done(FCAST_EVENT_PUBLISHED, key, payload);
                event.value = u64::from(outcomes.sent);
                (event.dropped, event.failed) = (outcomes.dropped, outcomes.failed);
                (event, held)
            }
            Self::Writable => keyed(FCAST_EVENT_WRITABLE, 0),
            Self::SubscriptionsGone { connection, count } => {
                let (mut event, held) = keyed(FCAST_EVENT_SUBSCRIPTIONS_GONE, 0);
                event.value = u64::from(count);
                of(connection, (event, held))
            }
            other => words(fcast_event::new(FCAST_EVENT_OTHER), format!("{other:?}")),
        }
    }
}
