//! The readout: takes what the detectors filled, and sends each event's fragments to the builder
//! whose event it is.
//!
//! One thread, one domain, one event loop over all connections: fragments of one event come from
//! all rings and go to one builder, so several threads would have to agree about each event; one
//! that sends short headers and pointers is rarely what a machine lacks. The loop spins for 50 µs
//! after the last work and then sleeps, so that detectors and builders on the same cores get their
//! share.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabricast::endpoint::{CloseReason, Message};
use fabricast::event_loop::{EventLoop, LoopEvent, Token};
use fabricast::{ConnectionEvent, Domain, PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEvent};

use crate::failure::Failure;
use crate::readout::args::{CommonArgs, Policy, ReadoutArgs, SourceArgs};
use crate::readout::clock::clock_id;
use crate::readout::counts::Counts;
use crate::readout::detector::{Detector, Status};
use crate::readout::events::{Events, Part};
use crate::readout::intake::IncomingStream;
use crate::readout::link::{CONTROL, Link, Stage, unkey};
use crate::readout::links::Links;
use crate::readout::listening::{listen_for_answers, local_address, random};
use crate::readout::progress::Progress;
use crate::readout::report::Report;
use crate::readout::summary::Summary;
#[cfg(feature = "charts")]
use crate::readout::timeline::RunTimeline;
use crate::readout::trigger::Trigger;
use crate::readout::usage::{Since, Usage};
use crate::readout::wire::{Answer, Grant, Hello, ToBuilder, words};
use crate::readout::{new_loop, open_domain};

/// Events from the oldest that was not answered for to the newest that was taken from the
/// detectors, at most: as many as a fast builder has under way. With many detectors, whose events
/// are larger, fewer.
const EVENTS_MAX: u32 = 16_384;
const EVENTS_MAX_OF_MANY: u32 = 8192;
/// How often time is looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long goodbyes may take: every event has been accounted for.
const GOODBYE: Duration = Duration::from_secs(5);
/// Events taken from the detectors before connections are looked at again: short fragments of them
/// fill some frames for each builder.
const TAKE_MAX: usize = 512;

/// Something that happens to builders during the run.
pub(crate) trait Incidents {
    /// Called now and then while detectors run, with all builders there were. Gives one that came.
    fn look(&mut self, running: Duration, links: &[Link]) -> Result<Option<PeerAddr>, Failure>;
    /// Every event is answered for: nothing happens any more.
    fn over(&mut self);
}

/// Runs a readout from the first connection to the last goodbye.
pub(crate) fn run<'a>(
    args: &'a SourceArgs,
    incidents: Option<&'a mut dyn Incidents>,
) -> Result<Report, Failure> {
    let mut event_loop = new_loop(args.common.spin)?;
    let mut session = Session::new(args, &mut event_loop, incidents)?;
    let ran = event_loop.run(|event_loop, event| {
        if let Err(failure) = session.on_event(event_loop, event) {
            session.failure = Some(failure);
        }
        if session.failure.is_some() || session.phase == Phase::Over {
            event_loop.stop();
        }
    });
    session.finish(ran.map_err(Failure::from))
}

/// Events under way at most, a power of two. Where a ring keeps its fragments until their events
/// are built, there are no more than fragments in it; and what is used is used in turn, so that a
/// table for more would only be read from further away.
fn events_max(args: &ReadoutArgs) -> u32 {
    let most = match args.detectors {
        ..=8 => EVENTS_MAX,
        _ => EVENTS_MAX_OF_MANY,
    };
    match args.policy {
        Policy::Resend => args.ring_fragments.next_power_of_two().min(most),
        Policy::Drop => most,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not every builder is ready.
    Opening,
    Running,
    /// The detectors stop; what they filled is sent and built.
    Draining,
    /// Every event is accounted for; builders are asked what they counted.
    Ending,
    Closing,
    Over,
}

struct Session<'a> {
    readout: &'a ReadoutArgs,
    common: &'a CommonArgs,
    first_detector: u16,
    domain: Arc<Domain>,
    links: Links,
    /// What answers prove themselves with, of the first builder; of the others counted from there.
    secret: u64,
    answers: ReceiveEndpoint,
    answers_token: Token,
    sent_events: Vec<SendEvent>,
    answer_events: Vec<ReceiveEvent>,
    trigger: Arc<Trigger>,
    detectors: Vec<Detector>,
    statuses: Vec<Arc<Status>>,
    threads: Vec<JoinHandle<()>>,
    intake: IncomingStream,
    events: Events,
    counts: Counts,
    window_full: bool,
    phase: Phase,
    since: Since,
    triggered: u64,
    /// From the first event to the last answer.
    used: Usage,
    incidents: Option<&'a mut dyn Incidents>,
    progress: Progress,
    #[cfg(feature = "charts")]
    timeline: Option<RunTimeline>,
    failure: Option<Failure>,
}

impl<'a> Session<'a> {
    fn new(
        args: &'a SourceArgs,
        event_loop: &mut EventLoop,
        incidents: Option<&'a mut dyn Incidents>,
    ) -> Result<Self, Failure> {
        let local = local_address(crate::readout::socket_addr(&args.to[0])?)?;
        let domain = open_domain(&args.common.provider, local)?;
        let patience = args.common.patience();
        let answers = listen_for_answers(&domain, local, args.to.len() as u32, patience)?;
        let trigger = Arc::new(Trigger::new(args.readout.events));
        let (mut detectors, mut statuses, mut queues) = (Vec::new(), Vec::new(), Vec::new());
        let events_max = events_max(&args.readout);
        for index in 0..args.readout.detectors {
            let number = args.first_detector + index;
            let (detector, queue, status) =
                Detector::new(number, &args.readout, &domain, &trigger, event_loop.waker())?;
            detectors.push(detector);
            statuses.push(status);
            queues.push(queue);
        }
        let secret = random()?;
        let link = |(index, to): (usize, &PeerAddr)| {
            let token = secret.wrapping_add(index as u64);
            Link::connect(&domain, event_loop, *to, token, events_max, patience)
        };
        let links = args
            .to
            .iter()
            .enumerate()
            .map(link)
            .collect::<Result<Vec<_>, _>>()?;
        event_loop.add_timer(TICK, Some(TICK));
        Ok(Self {
            readout: &args.readout,
            common: &args.common,
            first_detector: args.first_detector,
            answers_token: event_loop.add_endpoint(&answers)?,
            answers,
            domain,
            links: Links::new(links),
            secret,
            sent_events: Vec::with_capacity(256),
            answer_events: Vec::with_capacity(256),
            trigger,
            detectors,
            intake: IncomingStream::new(queues),
            progress: Progress::new(statuses.clone(), args.readout.ring_bytes() as u64),
            statuses,
            threads: Vec::new(),
            events: Events::new(events_max, args.readout.detectors.into()),
            counts: Counts::default(),
            window_full: false,
            phase: Phase::Opening,
            since: Since::now(),
            triggered: 0,
            used: Usage::default(),
            incidents,
            #[cfg(feature = "charts")]
            timeline: args
                .readout
                .timeline
                .as_deref()
                .map(RunTimeline::new)
                .transpose()?,
            failure: None,
        })
    }

    fn on_event(&mut self, event_loop: &mut EventLoop, event: LoopEvent) -> Result<(), Failure> {
        let found = match event {
            LoopEvent::Endpoint(token) if token == self.answers_token => self.poll_answers()?,
            LoopEvent::Endpoint(token) => self.poll_link_of(event_loop, token)?,
            LoopEvent::Woken => 1,
            LoopEvent::Timer(_) => {
                self.on_tick(event_loop)?;
                0
            }
            _ => 0,
        };
        if found > 0 {
            event_loop.mark_busy();
        }
        // More than one helping is there: come back at once, after the connections.
        if self.take_events() == TAKE_MAX {
            event_loop.waker().wake();
        }
        for link in self.links.iter_mut() {
            link.pump(&mut self.events)?;
        }
        self.advance()
    }

    // ---- events of the detectors ----------------------------------------------------------------

    /// Takes events from the detectors' queues, and assigns them; returns how many.
    fn take_events(&mut self) -> usize {
        let mut taken = 0;
        // The last builder that was ready is lost, and another one is coming.
        if !self.links.any_ready() {
            return 0;
        }
        while taken < TAKE_MAX {
            let Some(mut event) = self.events.vacant() else {
                self.counts.window += u64::from(!std::mem::replace(&mut self.window_full, true));
                break;
            };
            self.window_full = false;
            let take = |detector, filled| event.push(Part::new(detector, filled));
            let Some(number) = self.intake.next(take) else {
                break;
            };
            let count = event.count();
            self.counts.events += 1;
            self.counts.fragments += count as u64;
            self.counts.incomplete += u64::from(count < self.statuses.len());
            let builder = self.links.assign(self.readout.gap.nth(number));
            let place = self.events.occupy(number, builder);
            self.links[builder].assign(place, false);
            taken += 1;
        }
        taken
    }

    // ---- sends ----------------------------------------------------------------------------------

    fn poll_link_of(&mut self, event_loop: &mut EventLoop, token: Token) -> Result<usize, Failure> {
        let Some(index) = self.links.of_loop_token(token) else {
            return Ok(0);
        };
        let found = self.poll_link(index)?;
        if self.links[index].is_lost() {
            event_loop.remove(token);
        }
        Ok(found)
    }

    fn poll_link(&mut self, index: usize) -> Result<usize, Failure> {
        let mut events = std::mem::take(&mut self.sent_events);
        let found = self.links[index].endpoint.poll(&mut events)?;
        if found > 0 {
            let is_done = |event: &SendEvent| matches!(event, SendEvent::Completed { .. });
            if events.iter().any(is_done) {
                self.links[index].last_progress = Instant::now();
            }
        }
        for event in events.drain(..) {
            match event {
                SendEvent::Connection(ConnectionEvent::Connected(_)) => self.on_connected(index)?,
                SendEvent::Writable => self.links[index].unblock(),
                SendEvent::Connection(ConnectionEvent::Unresponsive) => {
                    let (to, half) = (self.links[index].to, self.common.patience() / 2);
                    eprintln!("fabricast: builder {to}: nothing heard for {half:?}");
                }
                SendEvent::Completed { key, payload } | SendEvent::Failed { key, payload, .. }
                    if key != CONTROL =>
                {
                    self.on_back(key, payload.into_fragment().ok());
                }
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    self.on_disconnected(index, reason)?
                }
                _ => {}
            }
        }
        self.sent_events = events;
        Ok(found)
    }

    fn on_connected(&mut self, index: usize) -> Result<(), Failure> {
        let link = &mut self.links[index];
        link.on_connected();
        let sent = link.send_control(ToBuilder::Hello(Hello {
            first_detector: self.first_detector,
            detectors: self.readout.detectors,
            port: crate::readout::socket_addr(&self.answers.local_addr())?.port(),
            token: link.token,
            clock: clock_id(),
            checked: self.readout.check.is_on(),
        }))?;
        // One that is gone again by now is lost, which the connection's own event says.
        if !sent && link.endpoint.is_connected() {
            return Err(Failure::new(format!(
                "builder {}: does not take a Hello",
                link.to
            )));
        }
        Ok(())
    }

    /// A builder is ready: it takes what there is, or the run ends here.
    fn on_ready(&mut self, index: usize, grant: Grant) -> Result<(), Failure> {
        let (longest, detectors) = (self.readout.size.max(), self.readout.detectors);
        let link = &mut self.links[index];
        if (grant.longest as usize) < longest {
            return Err(Failure::new(format!(
                "builder {}: takes fragments of {} bytes, --size {} makes up to {longest} (its \
                 --max-fragment)",
                link.to, grant.longest, self.readout.size
            )));
        }
        if grant.fragments < 2 * u32::from(detectors) {
            return Err(Failure::new(format!(
                "builder {}: takes {} fragments ahead, {detectors} detectors need twice their \
                 number (its --credits)",
                link.to, grant.fragments
            )));
        }
        link.on_ready(grant, detectors);
        // What waits since nobody was ready.
        for lost in self.links.lost() {
            self.reassign(lost);
        }
        Ok(())
    }

    /// A fragment is back from the network.
    fn on_back(&mut self, key: u64, fragment: Option<fabricast::buffer::RingFragment>) {
        let (place, part) = unkey(key);
        let (event, parts) = self.events.with_parts(place);
        event.in_flight -= 1;
        if event.answered {
            if event.in_flight == 0 {
                self.events.vacate(place);
            }
        } else if self.readout.policy == Policy::Resend {
            // Kept until the event is built. With the other policy its memory is the detector's
            // again, here.
            parts[part].fragment = fragment;
        }
    }

    // ---- a builder is lost ----------------------------------------------------------------------

    fn on_disconnected(&mut self, index: usize, reason: CloseReason) -> Result<(), Failure> {
        let opening = self.phase == Phase::Opening;
        if !self.links[index].on_closed(reason) {
            return Ok(());
        }
        let to = self.links[index].to;
        if opening {
            return Err(Failure::new(format!("builder {to}: {reason}")));
        }
        eprintln!("fabricast: builder {to} is lost: {reason}");
        // Its last answers may lie in their own connection.
        while self.poll_answers()? > 0 {}
        self.links[index].clear();
        if self.links.any_ready() || self.links.all_lost() {
            self.reassign(index);
        }
        if self.links.all_lost() {
            return Err(Failure::new(format!(
                "no builder is left; {} events were lost with the last one",
                self.counts.lost_events
            )));
        }
        Ok(())
    }

    /// Every send has had its outcome before the connection's end, so nothing is in flight.
    fn reassign(&mut self, lost: usize) {
        for place in self.events.of_builder(lost) {
            self.on_orphan(place);
        }
    }

    /// An event whose builder was lost: to another one, or lost with it.
    fn on_orphan(&mut self, place: u32) {
        let (event, parts) = self.events.with_parts(place);
        let whole = parts.iter().all(|part| part.fragment.is_some());
        let may_send = event.sent == 0 || self.readout.policy == Policy::Resend;
        let anybody = self.links.any_ready();
        if !(whole && may_send && anybody) {
            self.counts.lost_events += 1;
            self.counts.lost_fragments += parts.len() as u64;
            self.events.vacate(place);
            return;
        }
        self.counts.reassigned += 1;
        self.counts.resent += u64::from(event.sent);
        let builder = self.links.assign(self.readout.gap.nth(event.number));
        event.builder = builder as u32;
        event.reassigned = true;
        event.sent = 0;
        self.links[builder].assign(place, true);
    }

    // ---- answers --------------------------------------------------------------------------------

    fn poll_answers(&mut self) -> Result<usize, Failure> {
        let mut events = std::mem::take(&mut self.answer_events);
        let found = self.answers.poll(&mut events)?;
        for event in events.drain(..) {
            if let ReceiveEvent::Message(message) = event {
                self.on_answer(&message)?;
            }
        }
        self.answer_events = events;
        Ok(found)
    }

    fn on_answer(&mut self, message: &Message) -> Result<(), Failure> {
        let Ok((answer, token)) = Answer::parse(message.header(), message.payload()) else {
            return Ok(());
        };
        // Anybody can connect to the port: what is not from our builders is not heard.
        let Some(index) = self.links.position(|link| link.token == token) else {
            return Ok(());
        };
        let link = &mut self.links[index];
        link.last_progress = Instant::now();
        match answer {
            Answer::Ready(grant) if link.stage == Stage::Opening => self.on_ready(index, grant)?,
            Answer::Ready(_) => {}
            Answer::Built | Answer::Lost => {
                for number in words(message.payload()) {
                    self.on_answered(index, number, answer == Answer::Built);
                }
            }
            Answer::Summary => link.summary = Summary::from_words(words(message.payload())),
        }
        Ok(())
    }

    fn on_answered(&mut self, index: usize, number: u64, built: bool) {
        let place = self.events.find(number);
        let Some(place) = place.filter(|place| {
            let event = self.events.at(*place);
            event.builder == index as u32 && !event.answered
        }) else {
            self.counts.late_answers += 1;
            return;
        };
        let (event, parts) = self.events.with_parts(place);
        event.answered = true;
        let (count, sent) = (event.count, event.sent);
        if event.in_flight == 0 {
            self.events.vacate(place);
        } else {
            // The answer was faster than our own completions; what is back is freed now.
            parts.iter_mut().for_each(|part| part.fragment = None);
        }
        let link = &mut self.links[index];
        link.on_answered(sent, built);
        if sent < count {
            // Given up before all of it was sent.
            link.forget(place);
        }
        if !built {
            self.counts.lost_fragments += u64::from(count);
        }
    }

    // ---- time and phases ------------------------------------------------------------------------

    fn on_tick(&mut self, event_loop: &mut EventLoop) -> Result<(), Failure> {
        let running = self.since.elapsed();
        match self.phase {
            Phase::Opening if running > self.common.patience() => {
                let silent = self.links.all().iter().find(|link| !link.is_ready());
                let to = silent.map_or_else(String::new, |link| link.to.to_string());
                return Err(Failure::new(format!(
                    "builder {to}: not ready within {:?}",
                    self.common.patience()
                )));
            }
            Phase::Running => {
                let over = match self.readout.events {
                    None => running.as_secs_f64() >= self.readout.seconds,
                    Some(_) => true,
                };
                if over {
                    self.triggered = self.trigger.stop();
                    self.phase = Phase::Draining;
                }
            }
            _ => {}
        }
        if matches!(self.phase, Phase::Running | Phase::Draining) {
            self.look_for_incidents(event_loop, running)?;
            self.progress.show(running, self.links.all(), &self.events);
            #[cfg(feature = "charts")]
            self.look_at_run(running);
        }
        let ending = self.phase == Phase::Ending;
        self.links.give_up_idle(self.common.patience() * 2, ending);
        Ok(())
    }

    /// A builder that comes later connects as the first ones did, and gets events when it is ready.
    fn look_for_incidents(
        &mut self,
        event_loop: &mut EventLoop,
        running: Duration,
    ) -> Result<(), Failure> {
        let Some(incidents) = &mut self.incidents else {
            return Ok(());
        };
        if let Some(to) = incidents.look(running, self.links.all())? {
            let token = self.secret.wrapping_add(self.links.all().len() as u64);
            let (events, patience) = (self.events.capacity(), self.common.patience());
            let link = Link::connect(&self.domain, event_loop, to, token, events, patience)?;
            self.links.add(link);
        }
        Ok(())
    }

    /// Goes on to the next phase when this one is done.
    fn advance(&mut self) -> Result<(), Failure> {
        match self.phase {
            Phase::Opening if self.links.all_ready() => self.start()?,
            Phase::Draining if self.intake.is_over() && self.events.len() == 0 => {
                self.used = self.since.used();
                self.phase = Phase::Ending;
                self.links.expect_progress();
                if let Some(incidents) = &mut self.incidents {
                    incidents.over();
                }
            }
            Phase::Ending => self.end_links()?,
            Phase::Closing if !self.links.is_closing() => self.phase = Phase::Over,
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self) -> Result<(), Failure> {
        for detector in self.detectors.drain(..) {
            self.threads.push(detector.start()?);
        }
        self.since = Since::now();
        self.phase = Phase::Running;
        Ok(())
    }

    /// Says End to each builder, and goodbye when its Summary is there.
    fn end_links(&mut self) -> Result<(), Failure> {
        let mut done = true;
        for link in self.links.iter_mut() {
            if link.is_ready() && link.send_control(ToBuilder::End(link.sent))? {
                link.stage = Stage::Ended;
                link.last_progress = Instant::now();
            }
            done &= link.is_lost() || link.summary.is_some();
        }
        if done {
            let deadline = Instant::now() + GOODBYE;
            let ended = self.links.iter_mut().filter(|link| !link.is_lost());
            ended.for_each(|link| link.close(deadline));
            self.phase = Phase::Closing;
        }
        Ok(())
    }

    /// Ends the detectors, whatever happened, and says what was counted.
    #[cfg(feature = "charts")]
    fn look_at_run(&mut self, running: Duration) {
        let levels = (self.events.len(), self.readout.ring_bytes() as u64);
        if let Some(timeline) = &mut self.timeline {
            timeline.look(running, self.links.all(), &self.statuses, levels);
        }
    }

    fn finish(mut self, ran: Result<(), Failure>) -> Result<Report, Failure> {
        self.trigger.abort();
        for thread in self.threads.drain(..) {
            // What a panic says is on stderr already; the counts will not agree then.
            let _ = thread.join();
        }
        // A run that failed is drawn, too.
        #[cfg(feature = "charts")]
        let ran = match (&self.timeline, &self.readout.timeline) {
            (Some(timeline), Some(path)) => ran.and(timeline.write(path)),
            _ => ran,
        };
        ran?;
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        // Every event has been answered for: how this goodbye goes changes nothing.
        let _ = self.answers.close(Instant::now() + GOODBYE);
        Ok(Report::new(
            self.readout,
            &self.domain,
            self.used,
            self.triggered,
            self.counts,
            &self.statuses,
            self.links.all(),
        ))
    }
}
