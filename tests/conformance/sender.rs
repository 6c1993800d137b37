//! The sending process.

use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{CloseReason, Level, SendConfig};
use fabricast::fabric::Shape;
use fabricast::{SendEndpointZeroCopy, SendEvent};

use crate::NAP;
use crate::common::{SOON, after, buffer, child, drive, packing, pattern, roomy_pool, send_end};
use crate::message::header;
use crate::told::{Told, mode};

/// What a told sender asks of its endpoint.
pub(crate) fn config(told: &Told) -> SendConfig {
    let level = match told.text("level") {
        Some("delivered") => Level::Delivered,
        _ => Level::Sent,
    };
    SendConfig::default()
        .outgoing(|out| {
            out.shape(shape(told))
                .packing(packing())
                .level(level)
                .header_mode(mode(told.text("mode").unwrap_or("prefixed")))
                .deadline(Some(Duration::from_millis(told.number("deadline", 30_000))))
        })
        .connection(|c| {
            c.connect_timeout(Duration::from_millis(told.number("connect", 5000)))
                .lost_after(Some(Duration::from_millis(told.number("lost", 60_000))))
        })
}

/// How header and payload become one message, if it matters.
fn shape(told: &Told) -> Option<Shape> {
    match told.text("shape")? {
        "headroom" => Some(Shape::Headroom),
        "two" => Some(Shape::TwoMessages),
        other => panic!("no shape {other:?}"),
    }
}

pub(crate) struct Sender {
    pub(crate) endpoint: SendEndpointZeroCopy,
    who: u64,
    sizes: Vec<usize>,
    pub(crate) posted: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    blocked: u64,
    /// What happened and is no outcome.
    pub(crate) events: Vec<SendEvent>,
    pub(crate) pool: SharedBufferManager,
}

impl Sender {
    pub(crate) fn connect(told: &Told) -> Self {
        Self::with(told, config(told))
    }

    pub(crate) fn with(told: &Told, config: SendConfig) -> Self {
        let domain = told.domain();
        let sizes = told.text("sizes").unwrap_or("1");
        let sizes: Vec<usize> = sizes
            .split(',')
            .map(|n| n.parse().expect("a size"))
            .collect();
        let largest = *sizes.iter().max().expect("a size");
        let headroom = if told.text("shape").is_some() { 128 } else { 0 };
        let pool = roomy_pool(&domain, 16, largest.max(64), headroom);
        let endpoint = SendEndpointZeroCopy::connect(&domain, told.to(), config).expect("begins");
        Self {
            endpoint,
            who: told.number("who", 0),
            sizes,
            posted: 0,
            completed: 0,
            failed: 0,
            blocked: 0,
            events: Vec::new(),
            pool,
        }
    }

    pub(crate) fn poll(&mut self) {
        if self.endpoint.poll(&mut self.events).expect("polls") == 0 {
            self.endpoint.wait(NAP).expect("sleeps");
        }
        self.count();
    }

    pub(crate) fn count(&mut self) {
        for event in &self.events {
            match event {
                SendEvent::Completed { .. } => self.completed += 1,
                SendEvent::Failed { .. } => self.failed += 1,
                _ => {}
            }
        }
        let outcome =
            |e: &SendEvent| !matches!(e, SendEvent::Completed { .. } | SendEvent::Failed { .. });
        self.events.retain(outcome);
    }

    /// True when the message was taken.
    pub(crate) fn try_send(&mut self) -> bool {
        if self.pool.free_count() == 0 {
            return false;
        }
        let len = self.sizes[self.posted as usize % self.sizes.len()];
        let payload = buffer(&self.pool, &pattern(self.posted, len));
        let header = header(self.who, self.posted, len);
        match self.endpoint.send_data(payload, &header, self.posted) {
            Ok(()) => {
                self.posted += 1;
                true
            }
            Err(refused) => {
                self.blocked += u64::from(refused.is_would_block());
                false
            }
        }
    }

    pub(crate) fn outcomes(&self) -> u64 {
        self.completed + self.failed
    }

    pub(crate) fn ended(&self) -> Option<CloseReason> {
        send_end(&self.events)
    }

    /// Says goodbye and reports.
    pub(crate) fn finish(mut self) {
        self.endpoint.begin_close(after(SOON));
        drive("the goodbye", 2 * SOON, || {
            self.poll();
            self.ended().is_some()
        });
        self.report(self.ended());
    }

    pub(crate) fn report(&self, reason: Option<CloseReason>) {
        let Self {
            posted,
            completed,
            failed,
            ..
        } = self;
        let code = match reason {
            Some(CloseReason::Refused(refusal)) => format!("refused {:?}", refusal.code()),
            Some(reason) => reason.to_string(),
            None => "none".to_owned(),
        };
        child::tell(format!("sent {posted} {completed} {failed} {code}"));
    }
}

/// Sends `n` messages, then closes politely; with `flood`, sends until the connection ends; with
/// `rude`, drops; with `gated`, waits for a word before it sends.
pub(crate) fn send(told: &Told) {
    let mut sender = Sender::connect(told);
    if let Err(error) = sender.endpoint.wait_connected() {
        child::tell(format!("no connection: {error}"));
        sender.poll();
        return sender.report(sender.endpoint.close_reason());
    }
    child::tell("connected");
    if told.text("gated").is_some() {
        let _ = child::hear();
    }
    let (n, flood) = (told.number("n", 0), told.number("flood", 0));
    let mut told_of_flood = false;
    let idle = Duration::from_millis(told.number("idle", 60_000));
    let mut last = (0, Instant::now());
    drive("all sends", 4 * SOON, || {
        while sender.posted < n && sender.try_send() {}
        sender.poll();
        if sender.outcomes() != last.0 {
            last = (sender.outcomes(), Instant::now());
        }
        if last.1.elapsed() > idle && sender.outcomes() == sender.posted {
            return true;
        }
        if !told_of_flood && flood > 0 && sender.posted >= flood {
            told_of_flood = true;
            child::tell("flooding");
        }
        sender.ended().is_some() || sender.posted == n && sender.completed == n
    });
    if sender.ended().is_none() && sender.posted < n {
        return sender.report(None);
    }
    if let Some(reason) = sender.ended() {
        return sender.report(Some(reason));
    }
    if told.text("rude").is_some() {
        // A socket that is closed with something unread takes back what was written last.
        let until = after(Duration::from_millis(told.number("rude", 0)));
        drive("a moment", SOON, || {
            sender.poll();
            Instant::now() >= until
        });
        let Sender { endpoint, .. } = sender;
        drop(endpoint);
        return child::tell("dropped");
    }
    if told.text("stay").is_some() {
        child::tell("staying");
        let _ = child::hear();
        return;
    }
    sender.finish();
}

/// Sends until it is refused for want of credit, tells, and goes on when it is told to.
pub(crate) fn stall(told: &Told) {
    let mut sender = Sender::connect(told);
    sender.endpoint.wait_connected().expect("connects");
    let n = told.number("n", 0);
    let credits = told.number("credits", 0);
    let until = after(Duration::from_millis(300));
    drive("a stall", SOON, || {
        while sender.posted < n && sender.try_send() {}
        sender.poll();
        Instant::now() >= until
    });
    assert!(sender.blocked > 0, "refused");
    assert!(sender.posted <= credits, "{} posted", sender.posted);
    child::tell(format!("stalled {}", sender.posted));
    drive("the rest", 2 * SOON, || {
        while sender.posted < n && sender.try_send() {}
        sender.poll();
        sender.completed == n
    });
    sender.finish();
}

/// Only begins to connect.
pub(crate) fn ask(told: &Told) {
    match SendEndpointZeroCopy::connect(&told.domain(), told.to(), SendConfig::default()) {
        Ok(_) => child::tell("error none"),
        Err(error) => child::tell(format!("error {error}")),
    }
}
