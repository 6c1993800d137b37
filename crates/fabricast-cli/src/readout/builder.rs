//! A builder: gets every fragment of its events, puts them together, checks them, and answers for
//! each event.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::endpoint::ReceiveConfig;
use fabricast::event_loop::{EventLoop, LoopEvent, Token};
use fabricast::{ConnectionEvent, Domain, ReceiveEndpoint, ReceiveEvent, SendEvent};

use crate::failure::Failure;
use crate::readout::args::BuilderArgs;
use crate::readout::assembler::Assembler;
use crate::readout::assembly::Fresh;
use crate::readout::report::builder_report;
use crate::readout::upstream::Upstream;
use crate::readout::wire::Volume;
use crate::readout::{HEADER_MODE, new_loop, open_domain};
use crate::say::say;

/// Polls in a row before answers go out: so they travel in batches, and never wait for more work.
const POLLS: usize = 8;
/// How often time is looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(5);
/// How long a builder works without a look at its connections, where it takes its time.
const LOOK_EVERY: Duration = Duration::from_millis(20);

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
            builder.assembler.end = Some(Err(failure));
        }
        if builder.assembler.end.is_some() {
            event_loop.stop();
        }
    })?;
    builder.finish()
}

/// The endpoint, and who looks at what comes there: apart, since messages are borrowed.
struct Builder<'a> {
    args: &'a BuilderArgs,
    endpoint: ReceiveEndpoint,
    endpoint_token: Token,
    assembler: Assembler<'a>,
    events: Vec<ReceiveEvent>,
    /// What came while these were worked on.
    early: Vec<ReceiveEvent>,
    sent_events: Vec<SendEvent>,
}

impl<'a> Builder<'a> {
    fn new(args: &'a BuilderArgs, event_loop: &mut EventLoop) -> Result<Self, Failure> {
        let domain = open_domain(
            &args.common.provider,
            crate::readout::socket_addr(&args.listen)?.ip(),
        )?;
        let endpoint = listen(args, &domain)?;
        event_loop.add_timer(TICK, Some(TICK));
        Ok(Self {
            args,
            endpoint_token: event_loop.add_endpoint(&endpoint)?,
            endpoint,
            assembler: Assembler::new(args, &domain)?,
            events: Vec::with_capacity(256),
            early: Vec::new(),
            sent_events: Vec::with_capacity(256),
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
        if self.args.build.work > 0 {
            self.work_off(event_loop)?;
        } else {
            let mut polls = 0;
            while polls < POLLS && self.receive(event_loop)? {
                polls += 1;
            }
        }
        self.turn_out();
        for answers in self.assembler.answers() {
            answers.flush()?;
        }
        Ok(())
    }

    /// Takes what came, where it lies. False: that was nothing.
    fn receive(&mut self, event_loop: &mut EventLoop) -> Result<bool, Failure> {
        let assembler = &mut self.assembler;
        let mut messages = self.endpoint.receive(&mut self.events)?;
        let mut next = messages.next();
        if self.events.is_empty() && next.is_none() {
            return Ok(false);
        }
        event_loop.mark_busy();
        assembler.now = Instant::now();
        for event in self.events.drain(..) {
            on_other(assembler, event);
        }
        let mut fresh = Fresh::default();
        while let Some(message) = next {
            assembler.on_message(event_loop, message, &mut fresh)?;
            next = messages.next();
        }
        // What is kept longer must not keep the frames that others came in.
        assembler.assembly.settle(&mut fresh);
        Ok(true)
    }

    /// Takes what came from the endpoint, and works on it for as long as that takes.
    fn work_off(&mut self, event_loop: &mut EventLoop) -> Result<(), Failure> {
        let mut events = std::mem::take(&mut self.events);
        if self.endpoint.poll(&mut events)? > 0 {
            event_loop.mark_busy();
            self.assembler.now = Instant::now();
        }
        while !events.is_empty() {
            for event in events.drain(..) {
                match event {
                    ReceiveEvent::Message(message) => {
                        let (message, mut fresh) = ((&message).into(), Fresh::default());
                        let assembler = &mut self.assembler;
                        assembler.on_message(event_loop, message, &mut fresh)?;
                        assembler.assembly.settle(&mut fresh);
                    }
                    other => on_other(&mut self.assembler, other),
                }
                if self.assembler.now.elapsed() > LOOK_EVERY {
                    self.look_around(event_loop)?;
                }
            }
            std::mem::swap(&mut events, &mut self.early);
        }
        self.events = events;
        Ok(())
    }

    /// A builder that takes its time must look at its connections in between, or it is taken for
    /// dead. What comes is worked on later: it is no more than the buffers hold.
    fn look_around(&mut self, event_loop: &mut EventLoop) -> Result<(), Failure> {
        self.endpoint.poll(&mut self.early)?;
        self.assembler.now = Instant::now();
        for answers in self.assembler.answers() {
            answers.poll(event_loop, &mut self.sent_events)?;
        }
        Ok(())
    }

    /// Closes the connections of those who are not to send any more.
    fn turn_out(&mut self) {
        for connection in self.assembler.turned_out.drain(..) {
            let deadline = Instant::now() + GOODBYE;
            self.endpoint.close_connection(connection, deadline);
        }
    }

    // ---- time, answers, the end -----------------------------------------------------------------

    fn on_tick(&mut self) -> Result<(), Failure> {
        let assembler = &mut self.assembler;
        if assembler.assembly.len() > 0 {
            assembler.give_up(None);
        }
        for answers in assembler.answers() {
            answers.flush()?;
        }
        let (there, all) = (assembler.detectors(), self.args.detectors);
        let patience = self.args.common.patience();
        if there == u32::from(all) || assembler.last_message.elapsed() <= patience {
            return Ok(());
        }
        Err(Failure::new(match there {
            0 => format!("no source came within {patience:?}"),
            _ => format!("sources with {there} of {all} detectors came, and none for {patience:?}"),
        }))
    }

    fn poll_answers(&mut self, event_loop: &mut EventLoop, token: Token) -> Result<(), Failure> {
        let mut all = self.assembler.answers();
        match all.find(|answers| answers.loop_token == token) {
            Some(answers) => answers.poll(event_loop, &mut self.sent_events),
            None => Ok(()),
        }
    }

    fn finish(self) -> Result<(), Failure> {
        let assembler = self.assembler;
        let end = assembler.end.unwrap_or(Ok(()));
        let deadline = Instant::now() + GOODBYE;
        let mut received = Volume::default();
        let (mut lost, mut errors) = (0, 0);
        for source in assembler.sources {
            received.fragments += source.received.fragments;
            received.bytes += source.received.bytes;
            lost += source.lost;
            errors += source.errors();
            if let Some(answers) = source.answers {
                answers.close(deadline);
            }
        }
        let counts = [
            ("events_built", assembler.built),
            ("fragments", received.fragments),
            ("bytes", received.bytes),
            ("events_given_up", lost),
            ("errors", errors),
        ];
        if received.fragments > 0 || end.is_ok() {
            let json = self.args.common.json;
            say(builder_report(json, &counts, &assembler.latency));
        }
        end
    }
}

/// The endpoint that sources send to.
fn listen(args: &BuilderArgs, domain: &Arc<Domain>) -> Result<ReceiveEndpoint, Failure> {
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
    ReceiveEndpoint::listen(domain, args.listen, config)
        .map_err(|error| Failure::new(format!("{}: {error}", args.listen)))
}

fn on_other(assembler: &mut Assembler<'_>, event: ReceiveEvent) {
    match event {
        ReceiveEvent::Connection(connection, ConnectionEvent::Connected(info)) => {
            assembler.on_source(connection, &info);
        }
        ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(reason)) => {
            let found = |source: &Upstream| source.connection == connection;
            if let Some(index) = assembler.sources.iter().position(found) {
                assembler.on_gone(index, reason);
            }
        }
        // The pool is empty: sources wait, and nothing needs to be done.
        _ => {}
    }
}
