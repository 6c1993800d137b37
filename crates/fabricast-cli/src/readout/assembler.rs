//! The assembler: all that a builder knows of its sources and their events, apart from the endpoint
//! that messages are borrowed from while it looks at them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::Domain;
use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{CloseReason, ConnectionId, ConnectionInfo, MessageRef};
use fabricast::event_loop::EventLoop;
use fabricast::metrics::Latencies;

use crate::failure::Failure;
use crate::readout::answers::Answers;
use crate::readout::args::BuilderArgs;
use crate::readout::assembly::{Assembly, Fresh, FreshPiece, Partial, Piece};
use crate::readout::clock::{clock_id, now_ns};
use crate::readout::pattern;
use crate::readout::summary::Summary;
use crate::readout::upstream::Upstream;
use crate::readout::usage::Since;
use crate::readout::wire::{ANSWER_LEN_MAX, Fragment, Grant, Hello, ToBuilder, Volume};

/// One check in so many is timed: asking for the time costs about as much as checking a short
/// fragment.
const TIMED: u64 = 64;
/// One event in so many has its latency recorded: often enough for percentiles, and no number that
/// batches are multiples of.
const SAMPLED: u64 = 13;
/// Sources at most: an event has a bit for each.
const SOURCES_MAX: usize = 64;

/// Puts the events of one run together.
pub(crate) struct Assembler<'a> {
    args: &'a BuilderArgs,
    domain: Arc<Domain>,
    /// Their places are not used again in this run, but those of strangers.
    pub(crate) sources: Vec<Upstream>,
    /// Whose the last message was: that of the next one, mostly.
    last_source: usize,
    pub(crate) assembly: Assembly,
    /// Messages share their buffers: what waits is copied.
    copies: bool,
    answer_buffers: SharedBufferManager,
    pub(crate) latency: Latencies,
    pub(crate) built: u64,
    checks: Checks,
    grant: Grant,
    /// When the endpoint was last polled, and found something.
    pub(crate) now: Instant,
    pub(crate) last_message: Instant,
    /// When the sources were told to start.
    started: Option<Since>,
    /// Connections to be closed: strangers, and sources that are broken.
    pub(crate) turned_out: Vec<ConnectionId>,
    pub(crate) end: Option<Result<(), Failure>>,
}

impl<'a> Assembler<'a> {
    pub(crate) fn new(args: &'a BuilderArgs, domain: &Arc<Domain>) -> Result<Self, Failure> {
        let answer_buffers = SharedBufferManager::allocate(64, ANSWER_LEN_MAX)?;
        answer_buffers.region().register(domain)?;
        Ok(Self {
            args,
            domain: Arc::clone(domain),
            sources: Vec::new(),
            last_source: 0,
            assembly: Assembly::new(args.detectors),
            copies: args.is_packed(),
            answer_buffers,
            latency: Latencies::default(),
            built: 0,
            checks: Checks::default(),
            grant: Grant {
                fragments: args.credits()?,
                longest: args.max_fragment as u32,
            },
            now: Instant::now(),
            last_message: Instant::now(),
            started: None,
            turned_out: Vec::new(),
            end: None,
        })
    }

    /// The connections that answers go by.
    pub(crate) fn answers(&mut self) -> impl Iterator<Item = &mut Answers> {
        let all = self.sources.iter_mut();
        all.filter_map(|source| source.answers.as_mut())
    }

    // ---- what sources send ----------------------------------------------------------------------

    pub(crate) fn on_source(&mut self, connection: ConnectionId, info: &ConnectionInfo) {
        let source = Upstream::new(connection, info);
        // A stranger that came and went leaves its place: there are no more places than
        // connections.
        let stranger = |source: &&mut Upstream| source.hello.is_none() && source.closed.is_some();
        match self.sources.iter_mut().find(stranger) {
            Some(place) => *place = source,
            None => self.sources.push(source),
        }
    }

    /// A message came. What it adds to the event at hand is borrowed, until that is complete or
    /// [settled](Assembly::settle).
    #[inline]
    pub(crate) fn on_message<'m>(
        &mut self,
        event_loop: &mut EventLoop,
        message: MessageRef<'m>,
        fresh: &mut Fresh<'m>,
    ) -> Result<(), Failure> {
        let Some(index) = self.source_of(message.connection()) else {
            return Ok(());
        };
        self.last_message = self.now;
        let heard = match ToBuilder::parse(message.header(), message.payload().len()) {
            Ok(ToBuilder::Fragment(fragment)) => self.on_fragment(index, &fragment, message, fresh),
            Ok(other) => self.on_other(event_loop, index, other)?,
            Err(what) => Err(what),
        };
        if let Err(what) = heard {
            self.turn_out(index, what);
        }
        Ok(())
    }

    #[inline]
    fn source_of(&mut self, connection: ConnectionId) -> Option<usize> {
        let last = self.sources.get(self.last_source);
        if last.is_none_or(|last| last.connection != connection) {
            let is_it = |source: &Upstream| source.connection == connection;
            self.last_source = self.sources.iter().position(is_it)?;
        }
        Some(self.last_source)
    }

    /// The outer error ends the run, the inner one this source.
    #[cold]
    fn on_other(
        &mut self,
        event_loop: &mut EventLoop,
        index: usize,
        message: ToBuilder,
    ) -> Result<Result<(), &'static str>, Failure> {
        match (message, self.sources[index].hello) {
            (ToBuilder::End(sent), Some(_)) => {
                self.on_end(index, sent);
                Ok(Ok(()))
            }
            (ToBuilder::Hello(hello), None) => self.on_hello(event_loop, index, hello),
            _ => Ok(Err(WRONG_ORDER)),
        }
    }

    /// A stranger, or a source that is broken. If it was a source, the run ends when its connection
    /// has.
    #[cold]
    fn turn_out(&mut self, index: usize, what: &str) {
        let source = &self.sources[index];
        eprintln!(
            "fabricast: {} sent {what}: its connection is closed",
            source.name()
        );
        self.turned_out.push(source.connection);
    }

    /// The outer error ends the run, the inner one this source.
    fn on_hello(
        &mut self,
        event_loop: &mut EventLoop,
        index: usize,
        hello: Hello,
    ) -> Result<Result<(), &'static str>, Failure> {
        let bits = |hello: &Hello| {
            let all = u128::MAX >> (128 - u32::from(hello.detectors.min(64)));
            all << hello.first_detector.min(64)
        };
        let fits = hello.detectors > 0
            && u32::from(hello.first_detector) + u32::from(hello.detectors) <= 64
            && index < SOURCES_MAX;
        if !fits {
            return Ok(Err("a Hello with detectors that there can't be"));
        }
        let others = self
            .sources
            .iter()
            .filter_map(|source| source.hello.as_ref());
        let taken = others.map(bits).fold(0, |all, one| all | one);
        let more = bits(&hello);
        if taken & more != 0 || (taken | more).count_ones() > self.args.detectors.into() {
            return Err(Failure::new(format!(
                "{}: has detectors {} to {}, which makes more than the {} that there are, or one \
                 twice (--detectors, --first-detector)",
                self.sources[index].name(),
                hello.first_detector,
                hello.first_detector + hello.detectors - 1,
                self.args.detectors
            )));
        }
        let Some(address) = self.sources[index].address else {
            return Err(Failure::new("the provider does not say where a source is"));
        };
        // To the host that the source is at, whatever it says; only the port is its choice.
        let answers = Answers::connect(
            &self.domain,
            event_loop,
            SocketAddr::new(address.ip(), hello.port),
            hello.token,
            self.grant,
            &self.answer_buffers,
            self.args.common.patience(),
        )?;
        self.sources[index].answers = Some(answers);
        self.sources[index].hello = Some(hello);
        self.start_if_complete();
        Ok(Ok(()))
    }

    /// Detectors of the sources that have come.
    pub(crate) fn detectors(&self) -> u32 {
        self.sources.iter().map(Upstream::detectors).sum()
    }

    /// All sources start together: one that is ahead would wait for the others with its ring full.
    fn start_if_complete(&mut self) {
        if self.detectors() == u32::from(self.args.detectors) {
            let all = self.sources.iter_mut();
            all.filter_map(|source| source.answers.as_mut())
                .for_each(|answers| answers.may_start = true);
            self.started = Some(Since::now());
        }
    }

    #[inline(always)]
    fn on_fragment<'m>(
        &mut self,
        index: usize,
        fragment: &Fragment,
        message: MessageRef<'m>,
        fresh: &mut Fresh<'m>,
    ) -> Result<(), &'static str> {
        let source = &mut self.sources[index];
        let Some(hello) = &source.hello else {
            return Err(WRONG_ORDER);
        };
        let detectors = hello.first_detector..hello.first_detector + hello.detectors;
        if !detectors.contains(&fragment.detector)
            || fragment.of == 0
            || fragment.of > hello.detectors
        {
            return Err("a fragment of a detector that is not its own");
        }
        let len = message.payload().len();
        if len > self.grant.longest as usize {
            return Err("a fragment that is longer than was granted");
        }
        if source.held >= self.grant.fragments {
            return Err("more fragments than were granted");
        }
        // Events come in order, but those that another builder left behind; fragments without a
        // gap, all of them.
        let in_order = fragment.reassigned || fragment.event >= source.last_event;
        if !in_order || fragment.serial != source.received.fragments {
            source.order_errors += 1;
        }
        if !fragment.reassigned {
            source.last_event = fragment.event;
        }
        source.received.fragments += 1;
        source.received.bytes += len as u64;
        source.held += 1;
        let origin = (index, hello.detectors);
        let content = match self.copies {
            true => FreshPiece::Bytes(message.payload()),
            false => FreshPiece::Message(message),
        };
        match self
            .assembly
            .add(fragment, origin, content, self.now, fresh)
        {
            Ok(false) => {}
            Ok(true) => self.on_complete(fresh),
            Err(_) => {
                source.duplicates += 1;
                source.held -= 1;
            }
        }
        Ok(())
    }

    /// All fragments of the current event are there: this is where an experiment's code would
    /// begin.
    #[inline]
    fn on_complete(&mut self, fresh: &mut Fresh<'_>) {
        let event = self.assembly.current();
        if self.built.is_multiple_of(SAMPLED) {
            record_latency(&mut self.latency, &self.sources, event);
        }
        for piece in &event.pieces {
            let source = &mut self.sources[usize::from(piece.source)];
            source.held -= 1;
            let is_checked = source.hello.as_ref().is_some_and(|hello| hello.checked);
            if is_checked && !self.checks.is_right(event, piece, fresh) {
                source.content_errors += 1;
            }
        }
        if self.args.build.work > 0 {
            std::thread::sleep(Duration::from_micros(self.args.build.work));
        }
        self.built += 1;
        for index in event.sources() {
            let source = &mut self.sources[index];
            source.built += 1;
            if let Some(answers) = &mut source.answers {
                answers.built(event.number);
            }
        }
        self.assembly.clear(fresh);
    }

    // ---- the end of a source --------------------------------------------------------------------

    fn on_end(&mut self, index: usize, sent: Volume) {
        let used = self.started.map(|since| since.used()).unwrap_or_default();
        let source = &mut self.sources[index];
        source.sent = Some(sent);
        let summary = Summary {
            timed: self.checks.timed,
            timed_ns: self.checks.timed_ns,
            cpu_ns: used.cpu_ns,
            allocations: used.allocations,
            latency: self.latency.clone(),
            ..source.summary()
        };
        if let Some(answers) = &mut source.answers {
            answers.summary(summary);
        }
    }

    pub(crate) fn on_gone(&mut self, index: usize, reason: CloseReason) {
        let early = self.sources[index].sent.is_none();
        self.sources[index].closed = Some(reason);
        if early {
            // Events that wait for it will never be complete.
            self.give_up(Some(index));
        }
        self.end_if_over();
    }

    /// Events that can't be complete any more: their buffers are needed, and their sources wait for
    /// an answer.
    pub(crate) fn give_up(&mut self, gone: Option<usize>) {
        let patience = self.args.common.patience() / 2;
        for event in self.assembly.give_up(Instant::now(), patience, gone) {
            for piece in &event.pieces {
                self.sources[usize::from(piece.source)].held -= 1;
            }
            for index in event.sources() {
                let source = &mut self.sources[index];
                source.lost += 1;
                if let Some(answers) = &mut source.answers {
                    answers.lost(event.number);
                }
            }
            self.assembly.recycle(event);
        }
    }

    /// The run is over when every detector's source was there and none is any more.
    fn end_if_over(&mut self) {
        let sources = || self.sources.iter().filter(|source| source.hello.is_some());
        if self.detectors() < self.args.detectors.into()
            || sources().any(|source| source.closed.is_none())
        {
            return;
        }
        let wrong = sources().find_map(|source| source.complaint());
        self.end = Some(wrong.map_or(Ok(()), |what| Err(Failure::new(what))));
    }
}

const WRONG_ORDER: &str = "its messages in a wrong order";

/// Fragments checked, how many of these checks were timed, and the nanoseconds that these took.
#[derive(Default)]
struct Checks {
    checked: u64,
    timed: u64,
    timed_ns: u64,
}

impl Checks {
    /// Whether the bytes are what the detector filled in.
    fn is_right(&mut self, event: &Partial, piece: &Piece, fresh: &Fresh<'_>) -> bool {
        let is_timed = self.checked.is_multiple_of(TIMED);
        self.checked += 1;
        let since = is_timed.then(now_ns);
        let bytes = event.bytes(piece, fresh);
        let right = pattern::is_right(event.number, piece.detector, piece.crc, bytes);
        if let Some(since) = since {
            self.timed += 1;
            self.timed_ns += now_ns() - since;
        }
        right
    }
}

/// From each fragment's commit to now.
fn record_latency(latency: &mut Latencies, sources: &[Upstream], event: &Partial) {
    let (now, clock) = (now_ns(), clock_id());
    for piece in &event.pieces {
        let hello = sources[usize::from(piece.source)].hello;
        if clock != 0 && hello.is_some_and(|hello| hello.clock == clock) {
            let ns = now.saturating_sub(piece.committed);
            latency.record(Duration::from_nanos(ns));
        }
    }
}
