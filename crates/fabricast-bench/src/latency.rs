//! How long a message takes: lone ones, and messages at a fixed rate, whatever became of those
//! before. The loop is open: a message that goes out late is late from when it was due, so what
//! stalls for a moment is seen by all the messages that were due meanwhile.
//!
//! Where both ends read one clock (the monotonic one of a machine) the way there is timed. Else the
//! server sends each message back, and half of the time from when it was due is taken.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fabricast::buffer::{HeaderSlotConfig, SharedBufferManager};
use fabricast::endpoint::{HeaderMode, Packing, ReceiveConfig, SendConfig};
use fabricast::{
    ConnectionEvent, PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy, SendEvent,
};
use rustix::time::{ClockId, clock_gettime};

use crate::case::{Arrived, Case, Sent};
use crate::clock::{Deadline, Patience};
use crate::control::Control;
use crate::error::{Failure, fail};
use crate::host::cpu_seconds;
use crate::object::patience;
use crate::ours;
use crate::server::Wish;
use crate::times::Times;

/// Bytes of a header: when the message was due, and whether it is the last one.
const HEADER: usize = 16;
/// Payloads of a sender.
const PAYLOADS: u32 = 4096;
/// Messages in flight that are not packed.
const DEPTH: u32 = 64;
/// Between a lone message's confirmation and the next one: the receiver has nothing for so long.
const PAUSE_NS: u64 = 100_000;
/// At first, while buffers are touched and the network wakes up, nothing is counted.
const WARM_UP_NS: u64 = 100_000_000;

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What each message says: when it was due, 0 if it is not counted; and whether it is the last.
type Word = [u64; 2];

/// The last one.
const LAST: Word = [0, 1];

/// The word of a header; an error for one that is not as long.
fn word(header: &[u8]) -> Result<Word, Failure> {
    let Ok(bytes) = <[u8; HEADER]>::try_from(header) else {
        return fail("a header of another length");
    };
    let (words, _) = bytes.as_chunks::<8>();
    Ok([0, 1].map(|at| u64::from_le_bytes(words[at])))
}

// ---- the two ends of a connection ---------------------------------------------------------------

struct Receiver {
    endpoint: ReceiveEndpoint,
    events: Vec<ReceiveEvent>,
}

impl Receiver {
    fn listen(domain: &std::sync::Arc<fabricast::Domain>, case: &Case) -> Result<Self, Failure> {
        let config = ReceiveConfig::default()
            .incoming(|incoming| match case.pack {
                0 => {
                    let credits = case.window() as u32;
                    let message = (HEADER + case.size).next_multiple_of(64);
                    incoming
                        .max_message(message)
                        .credits(credits)
                        .slots(credits + 46)
                }
                _ => incoming
                    .max_message(ours::FRAME)
                    .credits(ours::FRAMES)
                    .slots(ours::FRAMES + 2 + 16),
            })
            .connection(|c| c.max_connections(1))
            .header_mode(HeaderMode::Fixed(HEADER as u16));
        let endpoint = ReceiveEndpoint::listen(domain, ours::local_addr(case)?, config)?;
        Ok(Self {
            endpoint,
            events: Vec::with_capacity(256),
        })
    }

    /// Hands out the word of each message; how many events.
    fn poll(&mut self, mut each: impl FnMut(Word)) -> Result<usize, Failure> {
        let found = self.endpoint.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                ReceiveEvent::Message(message) => each(word(message.header())?),
                ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    return fail(reason.to_string());
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

struct Sender {
    endpoint: SendEndpointZeroCopy,
    payloads: SharedBufferManager,
    size: usize,
    events: Vec<SendEvent>,
    completed: u64,
    posted: u64,
}

impl Sender {
    fn connect(
        domain: &std::sync::Arc<fabricast::Domain>,
        case: &Case,
        to: PeerAddr,
    ) -> Result<Self, Failure> {
        // 64 MiB of payloads at most, as the receiver has.
        let payloads = ((64 << 20) / case.size).clamp(2 * DEPTH as usize, PAYLOADS as usize);
        let payloads = SharedBufferManager::allocate(payloads as u32, case.size)?;
        payloads.region().register(domain)?;
        let config = SendConfig::default().outgoing(|out| {
            out.depth(DEPTH)
                .packing(match case.pack {
                    0 => Packing::Off,
                    bytes => Packing::UpTo(bytes),
                })
                .header_mode(HeaderMode::Fixed(HEADER as u16))
                .headers(HeaderSlotConfig {
                    slots: DEPTH,
                    slot_size: 64,
                })
        });
        Ok(Self {
            endpoint: SendEndpointZeroCopy::connect(domain, to, config)?,
            payloads,
            size: case.size,
            events: Vec::with_capacity(256),
            completed: 0,
            posted: 0,
        })
    }

    /// Sends a message; false: not now.
    fn post(&mut self, [due, last]: Word) -> Result<bool, Failure> {
        let Some(payload) = self.payloads.try_acquire() else {
            return Ok(false);
        };
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&due.to_le_bytes());
        header[8..].copy_from_slice(&last.to_le_bytes());
        match self
            .endpoint
            .send_data(payload.freeze(self.size), &header, 0)
        {
            Ok(()) => {
                self.posted += 1;
                Ok(true)
            }
            Err(refused) if refused.is_would_block() => Ok(false),
            Err(refused) => fail(refused.to_string()),
        }
    }

    fn poll(&mut self) -> Result<usize, Failure> {
        let found = self.endpoint.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                // Its payload goes back to the pool.
                SendEvent::Completed { .. } => self.completed += 1,
                SendEvent::Failed { error, .. } => return fail(error.to_string()),
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    return fail(reason.to_string());
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Polls until both connections stand.
fn connect_both(sender: &mut Sender, receiver: &mut Receiver) -> Result<Vec<Word>, Failure> {
    let mut early = Vec::new();
    let deadline = Deadline::after(ours::CONNECT);
    while !sender.endpoint.is_connected() || receiver.endpoint.connections() == 0 {
        sender.poll()?;
        receiver.poll(|word| early.push(word))?;
        deadline.check("a connection")?;
        std::thread::yield_now();
    }
    Ok(early)
}

/// Times of messages, counted where they end.
#[derive(Default)]
struct Ages {
    times: Times,
    /// One way or there and back.
    ways: u64,
    first: Option<(u64, f64)>,
    last: (u64, f64),
    is_over: bool,
}

impl Ages {
    fn new(ways: u64) -> Self {
        Self {
            ways,
            ..Self::default()
        }
    }

    fn count(&mut self, [due, last]: Word) {
        if last == 1 {
            self.is_over = true;
            self.last = (now_ns(), cpu_seconds());
        } else if due > 0 {
            let now = now_ns();
            self.first.get_or_insert_with(|| (now, cpu_seconds()));
            self.times.add(now.saturating_sub(due) / self.ways);
        }
    }

    fn arrived(&self) -> Arrived {
        let (from, cpu) = self.first.unwrap_or(self.last);
        Arrived {
            messages: self.times.count(),
            elapsed_s: (self.last.0 - from) as f64 / 1e9,
            cpu_s: self.last.1 - cpu,
        }
    }
}

// ---- the server ---------------------------------------------------------------------------------

/// Takes messages until the last one; sends them back, where the client listens.
pub(crate) fn receive(
    case: &Case,
    back: Option<SocketAddr>,
    control: &mut Control,
) -> Result<Arrived, Failure> {
    let domain = ours::open(case)?;
    let mut receiver = Receiver::listen(&domain, case)?;
    control.say(&format!("ready {}", receiver.endpoint.local_addr()))?;
    let mut ages = Ages::new(1);
    let mut patience = Patience::new(case.limit());
    let Some(back) = back else {
        while !ages.is_over {
            let found = receiver.poll(|word| ages.count(word))?;
            patience.on_poll(found)?;
        }
        control.say(&format!("ages {}", ages.times.text()))?;
        return Ok(ages.arrived());
    };
    let mut sender = Sender::connect(&domain, case, back.into())?;
    let mut waiting: VecDeque<_> = connect_both(&mut sender, &mut receiver)?.into();
    while !ages.is_over || !waiting.is_empty() || sender.completed < sender.posted {
        // No more is taken than can be sent back: the client waits for credits then.
        let mut found = match waiting.is_empty() {
            true => receiver.poll(|word| {
                ages.count(word);
                waiting.push_back(word);
            })?,
            false => 0,
        };
        while let Some(&word) = waiting.front() {
            if !sender.post(word)? {
                break;
            }
            waiting.pop_front();
        }
        found += sender.poll()?;
        patience.on_poll(found)?;
    }
    control.expect("done", self::patience(case))?;
    Ok(ages.arrived())
}

// ---- the client ---------------------------------------------------------------------------------

/// What messages go by, and the clock that says when they are due.
trait Line {
    /// Now, in nanoseconds.
    fn now(&mut self) -> u64;
    /// Sends one; false: not now.
    fn post(&mut self, word: Word) -> Result<bool, Failure>;
    /// Takes what completed.
    fn poll(&mut self) -> Result<(), Failure>;
}

/// Messages that are due every so many nanoseconds, up to some time. They are counted if they are
/// due from `counted` on.
fn paced(
    line: &mut impl Line,
    period: f64,
    [begun, counted, until]: [u64; 3],
) -> Result<(), Failure> {
    let mut sent = 0_u64;
    loop {
        let now = line.now();
        let due = |sent: u64| begun + (sent as f64 * period) as u64;
        // What was due in time is sent, however late it is.
        if now >= until && due(sent) >= until {
            return Ok(());
        }
        loop {
            let due = due(sent);
            if due > now || due >= until {
                break;
            }
            if !line.post([if due < counted { 0 } else { due }, 0])? {
                break;
            }
            sent += 1;
        }
        line.poll()?;
    }
}

/// The client's end of the connection, or of both.
struct Wire {
    sender: Sender,
    back: Option<Receiver>,
    ages: Ages,
    patience: Patience,
}

impl Line for Wire {
    fn now(&mut self) -> u64 {
        now_ns()
    }

    fn post(&mut self, word: Word) -> Result<bool, Failure> {
        self.sender.post(word)
    }

    fn poll(&mut self) -> Result<(), Failure> {
        let mut found = self.sender.poll()?;
        if let Some(back) = &mut self.back {
            found += back.poll(|word| self.ages.count(word))?;
        }
        self.patience.on_poll(found)
    }
}

impl Wire {
    /// One at a time, up to some time.
    fn lone(&mut self, [counted, until]: [u64; 2]) -> Result<(), Failure> {
        loop {
            let now = now_ns();
            if now >= until {
                return Ok(());
            }
            while !self.post([if now < counted { 0 } else { now }, 0])? {
                self.poll()?;
            }
            while self.sender.completed < self.sender.posted {
                self.poll()?;
            }
            let next = now_ns() + PAUSE_NS;
            while now_ns() < next {
                self.poll()?;
            }
        }
    }

    fn run(&mut self, case: &Case) -> Result<(), Failure> {
        let begun = now_ns();
        let wait = case.begin.map_or(Duration::ZERO, |begin| {
            begin.saturating_duration_since(Instant::now())
        });
        let counted = begun + WARM_UP_NS.max(wait.as_nanos() as u64);
        let until = counted + (case.seconds * 1e9) as u64;
        match case.rate {
            0 => self.lone([counted, until])?,
            rate => paced(self, 1e9 / f64::from(rate), [begun, counted, until])?,
        }
        while !self.post(LAST)? {
            self.poll()?;
        }
        while self.sender.completed < self.sender.posted {
            self.poll()?;
        }
        while self.back.is_some() && !self.ages.is_over {
            self.poll()?;
        }
        Ok(())
    }
}

/// The sending half.
pub(crate) fn send(
    case: &Case,
    wish: &mut Wish,
    control: &mut Control,
) -> Result<(Sent, Arrived), Failure> {
    let domain = ours::open(case)?;
    let mut back = match case.one_way {
        true => None,
        false => Some(Receiver::listen(&domain, case)?),
    };
    wish.back = match &back {
        Some(back) => {
            let addr = back.endpoint.local_addr().socket_addr();
            Some(addr.ok_or_else(|| Failure::of("the listener has no IP address"))?)
        }
        None => None,
    };
    control.say(&wish.line())?;
    let to: PeerAddr = control.expect("ready", patience(case))?.parse()?;
    let mut sender = Sender::connect(&domain, case, to)?;
    match &mut back {
        Some(back) => drop(connect_both(&mut sender, back)?),
        None => drop(sender.endpoint.wait_connected()?),
    }
    let mut wire = Wire {
        sender,
        back,
        ages: Ages::new(2),
        patience: Patience::new(case.limit()),
    };
    let cpu = cpu_seconds();
    wire.run(case)?;
    let cpu_s = cpu_seconds() - cpu;
    let times = match wire.back.is_some() {
        true => {
            control.say("done now")?;
            std::mem::take(&mut wire.ages.times)
        }
        false => Times::of_text(&control.expect("ages", patience(case))?)?,
    };
    let theirs = crate::client::arrived(&control.expect("arrived", patience(case))?)?;
    let sent = Sent {
        cpu_s,
        half_ns: Vec::new(),
        times: Some(times),
    };
    Ok((sent, theirs))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Messages that a server may have in its queue.
    const ROOM: usize = 64;

    /// A server that takes so long for each message, and nothing for a while.
    #[derive(Default)]
    struct Stalling {
        now: u64,
        service: u64,
        stall: std::ops::Range<u64>,
        /// Due times of what it has, and when it is done with what it does now.
        queue: VecDeque<u64>,
        free_at: u64,
        times: Times,
        /// One at a time: what a closed loop would do.
        is_closed: bool,
    }

    impl Stalling {
        fn serve(&mut self) {
            while let Some(&due) = self.queue.front() {
                let begins = match self.stall.contains(&self.free_at) {
                    true => self.stall.end,
                    false => self.free_at,
                };
                let done = begins + self.service;
                if done > self.now {
                    return;
                }
                self.queue.pop_front();
                self.free_at = done;
                self.times.add(done - due);
            }
            self.free_at = self.now;
        }
    }

    impl Line for Stalling {
        fn now(&mut self) -> u64 {
            self.now += 500;
            self.serve();
            self.now
        }

        fn post(&mut self, [due, _]: Word) -> Result<bool, Failure> {
            let room = if self.is_closed { 1 } else { ROOM };
            if self.queue.len() >= room {
                return Ok(false);
            }
            // Who waits for an answer before he asks again counts from when he asks.
            let counted = if self.is_closed { self.now } else { due };
            self.queue.push_back(counted);
            Ok(true)
        }

        fn poll(&mut self) -> Result<(), Failure> {
            Ok(())
        }
    }

    const MS: u64 = 1_000_000;

    fn stalled(rate: u32, at: u64, is_closed: bool) -> Times {
        let mut line = Stalling {
            service: 2_000,
            stall: at..at + 100 * MS,
            is_closed,
            ..Stalling::default()
        };
        let all = [0, 1, 1000 * MS];
        paced(&mut line, 1e9 / f64::from(rate), all).expect("it takes all");
        while !line.queue.is_empty() {
            line.now();
        }
        line.times
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// In a second 100 ms are a tenth: the tenth of all messages that was due then waits for 50
        /// ms in the middle, and the slowest for all of it.
        #[test]
        fn a_stall_of_100_ms_is_in_the_percentiles(
            rate in 1_000_u32..100_000,
            at in 50 * MS..850 * MS,
        ) {
            let times = stalled(rate, at, false);
            prop_assert!(times.count() >= u64::from(rate) - 1);
            prop_assert!(times.at(95.0) > 40_000.0, "{} us", times.at(95.0));
            prop_assert!(times.at(99.0) > 85_000.0, "{} us", times.at(99.0));
            prop_assert!(times.at(100.0) > 98_000.0, "{} us", times.at(100.0));
        }

        /// And a loop that waits for each answer would not have seen it there: the test above fails
        /// for it.
        #[test]
        fn a_closed_loop_would_not_see_it(
            rate in 1_000_u32..100_000,
            at in 50 * MS..850 * MS,
        ) {
            let times = stalled(rate, at, true);
            prop_assert!(times.at(99.0) < 1_000.0, "{} us", times.at(99.0));
        }
    }

    #[test]
    fn all_that_is_due_in_time_is_sent() {
        let mut line = Stalling {
            service: 100,
            ..Stalling::default()
        };
        paced(&mut line, 1_000.0, [0, 500_000, MS]).expect("it takes all");
        line.now += MS;
        line.serve();
        assert_eq!(line.times.count(), 1_000);
    }
}
