//! A fake detector: a thread that fills a ring, as a DMA engine would, and knows nothing of the
//! network.
//!
//! It looks at the time now and then, and fills all fragments that are due: as real cards, which
//! raise an interrupt for many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabricast::buffer::{Reservation, RingConfig, RingRegion};
use fabricast::event_loop::Waker;
use fabricast::{Domain, Region};

use crate::failure::Failure;
use crate::readout::args::{OnFull, ReadoutArgs};
use crate::readout::clock::now_ns;
use crate::readout::intake::{Filled, FilledSender, Queue};
use crate::readout::numbers::Gap;
use crate::readout::pattern;
use crate::readout::size::{Random, Size};
use crate::readout::trigger::Trigger;

/// Events that are filled before the sender is woken.
const BATCH: u64 = 128;
/// The shortest sleep: several fragments are due after it at high rates.
const NAP: Duration = Duration::from_micros(100);
/// Between two looks at a ring that is full: it drains by megabytes.
const NAP_FULL: Duration = Duration::from_micros(500);
/// The longest sleep: the end of the run is noticed by then.
const NAP_MAX: Duration = Duration::from_millis(20);

/// What others may know of a detector, any time. Counters only: nothing is ordered by them.
#[derive(Debug, Default)]
pub(crate) struct Status {
    /// Fragments committed.
    pub(crate) fragments: AtomicU64,
    /// Their bytes.
    pub(crate) bytes: AtomicU64,
    /// Fragments that found the ring full and were dropped.
    pub(crate) dropped: AtomicU64,
    /// Times that the ring was full.
    pub(crate) stalls: AtomicU64,
    /// Nanoseconds waited for room.
    pub(crate) stalled_ns: AtomicU64,
    /// Bytes between tail and head of the ring.
    pub(crate) used: AtomicU64,
    /// The age of the fragment that holds the tail, in microseconds.
    pub(crate) oldest_us: AtomicU64,
}

impl Status {
    pub(crate) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

/// A detector that is not running yet.
pub(crate) struct Detector {
    number: u16,
    ring: RingRegion,
    size: Size,
    gap: Gap,
    random: Random,
    /// Nanoseconds from one event to the next; `None`: as fast as it goes.
    period_ns: Option<f64>,
    on_full: OnFull,
    check: bool,
    status: Arc<Status>,
    trigger: Arc<Trigger>,
    waker: Waker,
    queue: FilledSender,
    /// Filled, and not handed over yet; how many that were, and their bytes, is not in the status.
    batch: Vec<Filled>,
    bytes: u64,
    /// When the batch was begun, or last waited for: what its fragments, which are a little
    /// younger, say. And the same by the machine's clock.
    now: Instant,
    committed: u64,
    /// Which event is next, from 0; its number may be another.
    next: u64,
    started: Instant,
    /// Time in which the trigger was held because the ring was full.
    held: Duration,
}

impl Detector {
    /// Allocates and registers the ring. The queue has room for every fragment that can be out, so
    /// the detector never waits for it.
    pub(crate) fn new(
        number: u16,
        args: &ReadoutArgs,
        domain: &Domain,
        trigger: &Arc<Trigger>,
        waker: Waker,
    ) -> Result<(Self, Queue, Arc<Status>), Failure> {
        let region = Region::host(args.ring_bytes()).populate(true).build()?;
        region.register(domain)?;
        let max_fragments = args.ring_fragments;
        let ring = RingRegion::new(
            region,
            RingConfig {
                max_fragments,
                ..RingConfig::default()
            },
        )?;
        let sender = FilledSender::new(max_fragments as usize);
        let queue = Queue::new(number, &sender);
        let status = Arc::new(Status::default());
        let detector = Self {
            number,
            ring,
            size: args.size,
            gap: args.gap,
            random: Random::new(u64::from(number) + 1),
            period_ns: (args.rate > 0.0).then(|| 1e6 / args.rate),
            on_full: args.on_full,
            check: args.check.is_on(),
            status: Arc::clone(&status),
            trigger: Arc::clone(trigger),
            waker,
            queue: sender,
            batch: Vec::with_capacity(BATCH as usize),
            bytes: 0,
            now: Instant::now(),
            committed: 0,
            next: 0,
            started: Instant::now(),
            held: Duration::ZERO,
        };
        Ok((detector, queue, status))
    }

    pub(crate) fn start(mut self) -> Result<JoinHandle<()>, Failure> {
        let thread = std::thread::Builder::new().name(format!("detector-{}", self.number));
        self.started = Instant::now();
        thread
            .spawn(move || self.run())
            .map_err(|error| Failure::os("thread of a detector", &error))
    }

    fn run(mut self) {
        while let Some(limit) = self.trigger.claim(self.next, self.due()) {
            if limit == self.next {
                self.nap();
            }
            (self.now, self.committed) = (Instant::now(), now_ns());
            while self.next < limit {
                if self.produce().is_err() {
                    return;
                }
                self.next += 1;
            }
            self.hand_over();
        }
        // The queue is closed first: the sender finds that out when it looks.
        let waker = self.waker.clone();
        drop(self);
        waker.wake();
    }

    /// How many events the trigger owes us by now.
    fn due(&self) -> u64 {
        let Some(period) = self.period_ns else {
            return BATCH;
        };
        let running = self.started.elapsed().saturating_sub(self.held);
        let due = (running.as_nanos() as f64 / period) as u64;
        due.saturating_sub(self.next).min(BATCH)
    }

    fn nap(&self) {
        let period = Duration::from_nanos(self.period_ns.unwrap_or(0.0) as u64);
        std::thread::sleep(period.clamp(NAP, NAP_MAX));
    }

    /// Fills the fragment of the next event, or drops it. An error: nobody takes fragments any
    /// more.
    #[inline]
    fn produce(&mut self) -> Result<(), RunOver> {
        let len = self.size.draw(&mut self.random);
        match self.ring.reserve_at(room(len), self.now) {
            Ok(reservation) => self.fill(reservation, len),
            Err(_) => match self.wait_for_room(len)? {
                Some(reservation) => self.fill(reservation, len),
                None => Status::add(&self.status.dropped, 1),
            },
        }
        Ok(())
    }

    #[inline(always)]
    fn fill(&mut self, mut reservation: Reservation, len: usize) {
        let event = self.gap.number(self.next);
        let crc = if self.check {
            let parts = reservation
                .segments_mut()
                .expect("the ring is in host memory");
            pattern::fill(event, self.number, cut(parts, len))
        } else {
            0
        };
        self.batch.push(Filled {
            event,
            committed: self.committed,
            crc,
            fragment: reservation.commit(len),
        });
        self.bytes += len as u64;
    }

    /// Gives the sender what was filled, and wakes it. Counted before: what was taken was filled.
    fn hand_over(&mut self) {
        Status::add(&self.status.fragments, self.batch.len() as u64);
        Status::add(&self.status.bytes, std::mem::take(&mut self.bytes));
        self.queue.send(&mut self.batch);
        self.publish();
        self.waker.wake();
    }

    /// The ring is full: a fragment is never longer than that, the command line is checked for it.
    /// `None`: the fragment is dropped.
    #[cold]
    fn wait_for_room(&mut self, len: usize) -> Result<Option<Reservation>, RunOver> {
        Status::add(&self.status.stalls, 1);
        self.hand_over();
        if self.on_full == OnFull::Drop {
            return Ok(None);
        }
        let since = Instant::now();
        let mut last = since;
        loop {
            self.publish();
            std::thread::sleep(NAP_FULL);
            let now = Instant::now();
            let reserved = self.ring.reserve_at(room(len), now).ok();
            Status::add(&self.status.stalled_ns, (now - last).as_nanos() as u64);
            last = now;
            if reserved.is_some() {
                self.held += now - since;
                (self.now, self.committed) = (now, now_ns());
                return Ok(reserved);
            }
            if self.trigger.is_aborted() {
                return Err(RunOver);
            }
        }
    }

    /// Tells how full the ring is, and how long its oldest fragment is out.
    fn publish(&mut self) {
        let used = self.ring.head() - self.ring.tail();
        let oldest = self.ring.oldest_age(Instant::now()).unwrap_or_default();
        self.status.used.store(used, Ordering::Relaxed);
        let oldest = oldest.as_micros() as u64;
        self.status.oldest_us.store(oldest, Ordering::Relaxed);
    }
}

struct RunOver;

/// What a fragment takes of the ring: whole words, so that a word is never split at the ring's end.
fn room(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// The first `len` bytes of both parts.
fn cut<'a>(parts: (&'a mut [u8], &'a mut [u8]), len: usize) -> (&'a mut [u8], &'a mut [u8]) {
    let first = len.min(parts.0.len());
    let (head, rest) = parts;
    (&mut head[..first], &mut rest[..len - first])
}
