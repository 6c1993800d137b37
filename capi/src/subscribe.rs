//! Subscribers: they get the publications of the tags that they ask for.

#![allow(unsafe_code)] // Functions that C calls.

use std::collections::VecDeque;
use std::ffi::c_char;

use fabricast::SubscribeEndpoint;
use fabricast::endpoint::{PublisherId, SubscribeConfig, SubscribeEvent};

use crate::call::call;
use crate::endpoint::{address, fcast_endpoint, open};
use crate::event::{
    FCAST_EVENT_DEVICE_PUBLICATION, FCAST_EVENT_OTHER, FCAST_EVENT_PUBLICATION,
    FCAST_EVENT_STARVED, FCAST_EVENT_SUBSCRIBED, FCAST_EVENT_SUBSCRIPTION_REFUSED,
    FCAST_EVENT_UNSUBSCRIBED, Held, Tell, device_message, fcast_event, message, undelivered, words,
};
use crate::fabric::fcast_domain;
use crate::face::Face;
use crate::handle::{DOMAINS, ENDPOINTS};
use crate::pointer::{self, Out};
use crate::settings::fcast_settings;
use crate::settings_of::Whose;
use crate::status::{FCAST_REFUSED, Failure, fcast_status};

/// Opens a subscriber, without a publisher yet. Any thread.
///
/// # Safety
///
/// `settings`: NULL, or a struct whose size field is right; `endpoint`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_subscriber_open(
    domain: fcast_domain,
    settings: *const fcast_settings,
    endpoint: *mut fcast_endpoint,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(endpoint, "endpoint") }?;
        // SAFETY: the caller's promise.
        let settings: fcast_settings = unsafe { pointer::sized(settings, "settings") }?;
        settings.refuse_others(Whose::Subscriber)?;
        let domain = DOMAINS.share(domain.id)?.clone();
        let incoming = settings.incoming()?;
        let mut config = SubscribeConfig::default()
            .connection(|of| settings.connection(of))
            .incoming(|_| incoming);
        if settings.subscriptions != 0 {
            config = config.subscriptions(settings.subscriptions);
        }
        let subscriber = SubscribeEndpoint::open(&domain, config)?;
        let face = Face::Subscribe(Box::new(subscriber), VecDeque::new());
        open(out, face, None)
    })
}

/// The subscriber of an endpoint.
fn subscriber(face: &mut Face) -> Result<&mut SubscribeEndpoint, Failure> {
    match face {
        Face::Subscribe(subscriber, _) => Ok(subscriber),
        face => Err(face.cannot("subscribe")),
    }
}

/// Starts to connect to a publisher. `*publisher`: its number, which events have as `connection`.
/// Returns at once: FCAST_EVENT_CONNECTED, FCAST_EVENT_RECONNECTING or FCAST_EVENT_DISCONNECTED
/// follows. One thread at a time.
///
/// # Safety
///
/// `peer`: NULL, or a text that ends with a zero; `publisher`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_subscriber_connect(
    endpoint: fcast_endpoint,
    peer: *const c_char,
    publisher: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(publisher, "publisher") }?;
        // SAFETY: the caller's promise.
        let at = unsafe { address(peer, "peer") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        out.set(subscriber(&mut entry.face)?.connect(at)?.as_u64());
        Ok(())
    })
}

/// Asks a publisher for the publications of a tag, also before it is connected, and again after
/// each new connection. FCAST_EVENT_SUBSCRIBED or FCAST_EVENT_SUBSCRIPTION_REFUSED follows.
///
/// FCAST_NOT_FOUND: no such publisher; FCAST_INVALID: it was asked for; FCAST_AGAIN: its end is
/// under way; FCAST_NO_RESOURCES: as many tags are wanted as may. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_subscribe(
    endpoint: fcast_endpoint,
    publisher: u64,
    tag: u64,
) -> fcast_status {
    call(|| {
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let publisher = PublisherId::from_u64(publisher);
        Ok(subscriber(&mut entry.face)?.subscribe(publisher, tag)?)
    })
}

/// Asks for them no more. FCAST_EVENT_UNSUBSCRIBED follows; until then publications of the tag may
/// come, afterwards none. FCAST_NOT_FOUND: it was not asked for. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_unsubscribe(
    endpoint: fcast_endpoint,
    publisher: u64,
    tag: u64,
) -> fcast_status {
    call(|| {
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let publisher = PublisherId::from_u64(publisher);
        Ok(subscriber(&mut entry.face)?.unsubscribe(publisher, tag)?)
    })
}

/// What is told of a publication beside its message.
struct About {
    publisher: PublisherId,
    tag: u64,
    number: u64,
    missed: u64,
}

impl About {
    fn of(&self, (mut event, held): (fcast_event, Held)) -> (fcast_event, Held) {
        event.connection = self.publisher.as_u64();
        event.key = self.tag;
        event.sequence = self.number;
        event.value = self.missed;
        (event, held)
    }
}

/// A kind of event in place of another.
fn as_kind(kind: u32, (mut event, held): (fcast_event, Held)) -> (fcast_event, Held) {
    event.kind = kind;
    (event, held)
}

impl Tell for SubscribeEvent {
    fn tell(self) -> (fcast_event, Held) {
        let plain = |publisher: PublisherId, (mut event, held): (fcast_event, Held)| {
            event.connection = publisher.as_u64();
            (event, held)
        };
        let keyed = |kind, key| (fcast_event::keyed(kind, key), Held::Nothing);
        match self {
            Self::Publication {
                publisher,
                tag,
                number,
                missed,
                message: received,
            } => About {
                publisher,
                tag,
                number,
                missed,
            }
            .of(as_kind(FCAST_EVENT_PUBLICATION, message(received))),
            Self::Connection(publisher, event) => plain(publisher, event.tell()),
            Self::Subscribed { publisher, tag } => {
                plain(publisher, keyed(FCAST_EVENT_SUBSCRIBED, tag))
            }
            Self::Unsubscribed { publisher, tag } => {
                plain(publisher, keyed(FCAST_EVENT_UNSUBSCRIBED, tag))
            }
            Self::Refused {
                publisher,
                tag,
                outcome,
            } => {
                let mut event = fcast_event::keyed(FCAST_EVENT_SUBSCRIPTION_REFUSED, tag);
                event.status = FCAST_REFUSED;
                plain(publisher, words(event, format!("{outcome:?}")))
            }
            Self::Starved { publisher } => plain(publisher, keyed(FCAST_EVENT_STARVED, 0)),
            of_device => of_device_publication(of_device),
        }
    }
}

/// Those that are to come into a GPU's memory.
fn of_device_publication(event: SubscribeEvent) -> (fcast_event, Held) {
    match event {
        SubscribeEvent::DevicePublication {
            publisher,
            tag,
            number,
            missed,
            message,
        } => About {
            publisher,
            tag,
            number,
            missed,
        }
        .of(as_kind(
            FCAST_EVENT_DEVICE_PUBLICATION,
            device_message(message),
        )),
        SubscribeEvent::Undelivered {
            publisher,
            tag,
            number,
            missed,
            message,
            error,
        } => About {
            publisher,
            tag,
            number,
            missed,
        }
        .of(undelivered(message, &error)),
        other => words(fcast_event::new(FCAST_EVENT_OTHER), format!("{other:?}")),
    }
}
