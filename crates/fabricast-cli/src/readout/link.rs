//! One builder, as a source sees it: the connection to it, what waits for it, and what it has
//! answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::{HeaderSlotConfig, Payload};
use fabricast::endpoint::{Blocked, CloseReason, Refused, SendConfig, SendErrorKind};
use fabricast::event_loop::{EventLoop, Token};
use fabricast::{Domain, PeerAddr, SendEndpointZeroCopy};

use crate::failure::Failure;
use crate::readout::HEADER_MODE;
use crate::readout::events::{Event, Events, Part};
use crate::readout::summary::Summary;
use crate::readout::wire::{Fragment, Grant, HEADER_LEN, ToBuilder, Volume};

/// Sends in flight to one builder at most, and header slots for them: fragments, or frames of many
/// short ones.
pub(crate) const DEPTH: u32 = 512;

/// The key of messages that are no fragments.
pub(crate) const CONTROL: u64 = u64::MAX;

/// The key of a fragment: its event's place, and which of its parts.
fn key(place: u32, part: usize) -> u64 {
    u64::from(place) << 16 | part as u64
}

/// The reverse: place and part.
pub(crate) fn unkey(key: u64) -> (u32, usize) {
    ((key >> 16) as u32, (key & 0xffff) as usize)
}

/// Why sends were refused for the time being, by what they waited for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stalls {
    /// The builder held as many fragments as it takes ahead.
    pub(crate) granted: u64,
    /// The builder's connection had not granted more messages.
    pub(crate) credits: u64,
    /// As many sends were in flight as the depth allows.
    pub(crate) depth: u64,
    /// No header slot was free.
    pub(crate) header_slots: u64,
    /// The provider's queue was full.
    pub(crate) provider: u64,
}

impl Stalls {
    pub(crate) fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.credits += other.credits;
        self.depth += other.depth;
        self.header_slots += other.header_slots;
        self.provider += other.provider;
    }

    fn count(&mut self, blocked: Blocked) {
        match blocked {
            Blocked::Credits => self.credits += 1,
            Blocked::Depth => self.depth += 1,
            Blocked::HeaderSlots => self.header_slots += 1,
            Blocked::Provider => self.provider += 1,
            _ => {}
        }
    }
}

/// How far the talk with a builder is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The connection is being made, or our Hello or its Ready is under way.
    Opening,
    Ready,
    /// Our End is sent, its Summary is awaited.
    Ended,
    Closing,
    Closed,
    /// It was lost before it had said its Summary.
    Lost(String),
}

pub(crate) struct Link {
    pub(crate) to: PeerAddr,
    /// What its answers must repeat.
    pub(crate) token: u64,
    pub(crate) loop_token: Token,
    pub(crate) endpoint: SendEndpointZeroCopy,
    pub(crate) stage: Stage,
    /// Places of events to send, the first of which may be sent in part. Bounded by the table of
    /// events.
    queue: VecDeque<u32>,
    /// The same of events that were another builder's: they go first, they are the oldest.
    urgent: VecDeque<u32>,
    /// Fragments that the builder takes ahead, how many of them may be of events in their turn, and
    /// how many its unanswered events take up.
    pub(crate) granted: u64,
    in_turn: u64,
    held: u64,
    /// What waits found that full.
    full: bool,
    /// Refused for the time being; the endpoint says when to try again.
    blocked: bool,
    /// Fragments that the connection took, and their bytes.
    pub(crate) sent: Volume,
    /// Its events that it has not answered for.
    pub(crate) unanswered: u64,
    pub(crate) built: u64,
    pub(crate) given_up: u64,
    pub(crate) stalls: Stalls,
    pub(crate) last_progress: Instant,
    pub(crate) summary: Option<Summary>,
}

impl Link {
    pub(crate) fn connect(
        domain: &Arc<Domain>,
        event_loop: &mut EventLoop,
        to: PeerAddr,
        token: u64,
        events: u32,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let config = SendConfig::default()
            .outgoing(|out| {
                out.depth(DEPTH)
                    .headers(HeaderSlotConfig {
                        slots: DEPTH,
                        slot_size: HEADER_LEN,
                    })
                    .header_mode(HEADER_MODE)
                    .deadline(Some(patience))
            })
            .connection(|c| {
                c.connect_timeout(patience)
                    .unresponsive_after(Some(patience / 2))
                    .lost_after(Some(patience))
            });
        let endpoint = SendEndpointZeroCopy::connect(domain, to, config)?;
        Ok(Self {
            to,
            token,
            loop_token: event_loop.add_endpoint(&endpoint)?,
            endpoint,
            stage: Stage::Opening,
            queue: VecDeque::with_capacity(events as usize),
            urgent: VecDeque::with_capacity(events as usize),
            granted: 0,
            in_turn: 0,
            held: 0,
            full: false,
            blocked: false,
            sent: Volume::default(),
            unanswered: 0,
            built: 0,
            given_up: 0,
            stalls: Stalls::default(),
            last_progress: Instant::now(),
            summary: None,
        })
    }

    /// The connection stands: the Hello may go.
    pub(crate) fn on_connected(&mut self) {
        self.blocked = false;
    }

    /// The builder says how much it takes ahead from so many detectors: an event that was another
    /// builder's fits whatever others are under way.
    pub(crate) fn on_ready(&mut self, grant: Grant, detectors: u16) {
        self.granted = grant.fragments.into();
        self.in_turn = (self.granted * 3 / 4).min(self.granted - u64::from(detectors));
        self.stage = Stage::Ready;
    }

    pub(crate) fn unblock(&mut self) {
        self.blocked = false;
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.stage, Stage::Lost(_))
    }

    /// Whether events may be assigned to it.
    pub(crate) fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    pub(crate) fn assign(&mut self, place: u32, reassigned: bool) {
        if self.unanswered == 0 {
            // From now on something is expected of it.
            self.last_progress = Instant::now();
        }
        self.unanswered += 1;
        let queue = if reassigned {
            &mut self.urgent
        } else {
            &mut self.queue
        };
        queue.push_back(place);
    }

    /// Forgets what waits: its connection has ended.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.urgent.clear();
        self.unanswered = 0;
    }

    /// An event that was sent in part, and is not wanted any more.
    pub(crate) fn forget(&mut self, place: u32) {
        self.queue.retain(|waiting| *waiting != place);
        self.urgent.retain(|waiting| *waiting != place);
    }

    /// The builder has answered for an event, of which it held so many fragments.
    pub(crate) fn on_answered(&mut self, fragments: u8, built: bool) {
        self.unanswered -= 1;
        self.held -= u64::from(fragments);
        if built {
            self.built += 1;
        } else {
            self.given_up += 1;
        }
    }

    /// Sends what waits, until there is nothing or the endpoint takes no more.
    ///
    /// With several sources, a builder may hold all that one source may send, waiting for another
    /// source; if events of a lost builder came behind that, each source could wait for the other.
    /// So a quarter of what the builder takes is theirs alone.
    pub(crate) fn pump(&mut self, events: &mut Events) -> Result<(), Failure> {
        while !self.blocked {
            let urgent = self.urgent.front();
            let Some(&place) = urgent.or_else(|| self.queue.front()) else {
                break;
            };
            let (event, parts) = events.with_parts(place);
            let limit = match event.reassigned {
                true => self.granted,
                false => self.in_turn,
            };
            if event.sent == 0 && self.held + u64::from(event.count) > limit {
                self.stalls.granted += u64::from(!self.full);
                self.full = true;
                break;
            }
            self.full = false;
            while event.sent < event.count && self.send_part(place, event, parts)? {}
            if event.sent == event.count {
                let queue = if event.reassigned {
                    &mut self.urgent
                } else {
                    &mut self.queue
                };
                queue.pop_front();
            }
        }
        Ok(())
    }

    /// Sends the next fragment of an event; false: not now.
    #[inline(always)]
    fn send_part(
        &mut self,
        place: u32,
        event: &mut Event,
        parts: &mut [Part],
    ) -> Result<bool, Failure> {
        let (index, of) = (usize::from(event.sent), u16::from(event.count));
        let part = &mut parts[index];
        let fragment = part.fragment.take().expect("what is to be sent is here");
        let header = ToBuilder::Fragment(Fragment {
            event: event.number,
            detector: part.detector,
            of,
            serial: self.sent.fragments,
            committed: part.committed,
            crc: part.crc,
            reassigned: event.reassigned,
        });
        let len = fragment.len();
        let header = header.encode(len);
        match self
            .endpoint
            .send_data(fragment, &header, key(place, index))
        {
            Ok(()) => {
                event.sent += 1;
                event.in_flight += 1;
                self.held += 1;
                self.sent.fragments += 1;
                self.sent.bytes += len as u64;
                Ok(true)
            }
            Err(refused) => {
                part.fragment = self.on_refused(refused)?.into_fragment().ok();
                Ok(false)
            }
        }
    }

    /// Sends a message that is no fragment; false: not now.
    pub(crate) fn send_control(&mut self, message: ToBuilder) -> Result<bool, Failure> {
        let header = message.encode(0);
        match self.endpoint.send_data(Payload::empty(), &header, CONTROL) {
            Ok(()) => Ok(true),
            Err(refused) => self.on_refused(refused).map(|_| false),
        }
    }

    fn on_refused(&mut self, refused: Refused<Payload>) -> Result<Payload, Failure> {
        self.blocked = true;
        match refused.kind {
            SendErrorKind::WouldBlock(blocked) => self.stalls.count(blocked),
            // The connection's own event says more.
            SendErrorKind::Closing | SendErrorKind::Closed(_) => {}
            other => return Err(Failure::new(format!("builder {}: {other}", self.to))),
        }
        Ok(refused.given)
    }

    /// The goodbye: everything has been answered for, or nothing is expected any more.
    pub(crate) fn close(&mut self, deadline: Instant) {
        self.stage = Stage::Closing;
        self.endpoint.begin_close(deadline);
    }

    /// The connection has ended. True: it was not time for that.
    pub(crate) fn on_closed(&mut self, reason: CloseReason) -> bool {
        let early = !matches!(self.stage, Stage::Closing | Stage::Closed | Stage::Lost(_));
        if early {
            self.stage = Stage::Lost(reason.to_string());
        } else if self.stage == Stage::Closing {
            self.stage = Stage::Closed;
        }
        early
    }
}
