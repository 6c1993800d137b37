//! A builder: gets every fragment of its events, puts them together, checks them, and answers for
//! each event.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{CloseReason, ConnectionId, ConnectionInfo, Message, ReceiveConfig};
use fabricast::event_loop::{EventLoop, LoopEvent, Token};
use fabricast::{ConnectionEvent, Domain, ReceiveEndpoint, ReceiveEvent, SendEvent};

use crate::answers::Answers;
use crate::args::BuilderArgs;
use crate::assembly::{Assembly, Content, Partial, Piece};
use crate::clock::{clock_id, now_ns};
use crate::failure::Failure;
use crate::histogram::Histogram;
use crate::report::builder_report;
use crate::summary::Summary;
use crate::upstream::Upstream;
use crate::usage::Since;
use crate::wire::{ANSWER_LEN_MAX, Fragment, Grant, Hello, ToBuilder, Volume};
use crate::{HEADER_MODE, new_loop, open_domain, pattern, say};

/// Polls in a row before answers go out: so they travel in batches, and never wait for more work.
const POLLS: usize = 8;
/// How often time is looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(5);
/// One check in so many is timed: asking for the time costs about as much as checking a short
/// fragment.
const TIMED: u64 = 64;
/// One event in so many has its latency recorded: often enough for percentiles, and no number that
/// batches are multiples of.
const SAMPLED: u64 = 13;
/// How long a builder works without a look at its connections, where it takes its time.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Sources at most: an event has a bit for each.
const SOURCES_MAX: usize = 64;

/// Builds the events of one run.
pub(crate) fn run(args: &BuilderArgs) -> Result<(), Failure> {
    let mut event_loop = new_loop(args.common.spin)?;
    let mut builder = Builder::new(args, &mut event_loop)?;
    say(format_args!(
        "listening on {}",
        builder.endpoint.local_addr()
    ));
    event_loop.run(|event_loop, event| {
        if let Err(failure) = builder.on_event(event_loop, event) {
            builder.end = Some(Err(failure));
        }
        if builder.end.is_some() {
            event_loop.stop();
        }
    })?;
    builder.finish()
}

struct Builder<'a> {
    args: &'a BuilderArgs,
    domain: Arc<Domain>,
    endpoint: ReceiveEndpoint,
    endpoint_token: Token,
    /// Their places are not used again in this run, but those of strangers.
    sources: Vec<Upstream>,
    assembly: Assembly,
    answer_buffers: SharedBufferManager,
    latency: Histogram,
    built: u64,
    checks: Checks,
    events: Vec<ReceiveEvent>,
    /// What came while these were worked on.
    early: Vec<ReceiveEvent>,
    sent_events: Vec<SendEvent>,
    grant: Grant,
    /// When the endpoint was last polled, and found something.
    now: Instant,
    last_message: Instant,
    /// When the sources were told to start.
    started: Option<Since>,
    end: Option<Result<(), Failure>>,
}

impl<'a> Builder<'a> {
    fn new(args: &'a BuilderArgs, event_loop: &mut EventLoop) -> Result<Self, Failure> {
        let domain = open_domain(
            &args.common.provider,
            crate::failure::socket_addr(&args.listen)?.ip(),
        )?;
        // One connection more than there are sources, so that a stranger does not keep one out; two
        // receives of each are reserved.
        let connections = u32::from(args.sources) + 1;
        let (credits, max_message) = args.receives()?;
        let slots = connections * (credits + 2);
        let config = ReceiveConfig::default()
            .incoming(|incoming| {
                incoming
                    .max_message(max_message)
                    .slots(slots)
                    .credits(credits)
            })
            .connection(|c| {
                c.max_connections(connections)
                    .connect_timeout(args.common.patience())
                    .unresponsive_after(Some(args.common.patience() / 2))
                    .lost_after(Some(args.common.patience()))
            })
            .header_mode(HEADER_MODE);
        let endpoint = ReceiveEndpoint::listen(&domain, args.listen, config)
            .map_err(|error| Failure::new(format!("{}: {error}", args.listen)))?;
        let answer_buffers = SharedBufferManager::allocate(64, ANSWER_LEN_MAX)?;
        answer_buffers.region().register(&domain)?;
        Ok(Self {
            args,
            domain,
            endpoint_token: event_loop.add_endpoint(&endpoint)?,
            endpoint,
            sources: Vec::new(),
            assembly: Assembly::new(args.detectors, args.is_packed()),
            answer_buffers,
            latency: Histogram::new(),
            built: 0,
            checks: Checks::default(),
            events: Vec::with_capacity(256),
            early: Vec::new(),
            grant: Grant {
                fragments: args.credits()?,
                longest: args.max_fragment as u32,
            },
            now: Instant::now(),
            sent_events: Vec::with_capacity(256),
            last_message: {
                event_loop.add_timer(TICK, Some(TICK));
                Instant::now()
            },
            started: None,
            end: None,
        })
    }

    fn on_event(&mut self, event_loop: &mut EventLoop, event: LoopEvent) -> Result<(), Failure> {
        match event {
            LoopEvent::Endpoint(token) if token == self.endpoint_token => {
                self.poll_data(event_loop)
            }
            LoopEvent::Endpoint(token) => self.poll_answers(event_loop, token),
            LoopEvent::Timer(_) => self.on_tick(),
            _ => Ok(()),
        }
    }

    // ---- what sources send ----------------------------------------------------------------------

    fn poll_data(&mut self, event_loop: &mut EventLoop) -> Result<(), Failure> {
        for _ in 0..POLLS {
            let mut events = std::mem::take(&mut self.events);
            let found = self.endpoint.poll(&mut events)?;
            if found > 0 {
                event_loop.mark_busy();
                self.now = Instant::now();
            }
            while !events.is_empty() {
                for event in events.drain(..) {
                    match event {
                        ReceiveEvent::Message(message) => self.on_message(event_loop, message)?,
                        other => self.on_other(other),
                    }
                    if self.args.build.work > 0 && self.now.elapsed() > LOOK_EVERY {
                        self.look_around(event_loop)?;
                    }
                }
                std::mem::swap(&mut events, &mut self.early);
            }
            self.events = events;
            // What is kept longer must not keep the frames that others came in.
            self.assembly.settle();
            if found == 0 || self.args.build.work > 0 {
                break;
            }
        }
        for answers in self
            .sources
            .iter_mut()
            .filter_map(|source| source.answers.as_mut())
        {
            answers.flush()?;
        }
        Ok(())
    }

    /// A builder that takes its time must look at its connections in between, or it is taken for
    /// dead. What comes is worked on later: it is no more than the buffers hold.
    fn look_around(&mut self, event_loop: &mut EventLoop) -> Result<(), Failure> {
        self.endpoint.poll(&mut self.early)?;
        self.now = Instant::now();
        let all = self.sources.iter_mut();
        for answers in all.filter_map(|source| source.answers.as_mut()) {
            answers.poll(event_loop, &mut self.sent_events)?;
        }
        Ok(())
    }

    fn on_other(&mut self, event: ReceiveEvent) {
        match event {
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(info)) => {
                self.on_source(connection, &info);
            }
            ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(reason)) => {
                let found = |source: &Upstream| source.connection == connection;
                if let Some(index) = self.sources.iter().position(found) {
                    self.on_gone(index, reason);
                }
            }
            // The pool is empty: sources wait, and nothing needs to be done.
            _ => {}
        }
    }

    fn on_source(&mut self, connection: ConnectionId, info: &ConnectionInfo) {
        let source = Upstream::new(connection, info);
        // A stranger that came and went leaves its place: there are no more places than
        // connections.
        let stranger = |source: &&mut Upstream| source.hello.is_none() && source.closed.is_some();
        match self.sources.iter_mut().find(stranger) {
            Some(place) => *place = source,
            None => self.sources.push(source),
        }
    }

    fn on_message(&mut self, event_loop: &mut EventLoop, message: Message) -> Result<(), Failure> {
        let found = |source: &Upstream| source.connection == message.connection();
        let Some(index) = self.sources.iter().position(found) else {
            return Ok(());
        };
        self.last_message = self.now;
        let parsed = ToBuilder::parse(message.header(), message.payload().len());
        let heard = match (parsed, self.sources[index].hello) {
            (Ok(ToBuilder::Fragment(fragment)), Some(hello)) => {
                self.on_fragment(index, hello, fragment, message)
            }
            (Ok(ToBuilder::End(sent)), Some(_)) => {
                self.on_end(index, sent);
                Ok(())
            }
            (Ok(ToBuilder::Hello(hello)), None) => self.on_hello(event_loop, index, hello)?,
            (Ok(_), _) => Err("its messages in a wrong order"),
            (Err(what), _) => Err(what),
        };
        if let Err(what) = heard {
            self.turn_out(index, what);
        }
        Ok(())
    }

    /// A stranger, or a source that is broken. If it was a source, the run ends when its connection
    /// has.
    fn turn_out(&mut self, index: usize, what: &str) {
        let source = &self.sources[index];
        eprintln!(
            "readout: {} sent {what}: its connection is closed",
            source.name()
        );
        let deadline = Instant::now() + GOODBYE;
        self.endpoint.close_connection(source.connection, deadline);
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
    fn detectors(&self) -> u32 {
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

    fn on_fragment(
        &mut self,
        index: usize,
        hello: Hello,
        fragment: Fragment,
        message: Message,
    ) -> Result<(), &'static str> {
        let detectors = hello.first_detector..hello.first_detector + hello.detectors;
        if !detectors.contains(&fragment.detector)
            || fragment.of == 0
            || fragment.of > hello.detectors
        {
            return Err("a fragment of a detector that is not its own");
        }
        let source = &mut self.sources[index];
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
        let (origin, content) = ((index, hello.detectors), Content::Message(message));
        match self.assembly.add(&fragment, origin, content, self.now) {
            Ok(false) => {}
            Ok(true) => self.on_complete(),
            Err(_) => {
                self.sources[index].duplicates += 1;
                self.sources[index].held -= 1;
            }
        }
        Ok(())
    }

    /// All fragments of the current event are there: this is where an experiment's code would
    /// begin.
    fn on_complete(&mut self) {
        let event = self.assembly.current();
        if self.built.is_multiple_of(SAMPLED) {
            record_latency(&mut self.latency, &self.sources, event);
        }
        for piece in &event.pieces {
            let source = &mut self.sources[piece.source];
            source.held -= 1;
            let is_checked = source.hello.is_some_and(|hello| hello.checked);
            if is_checked && !self.checks.is_right(event, piece) {
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
        self.assembly.clear();
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

    fn on_gone(&mut self, index: usize, reason: CloseReason) {
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
    fn give_up(&mut self, gone: Option<usize>) {
        let patience = self.args.common.patience() / 2;
        for event in self.assembly.give_up(Instant::now(), patience, gone) {
            for piece in &event.pieces {
                self.sources[piece.source].held -= 1;
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

    // ---- time, answers, the end -----------------------------------------------------------------

    fn on_tick(&mut self) -> Result<(), Failure> {
        if self.assembly.len() > 0 {
            self.give_up(None);
        }
        for answers in self
            .sources
            .iter_mut()
            .filter_map(|source| source.answers.as_mut())
        {
            answers.flush()?;
        }
        let (there, all) = (self.detectors(), self.args.detectors);
        let patience = self.args.common.patience();
        if there == u32::from(all) || self.last_message.elapsed() <= patience {
            return Ok(());
        }
        Err(Failure::new(match there {
            0 => format!("no source came within {patience:?}"),
            _ => format!("sources with {there} of {all} detectors came, and none for {patience:?}"),
        }))
    }

    fn poll_answers(&mut self, event_loop: &mut EventLoop, token: Token) -> Result<(), Failure> {
        let all = self.sources.iter_mut();
        let mut all = all.filter_map(|source| source.answers.as_mut());
        match all.find(|answers| answers.loop_token == token) {
            Some(answers) => answers.poll(event_loop, &mut self.sent_events),
            None => Ok(()),
        }
    }

    fn finish(self) -> Result<(), Failure> {
        let end = self.end.unwrap_or(Ok(()));
        let deadline = Instant::now() + GOODBYE;
        let mut received = Volume::default();
        let (mut lost, mut errors) = (0, 0);
        for source in self.sources {
            received.fragments += source.received.fragments;
            received.bytes += source.received.bytes;
            lost += source.lost;
            errors += source.errors();
            if let Some(answers) = source.answers {
                answers.close(deadline);
            }
        }
        let counts = [
            ("events_built", self.built),
            ("fragments", received.fragments),
            ("bytes", received.bytes),
            ("events_given_up", lost),
            ("errors", errors),
        ];
        if received.fragments > 0 || end.is_ok() {
            let json = self.args.common.json;
            say(builder_report(json, &counts, &self.latency));
        }
        end
    }
}

/// Fragments checked, how many of these checks were timed, and the nanoseconds that these took.
#[derive(Default)]
struct Checks {
    checked: u64,
    timed: u64,
    timed_ns: u64,
}

impl Checks {
    /// Whether the bytes are what the detector filled in.
    fn is_right(&mut self, event: &Partial, piece: &Piece) -> bool {
        let is_timed = self.checked.is_multiple_of(TIMED);
        self.checked += 1;
        let since = is_timed.then(now_ns);
        let bytes = event.bytes(piece);
        let right = pattern::is_right(event.number, piece.detector, piece.crc, bytes);
        if let Some(since) = since {
            self.timed += 1;
            self.timed_ns += now_ns() - since;
        }
        right
    }
}

/// From each fragment's commit to now.
fn record_latency(latency: &mut Histogram, sources: &[Upstream], event: &Partial) {
    let (now, clock) = (now_ns(), clock_id());
    for piece in &event.pieces {
        let hello = sources[piece.source].hello;
        if clock != 0 && hello.is_some_and(|hello| hello.clock == clock) {
            latency.record(now.saturating_sub(piece.committed));
        }
    }
}
