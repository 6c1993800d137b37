//! Each side of a handshake, as a state machine: version, features, and the proof that both have
//! the key.
//!
//! Whatever comes, it ends: ready, or with an error that says why and, where the peer could
//! understand it, a refusal to send. Before the proof nothing is read but what a handshake consists
//! of.

use std::time::Instant;

use super::auth::{PresharedKey, Role, Transcript};
use super::error::{RefusalCode, StreamError, StreamViolation};
use super::wire::{
    Features, HEADER_LEN, Hello, HelloAck, Kind, Message, Nonce, OLDEST, Ports, Proof, Reason,
    Refuse, VERSION,
};

/// What the two sides have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// The version that is spoken.
    pub(crate) version: u16,
    /// What both can do.
    pub(crate) features: Features,
    /// The session that the connection belongs to.
    pub(crate) session: [u8; 16],
    /// The number of the connection in it.
    pub(crate) rail: u16,
    /// How many connections the sender wants at a time.
    pub(crate) rails: u16,
    /// How many streams at a time the receiver takes.
    pub(crate) streams: u32,
    /// The longest payload that the receiver takes.
    pub(crate) payload_max: u32,
    /// Where the receiver listens besides.
    pub(crate) ports: Ports,
    /// Whether each has proven to the other that it has the key.
    pub(crate) is_proven: bool,
}

/// What comes of a message, or of time.
#[derive(Debug)]
#[must_use]
pub(crate) struct Step {
    /// The message to send to the peer, before anything else.
    pub(crate) say: Option<Message<'static>>,
    /// How it goes on.
    pub(crate) then: Then,
}

/// How a handshake goes on.
#[derive(Debug)]
pub(crate) enum Then {
    /// The peer is to say something.
    Wait,
    /// The handshake is over, and the connection may be used.
    Ready(Agreed),
    /// The handshake failed, and the connection is to be closed once everything was sent.
    Over(StreamError),
}

impl Step {
    fn wait(say: Message<'static>) -> Self {
        Self {
            say: Some(say),
            then: Then::Wait,
        }
    }

    fn over(error: StreamError) -> Self {
        Self {
            say: None,
            then: Then::Over(error),
        }
    }

    /// Tells the peer, too.
    fn refuse(code: RefusalCode, details: [u64; 2], error: StreamError) -> Self {
        let refuse = Refuse {
            stream: 0,
            code,
            details,
            reason: Reason::default(),
        };
        Self {
            say: Some(Message::Refuse(refuse)),
            then: Then::Over(error),
        }
    }

    fn malformed(violation: impl Into<StreamViolation>) -> Self {
        let error = StreamError::Violation(violation.into());
        Self::refuse(RefusalCode::MALFORMED, [0; 2], error)
    }
}

/// The refusal that is sent in place of a proof that did not come.
fn refused(refuse: &Refuse<'_>) -> Step {
    Step::over(StreamError::Refused {
        code: refuse.code,
        details: refuse.details,
        reason: refuse.reason.to_string(),
    })
}

fn late() -> Step {
    let what = "the handshake of a stream";
    Step::refuse(
        RefusalCode::DEADLINE,
        [0; 2],
        StreamError::Deadline { what },
    )
}

/// The first part of each answer: the message, unless it is none that a handshake has, or the time
/// is up.
fn read<'a>(header: &[u8], payload: &'a [u8], state: &'static str) -> Result<Message<'a>, Step> {
    match Kind::peek(header) {
        Some(Kind::HELLO | Kind::HELLO_ACK | Kind::PROOF | Kind::REFUSE) => {}
        // Nothing else is looked into.
        Some(Kind(kind)) => {
            return Err(Step::malformed(StreamViolation::Unexpected { kind, state }));
        }
        None => {}
    }
    Message::parse(header, payload).map_err(Step::malformed)
}

fn unexpected(message: &Message<'_>, state: &'static str) -> Step {
    let kind = message.kind().0;
    Step::malformed(StreamViolation::Unexpected { kind, state })
}

/// What a sender offers on a connection.
#[derive(Debug, Clone)]
pub(crate) struct DialSettings {
    pub(crate) session: [u8; 16],
    pub(crate) rail: u16,
    pub(crate) rails: u16,
    pub(crate) features: Features,
    /// With a key, a receiver that has none is not talked to.
    pub(crate) key: Option<PresharedKey>,
    /// See [`nonce`](super::auth::nonce).
    pub(crate) nonce: Nonce,
    pub(crate) deadline: Instant,
}

/// The sender's side.
#[derive(Debug)]
pub(crate) struct Dialing {
    settings: DialSettings,
    transcript: Transcript,
    state: DialState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DialState {
    Greeted,
    /// The answer came; the receiver's proof did not.
    Answered(Agreed),
    Over,
}

impl Dialing {
    /// A handshake, and what is to be sent first.
    pub(crate) fn new(settings: DialSettings) -> (Self, Message<'static>) {
        let hello = Message::Hello(Hello {
            version: VERSION,
            oldest: OLDEST,
            rail: settings.rail,
            rails: settings.rails,
            features: settings.features,
            session: settings.session,
            nonce: settings.nonce,
        });
        let mut transcript = Transcript::default();
        let mut header = [0; HEADER_LEN];
        let payload = hello.encode(&mut header);
        transcript.add(&header, payload);
        let dialing = Self {
            settings,
            transcript,
            state: DialState::Greeted,
        };
        (dialing, hello)
    }

    /// When [`on_time`](Self::on_time) ends it.
    #[cfg(test)]
    pub(crate) fn deadline(&self) -> Instant {
        self.settings.deadline
    }

    /// What comes of a message.
    pub(crate) fn on_message(&mut self, header: &[u8], payload: &[u8], now: Instant) -> Step {
        if now >= self.settings.deadline {
            return self.end(late());
        }
        let step = match read(header, payload, "the hello is not answered") {
            Err(step) => step,
            Ok(Message::Refuse(refuse)) => refused(&refuse),
            Ok(message) => match (self.state, &message) {
                (DialState::Greeted, Message::HelloAck(ack)) => {
                    self.transcript.add(header, payload);
                    self.on_ack(ack)
                }
                (DialState::Answered(agreed), Message::Proof(proof)) => {
                    self.on_proof(&agreed, proof)
                }
                _ => unexpected(&message, "the hello is not answered"),
            },
        };
        self.end(step)
    }

    /// What comes of time.
    pub(crate) fn on_time(&mut self, now: Instant) -> Option<Step> {
        let is_late = self.state != DialState::Over && now >= self.settings.deadline;
        is_late.then(|| self.end(late()))
    }

    fn end(&mut self, step: Step) -> Step {
        if !matches!(step.then, Then::Wait) {
            self.state = DialState::Over;
        }
        step
    }

    fn on_ack(&mut self, ack: &HelloAck) -> Step {
        let settings = &self.settings;
        let count = |what, value: u64| Step::malformed(StreamViolation::Count { what, value });
        if !(OLDEST..=VERSION).contains(&ack.version) {
            return count("the version", ack.version.into());
        }
        if ack.session != settings.session {
            return count("the first byte of the session", ack.session[0].into());
        }
        if !settings.features.contains(ack.features) {
            return count("the features", ack.features.bits());
        }
        let agreed = Agreed {
            version: ack.version,
            features: ack.features,
            session: settings.session,
            rail: settings.rail,
            rails: settings.rails,
            streams: ack.streams,
            payload_max: ack.payload_max,
            ports: ack.ports,
            is_proven: false,
        };
        match (&settings.key, ack.needs_proof) {
            (None, false) => Step {
                say: None,
                then: Then::Ready(agreed),
            },
            (Some(key), true) => {
                self.state = DialState::Answered(agreed);
                let mac = key.proof(Role::Sender, &self.transcript);
                Step::wait(Message::Proof(Proof { mac }))
            }
            (Some(_), false) => Step::refuse(RefusalCode::KEY, [0; 2], StreamError::Unproven),
            (None, true) => {
                let error = StreamError::Refused {
                    code: RefusalCode::KEY,
                    details: [0; 2],
                    reason: "it asks for a key, and there is none here".to_owned(),
                };
                Step::refuse(RefusalCode::KEY, [0; 2], error)
            }
        }
    }

    fn on_proof(&self, agreed: &Agreed, proof: &Proof) -> Step {
        let key = self.settings.key.as_ref();
        let is_proven =
            key.is_some_and(|key| key.is_proven(Role::Receiver, &self.transcript, &proof.mac));
        match is_proven {
            true => Step {
                say: None,
                then: Then::Ready(Agreed {
                    is_proven,
                    ..*agreed
                }),
            },
            false => wrong_key(),
        }
    }
}

/// The peer's proof is none.
fn wrong_key() -> Step {
    let error = StreamError::GivenUp {
        code: RefusalCode::KEY,
        reason: "its proof is wrong".to_owned(),
    };
    Step::refuse(RefusalCode::KEY, [0; 2], error)
}

/// What a receiver offers on each connection.
#[derive(Debug, Clone)]
pub(crate) struct AnswerSettings {
    pub(crate) features: Features,
    /// Streams at a time, at least 1.
    pub(crate) streams: u32,
    /// See [`PAYLOAD_ROOM_MIN`](super::wire::PAYLOAD_ROOM_MIN).
    pub(crate) payload_max: u32,
    /// Where it listens besides: for senders that ask, and with [`Features::PORTS`] here.
    pub(crate) ports: Ports,
    /// With a key, a sender that does not prove that it has it is not talked to.
    pub(crate) key: Option<PresharedKey>,
    /// See [`nonce`](super::auth::nonce).
    pub(crate) nonce: Nonce,
    pub(crate) deadline: Instant,
}

/// The receiver's side.
#[derive(Debug)]
pub(crate) struct Answering {
    settings: AnswerSettings,
    transcript: Transcript,
    state: AnswerState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerState {
    Silent,
    /// The hello was answered; the sender's proof did not come.
    Asked(Agreed),
    Over,
}

impl Answering {
    pub(crate) fn new(settings: AnswerSettings) -> Self {
        Self {
            settings,
            transcript: Transcript::default(),
            state: AnswerState::Silent,
        }
    }

    /// When [`on_time`](Self::on_time) ends it.
    #[cfg(test)]
    pub(crate) fn deadline(&self) -> Instant {
        self.settings.deadline
    }

    /// What comes of a message.
    pub(crate) fn on_message(&mut self, header: &[u8], payload: &[u8], now: Instant) -> Step {
        if now >= self.settings.deadline {
            return self.end(late());
        }
        let step = match read(header, payload, "the handshake is not over") {
            Err(step) => step,
            Ok(Message::Refuse(refuse)) => refused(&refuse),
            Ok(message) => match (self.state, &message) {
                (AnswerState::Silent, Message::Hello(hello)) => {
                    self.transcript.add(header, payload);
                    self.on_hello(hello)
                }
                (AnswerState::Asked(agreed), Message::Proof(proof)) => {
                    self.on_proof(&agreed, proof)
                }
                _ => unexpected(&message, "the handshake is not over"),
            },
        };
        self.end(step)
    }

    /// What comes of time.
    pub(crate) fn on_time(&mut self, now: Instant) -> Option<Step> {
        let is_late = self.state != AnswerState::Over && now >= self.settings.deadline;
        is_late.then(|| self.end(late()))
    }

    fn end(&mut self, step: Step) -> Step {
        if !matches!(step.then, Then::Wait) {
            self.state = AnswerState::Over;
        }
        step
    }

    fn on_hello(&mut self, hello: &Hello) -> Step {
        if hello.oldest > VERSION || hello.version < OLDEST {
            let details = [VERSION, OLDEST].map(u64::from);
            let error = StreamError::GivenUp {
                code: RefusalCode::VERSION,
                reason: format!(
                    "it speaks versions {} to {}, this side {OLDEST} to {VERSION}",
                    hello.oldest, hello.version
                ),
            };
            return Step::refuse(RefusalCode::VERSION, details, error);
        }
        let settings = &self.settings;
        let features = hello.features & settings.features;
        let agreed = Agreed {
            version: hello.version.min(VERSION),
            features,
            session: hello.session,
            rail: hello.rail,
            rails: hello.rails,
            streams: settings.streams,
            payload_max: settings.payload_max,
            ports: match features.contains(Features::PORTS) {
                true => settings.ports,
                false => Ports::default(),
            },
            is_proven: false,
        };
        let ack = Message::HelloAck(HelloAck {
            version: agreed.version,
            needs_proof: settings.key.is_some(),
            streams: agreed.streams,
            payload_max: agreed.payload_max,
            features: agreed.features,
            session: agreed.session,
            ports: agreed.ports,
            nonce: settings.nonce,
        });
        if settings.key.is_none() {
            return Step {
                say: Some(ack),
                then: Then::Ready(agreed),
            };
        }
        let mut header = [0; HEADER_LEN];
        let payload = ack.encode(&mut header);
        self.transcript.add(&header, payload);
        self.state = AnswerState::Asked(agreed);
        Step::wait(ack)
    }

    fn on_proof(&self, agreed: &Agreed, proof: &Proof) -> Step {
        let Some(key) = &self.settings.key else {
            return wrong_key();
        };
        if !key.is_proven(Role::Sender, &self.transcript, &proof.mac) {
            return wrong_key();
        }
        let mac = key.proof(Role::Receiver, &self.transcript);
        let is_proven = true;
        Step {
            say: Some(Message::Proof(Proof { mac })),
            then: Then::Ready(Agreed {
                is_proven,
                ..*agreed
            }),
        }
    }
}

#[cfg(test)]
mod tests;
