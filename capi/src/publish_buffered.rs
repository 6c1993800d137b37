//! Buffered publishers: many small messages of a tag in one publication.

#![allow(unsafe_code)] // Functions that C calls.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};

use fabricast::endpoint::{
    ConnectionId, PeerOutcome, PublishBufferedConfig, PublishedContent, SendErrorKind,
};
use fabricast::{PublishBufferedEvent, PublishEndpointBuffered};

use crate::buffered::flush_interval;
use crate::call::call;
use crate::coalesced::format;
use crate::endpoint::{address, fcast_endpoint, open};
use crate::event::{
    FCAST_EVENT_FAILED, FCAST_EVENT_LATE, FCAST_EVENT_OTHER, FCAST_EVENT_PUBLISHED,
    FCAST_EVENT_PUSH_FAILED, FCAST_EVENT_SUBSCRIBED, FCAST_EVENT_SUBSCRIPTIONS_GONE,
    FCAST_EVENT_UNSUBSCRIBED, FCAST_EVENT_WRITABLE, Held, Tell, done, fcast_event, request, words,
};
use crate::fabric::fcast_domain;
use crate::face::Face;
use crate::handle::{DOMAINS, ENDPOINTS, POOLS};
use crate::pointer::{self, Out};
use crate::publish::{fcast_publication, outcome};
use crate::settings::fcast_settings;
use crate::settings_of::Whose;
use crate::status::{Failure, c_string, fcast_status};

impl fcast_settings {
    /// All but what goes out.
    fn buffered_publisher(&self) -> Result<PublishBufferedConfig, Failure> {
        let publishing = self.publisher()?;
        let mut config = PublishBufferedConfig::default()
            .publishing(|_| publishing)
            .format(format(self.format)?);
        if self.buffers != 0 {
            config = config.buffers(self.buffers);
        }
        if self.buffer_size != 0 {
            config = config.buffer_size(self.buffer_size as usize);
        }
        if self.pool.id != 0 {
            config = config.pool(&*POOLS.share(self.pool.id)?);
        }
        if let Some(interval) = flush_interval(self.flush_interval_us) {
            config = config.flush_interval(interval);
        }
        if self.tags != 0 {
            config = config.tags(self.tags);
        }
        Ok(config)
    }
}

/// Listens for subscribers, as fcast_publisher_open, as a publisher that copies: fcast_push packs
/// small messages, many of a tag into one buffer, which is one publication; fcast_publish_copied
/// copies one payload; fcast_publish copies nothing. What is published of one tag leaves in the
/// order of the calls, whichever they are. Subscribers take packed messages apart with
/// fcast_coalesced_next, in the same format; these have an empty header. Any thread.
///
/// # Safety
///
/// As fcast_sender_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_buffered_publisher_open(
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
        settings.refuse_others(Whose::BufferedPublisher)?;
        let domain = DOMAINS.share(domain.id)?.clone();
        let (outgoing, region) = settings.outgoing(Whose::BufferedPublisher)?;
        let config = settings
            .buffered_publisher()?
            .publishing(|of| of.outgoing(|_| outgoing));
        let publisher = PublishEndpointBuffered::listen(&domain, local, config)?;
        let face = Face::PublishBuffered(Box::new(publisher), VecDeque::new());
        open(out, face, region)
    })
}

/// The buffered publisher of an endpoint.
fn publisher<'a>(
    face: &'a mut Face,
    what: &str,
) -> Result<&'a mut PublishEndpointBuffered, Failure> {
    match face {
        Face::PublishBuffered(publisher, _) => Ok(publisher),
        face => Err(face.cannot(what)),
    }
}

/// Copies `len` bytes and a header into a buffer of a buffered publisher, and publishes them at
/// once, behind what was pushed of the tag. The data may change as soon as this returns;
/// FCAST_EVENT_PUBLISHED comes with the key all the same. One thread at a time.
///
/// FCAST_NOT_FOUND: nobody has subscribed to the tag; FCAST_AGAIN: no buffer is free, or as many
/// publications are under way as may, FCAST_EVENT_WRITABLE says when; FCAST_TOO_LONG: it is longer
/// than a buffer; FCAST_CLOSED: nothing was taken.
///
/// # Safety
///
/// `data`: NULL, or `len` bytes; `header`: NULL, or `header_len` bytes; `publication`: NULL, or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_publish_copied(
    endpoint: fcast_endpoint,
    tag: u64,
    data: *const c_void,
    len: usize,
    header: *const c_void,
    header_len: usize,
    key: u64,
    publication: *mut fcast_publication,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { pointer::bytes(data.cast::<u8>(), len, "data") }?;
        // SAFETY: the caller's promise.
        let header = unsafe { pointer::bytes(header.cast::<u8>(), header_len, "header") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let publisher = publisher(&mut entry.face, "copy what it publishes")?;
        let told = publisher.publish_copied(tag, bytes, header, key)?;
        // SAFETY: the caller's promise.
        unsafe { pointer::put(publication, told.into()) };
        Ok(())
    })
}

/// Publishes what a buffered publisher has packed of one tag; fcast_flush does that for all tags.
/// What can't leave now leaves at a later poll, as soon as it can. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_flush_tag(endpoint: fcast_endpoint, tag: u64) -> fcast_status {
    call(|| {
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        publisher(&mut entry.face, "flush tags")?.flush_tag(tag);
        Ok(())
    })
}

/// An event about a publication, with what was in it.
fn about(kind: u32, tag: u64, content: PublishedContent) -> fcast_event {
    let mut event = match content {
        PublishedContent::Messages { batch, .. } => fcast_event::keyed(kind, batch),
        PublishedContent::Payload { key } => fcast_event::keyed(kind, key),
    };
    event.tag = tag;
    // A buffer has no more bytes than that.
    event.count = u32::try_from(content.messages()).unwrap_or(u32::MAX);
    event
}

/// How a publication ended for one subscriber.
fn ended(tag: u64, content: PublishedContent, how: PeerOutcome) -> (fcast_event, Held) {
    let (told, held) = outcome(0, how);
    let mut event = about(told.kind, tag, content);
    (event.status, event.error) = (told.status, told.error);
    (event, held)
}

/// What was packed could not be published to anybody; the event gives its bytes, too.
#[cold]
fn unpublished(
    tag: u64,
    content: PublishedContent,
    buffer: Option<fabricast::buffer::Buffer>,
    error: SendErrorKind,
) -> (fcast_event, Held) {
    let kind = match content {
        PublishedContent::Messages { .. } => FCAST_EVENT_PUSH_FAILED,
        PublishedContent::Payload { .. } => FCAST_EVENT_FAILED,
    };
    let mut event = about(kind, tag, content);
    event.value = content.messages();
    let failure = Failure::from(error);
    (event.status, event.error) = (failure.status, failure.errno);
    let text = failure.text.into_owned();
    match buffer {
        Some(buffer) => (event, Held::Packed(buffer, c_string(text))),
        None => words(event, text),
    }
}

/// Says of an event whose it is.
fn of(connection: ConnectionId, (mut event, held): (fcast_event, Held)) -> (fcast_event, Held) {
    event.connection = connection.as_u64();
    (event, held)
}

impl Tell for PublishBufferedEvent {
    fn tell(self) -> (fcast_event, Held) {
        let keyed = |kind, key| (fcast_event::keyed(kind, key), Held::Nothing);
        match self {
            Self::Published {
                tag,
                content,
                payload,
                outcomes,
            } => {
                let (_, held) = done(FCAST_EVENT_PUBLISHED, 0, payload);
                let mut event = about(FCAST_EVENT_PUBLISHED, tag, content);
                event.value = u64::from(outcomes.sent);
                (event.dropped, event.failed) = (outcomes.dropped, outcomes.failed);
                (event, held)
            }
            Self::Peer {
                tag,
                content,
                connection,
                outcome,
            } => of(connection, ended(tag, content, outcome)),
            Self::Late {
                tag,
                content,
                connection,
            } => {
                let event = about(FCAST_EVENT_LATE, tag, content);
                of(connection, (event, Held::Nothing))
            }
            Self::Failed {
                tag,
                content,
                buffer,
                error,
            } => unpublished(tag, content, buffer, error),
            Self::Writable => keyed(FCAST_EVENT_WRITABLE, 0),
            Self::Request(asked) => request(&asked),
            Self::Connection(connection, event) => of(connection, event.tell()),
            Self::Subscribed { connection, tag } => {
                of(connection, keyed(FCAST_EVENT_SUBSCRIBED, tag))
            }
            Self::Unsubscribed { connection, tag } => {
                of(connection, keyed(FCAST_EVENT_UNSUBSCRIBED, tag))
            }
            Self::SubscriptionsGone { connection, count } => {
                let (mut event, held) = keyed(FCAST_EVENT_SUBSCRIPTIONS_GONE, 0);
                event.value = u64::from(count);
                of(connection, (event, held))
            }
            other => words(fcast_event::new(FCAST_EVENT_OTHER), format!("{other:?}")),
        }
    }
}
