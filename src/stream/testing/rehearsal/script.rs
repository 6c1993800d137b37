//! `Script`: what is sent, by whom, and what goes wrong meanwhile; all of it follows from a seed.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::endpoint::duplex::faults::{Dice, FaultConfig, Faults};
use crate::endpoint::link::fake::NetConfig;
use crate::protocol::connection::Form;
use crate::stream::outbox::Swallow;
use crate::stream::wire::Kind;
use crate::stream::{SendOptions, SlowPeer, Transport};

/// Which side of a stream: the sender, or one of the receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::stream) enum Side {
    Sender,
    Receiver(usize),
}

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stream) enum End {
    Dialing,
    Accepting,
}

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stream) enum Mishap {
    /// A connection breaks, one of those that stand.
    Cut(u64),
    /// What one end of a connection has sent, the one that dialed or the other, and what has not
    /// arrived, is lost, and nobody hears of it: only over datagrams.
    Lose(u64, End),
    /// The next dials to a receiver come to nothing.
    Refuse(usize, usize),
    /// A side does nothing for so long.
    Freeze(Side, Duration),
    /// The provider takes no posts of a side.
    Jam(Side, Duration),
    /// What is sent on a connection arrives on neither side; it is one of those that stand.
    Dark(u64, Duration),
    /// A side hears late, and in any order, of what it has sent.
    Late(Side, Duration),
    /// What a side reads or writes takes so long each time, for so long.
    Slow(Side, Duration, Duration),
}

/// What the application asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stream) enum Wish {
    Begin(usize),
    Pause(usize),
    Resume(usize),
    Cancel(usize),
}

/// One transfer.
#[derive(Debug, Clone)]
pub(in crate::stream) struct Errand {
    /// Of its files.
    pub(in crate::stream) sizes: Vec<u64>,
    pub(in crate::stream) receivers: Vec<usize>,
    pub(in crate::stream) options: SendOptions,
    /// What the options say.
    pub(in crate::stream) reconnects: u32,
}

/// The settings of the sender that the times of everything follow from.
#[derive(Debug, Clone)]
pub(in crate::stream) struct SenderPlan {
    pub(in crate::stream) block_bytes: u32,
    pub(in crate::stream) buffers: u32,
    pub(in crate::stream) readers: u32,
    pub(in crate::stream) depth: u32,
    pub(in crate::stream) faults: Option<FaultConfig>,
    pub(in crate::stream) swallow: Option<Swallow>,
}

#[derive(Debug, Clone)]
pub(in crate::stream) struct ReceiverPlan {
    pub(in crate::stream) block_bytes: u32,
    pub(in crate::stream) buffers: u32,
    pub(in crate::stream) window: u32,
    pub(in crate::stream) windows: u32,
    pub(in crate::stream) writers: u32,
    pub(in crate::stream) swallow: Option<Swallow>,
}

/// How long who waits for whom, on both sides.
#[derive(Debug, Clone, Copy)]
pub(in crate::stream) struct Times {
    pub(in crate::stream) connect: Duration,
    pub(in crate::stream) lost: Duration,
    pub(in crate::stream) stalled: Duration,
    pub(in crate::stream) paused: Duration,
}

/// One rehearsal.
#[derive(Debug, Clone)]
pub(in crate::stream) struct Script {
    pub(in crate::stream) seed: u64,
    /// Whatever goes wrong passes soon: every transfer succeeds.
    pub(in crate::stream) is_mild: bool,
    pub(in crate::stream) net: NetConfig,
    pub(in crate::stream) times: Times,
    pub(in crate::stream) sender: SenderPlan,
    pub(in crate::stream) receivers: Vec<ReceiverPlan>,
    pub(in crate::stream) errands: Vec<Errand>,
    pub(in crate::stream) wishes: Vec<(Duration, Wish)>,
    pub(in crate::stream) mishaps: Vec<(Duration, Mishap)>,
    /// How long one read or write takes where nothing goes wrong, at most.
    pub(in crate::stream) work: Duration,
    /// Messages that a connection carries before the next one has its turn, at most.
    pub(in crate::stream) burst: u64,
}

pub(in crate::stream) fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// One of them.
fn pick<T: Clone>(dice: &mut Dice, all: &[T]) -> T {
    all[dice.roll(all.len() as u64) as usize].clone()
}

/// A generator that begins elsewhere for each seed.
pub(in crate::stream) fn dice(seed: u64) -> Dice {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        dice.roll(2);
    }
    dice
}

impl Script {
    pub(in crate::stream) fn new(seed: u64, form: Form, is_mild: bool) -> Self {
        let mut dice = dice(seed);
        let dice = &mut dice;
        let times = Times::new(dice, is_mild);
        let count = [1, 1, 1, 2, 3][dice.roll(5) as usize];
        let receivers: Vec<_> = (0..count).map(|_| ReceiverPlan::new(dice)).collect();
        let errands: Vec<_> = (0..1 + dice.roll(4))
            .map(|_| Errand::new(dice, &receivers, &times, is_mild))
            .collect();
        let mut script = Self {
            seed,
            is_mild,
            net: net(dice, form),
            times,
            sender: SenderPlan::new(dice, is_mild),
            receivers,
            wishes: wishes(dice, errands.len(), is_mild),
            errands,
            mishaps: Vec::new(),
            work: pick(dice, &[Duration::ZERO, millis(0), millis(1), millis(5)]),
            burst: 1 + dice.roll(8),
        };
        script.mishaps = script.go_wrong(dice);
        script.swallow_some(dice);
        script.lose_some();
        script
    }

    /// One receiver, nothing to send yet, and nothing that goes wrong or takes its time.
    pub(in crate::stream) fn quiet(form: Form) -> Self {
        let day = Duration::from_secs(86_400);
        Self {
            seed: 0,
            is_mild: true,
            net: NetConfig {
                form,
                ..NetConfig::default()
            },
            times: Times {
                connect: millis(5000),
                lost: millis(10_000),
                stalled: day,
                paused: day,
            },
            sender: SenderPlan {
                block_bytes: 16_384,
                buffers: 16,
                readers: 2,
                depth: 8,
                faults: None,
                swallow: None,
            },
            receivers: vec![ReceiverPlan {
                block_bytes: 16_384,
                buffers: 32,
                window: 8,
                windows: 256,
                writers: 2,
                swallow: None,
            }],
            errands: Vec::new(),
            wishes: Vec::new(),
            mishaps: Vec::new(),
            work: Duration::ZERO,
            burst: 4,
        }
    }

    /// With one more transfer, which begins at once.
    pub(in crate::stream) fn sending(mut self, sizes: &[u64], options: SendOptions) -> Self {
        let begin = Wish::Begin(self.errands.len());
        self.errands.push(Errand {
            sizes: sizes.to_vec(),
            receivers: vec![0],
            options,
            reconnects: 0,
        });
        self.wishes.push((Duration::ZERO, begin));
        self
    }

    /// What a side reads or writes takes so long each time, until the last transfer is over.
    pub(in crate::stream) fn slow(&mut self, side: Side, each: Duration) {
        let begin = (Duration::ZERO, Mishap::Slow(side, each, 60 * each));
        self.mishaps.push(begin);
    }

    fn go_wrong(&self, dice: &mut Dice) -> Vec<(Duration, Mishap)> {
        // Attempts to connect again have to suffice where all is to end well.
        let most = if self.is_mild { 5 } else { 10 };
        let count = dice.roll(most + 1);
        let mut all: Vec<_> = (0..count)
            .map(|_| {
                let at = Duration::from_micros(dice.roll(400_000));
                (at, self.mishap(dice))
            })
            .collect();
        all.sort_by_key(|(at, _)| *at);
        all
    }

    fn mishap(&self, dice: &mut Dice) -> Mishap {
        let side = match dice.roll(1 + self.receivers.len() as u64) {
            0 => Side::Sender,
            n => Side::Receiver(n as usize - 1),
        };
        let longest = match self.is_mild {
            true => 400,
            // Longer than anybody waits, at times.
            false => pick(dice, &[100, 1000, 5000, 30_000]),
        };
        let time = millis(1 + dice.roll(longest));
        match dice.roll(8) {
            0 | 1 => Mishap::Cut(dice.roll(u64::MAX)),
            2 => Mishap::Refuse(
                dice.roll(self.receivers.len() as u64) as usize,
                1 + dice.roll(3) as usize,
            ),
            3 => Mishap::Freeze(side, time),
            // Which is tried again each millisecond.
            4 => Mishap::Jam(side, time.min(millis(3000))),
            5 => Mishap::Dark(dice.roll(u64::MAX), time),
            6 => Mishap::Late(side, time),
            _ => {
                let each = match !self.is_mild && dice.one_in(6) {
                    // It hangs.
                    true => Duration::from_secs(86_400),
                    false => time / 4,
                };
                Mishap::Slow(side, each, time)
            }
        }
    }

    /// Over datagrams, every second time, what is on its way in one direction is lost. By dice of
    /// its own: what else a seed stands for stays.
    fn lose_some(&mut self) {
        let mut dice = dice(!self.seed);
        if self.net.form == Form::Rdm && dice.one_in(2) {
            let at = Duration::from_micros(dice.roll(100_000));
            let end = pick(&mut dice, &[End::Dialing, End::Accepting]);
            let lose = Mishap::Lose(dice.roll(u64::MAX), end);
            self.mishaps.push((at, lose));
        }
    }

    /// Where it may end badly, messages are never said.
    fn swallow_some(&mut self, dice: &mut Dice) {
        if self.is_mild {
            return;
        }
        let swallow = |dice: &mut Dice, kinds: &[Kind]| {
            let kind = pick(dice, kinds);
            let times = pick(dice, &[1, 2, 8, u32::MAX]);
            let left = Arc::new(AtomicU32::new(times));
            dice.one_in(6).then_some(Swallow { kind, left })
        };
        self.sender.swallow = swallow(dice, &[Kind::FINISH, Kind::MANIFEST, Kind::PLACED]);
        for receiver in &mut self.receivers {
            let kinds = [
                Kind::ACCEPT,
                Kind::CREDIT,
                Kind::FREED,
                Kind::WINDOW,
                Kind::COMPLETE,
                Kind::WRITTEN,
                Kind::MISSING,
            ];
            receiver.swallow = swallow(dice, &kinds);
        }
    }

    /// Whether a transfer may end with `Stalled`: something of this keeps both sides waiting though
    /// they are there.
    pub(in crate::stream) fn may_stall(&self) -> bool {
        let swallows =
            self.sender.swallow.is_some() || self.receivers.iter().any(|it| it.swallow.is_some());
        let limit = self.times.stalled;
        let holds = self.mishaps.iter().any(|(_, mishap)| match mishap {
            Mishap::Freeze(_, time) | Mishap::Jam(_, time) | Mishap::Dark(_, time) => {
                *time * 2 > limit
            }
            Mishap::Late(_, time) => *time * 2 > limit,
            Mishap::Slow(_, each, _) => *each * 2 > limit,
            Mishap::Lose(..) => true,
            // Nobody hears of it there before the connection was silent for so long.
            Mishap::Cut(_) => self.net.form == Form::Rdm && self.times.lost * 2 > limit,
            Mishap::Refuse(..) => false,
        });
        let lost = self.sender.faults.is_some();
        swallows || holds || lost
    }

    /// When every transfer has ended, at the latest: when all that goes wrong is over, the attempts
    /// of each block that came, one by one, have had their times.
    pub(in crate::stream) fn limit(&self) -> Duration {
        let over = self.mishaps.iter().map(|(at, mishap)| match mishap {
            Mishap::Freeze(_, time) | Mishap::Jam(_, time) | Mishap::Dark(_, time) => *at + *time,
            Mishap::Late(_, time) | Mishap::Slow(_, _, time) => *at + *time,
            Mishap::Cut(_) | Mishap::Lose(..) | Mishap::Refuse(..) => *at,
        });
        let last_wish = self.wishes.iter().map(|(at, _)| *at).max();
        let over = over.max().max(last_wish).unwrap_or_default();
        if self.is_mild {
            // Ten retries of dials, and what is worked.
            return over + Duration::from_secs(60);
        }
        let Times {
            connect,
            lost,
            stalled,
            ..
        } = self.times;
        let attempt = 10 * stalled + 2 * connect + lost + Duration::from_secs(16);
        let attempts = |errand: &Errand| {
            let blocks: u64 = errand.sizes.iter().map(|size| 1 + size / 4096).sum();
            2 + errand.reconnects + blocks as u32
        };
        let attempts: u32 = self.errands.iter().map(attempts).sum();
        over + attempts * attempt
    }
}

impl Times {
    fn new(dice: &mut Dice, is_mild: bool) -> Self {
        match is_mild {
            true => Self {
                connect: millis(2000 + dice.roll(3000)),
                lost: millis(3000 + dice.roll(7000)),
                stalled: millis(8000 + dice.roll(52_000)),
                paused: Duration::from_secs(3600),
            },
            false => Self {
                connect: millis(200 + dice.roll(3000)),
                lost: millis(300 + dice.roll(5000)),
                stalled: millis(400 + dice.roll(4000)),
                paused: millis(1000 + dice.roll(20_000)),
            },
        }
    }
}

impl SenderPlan {
    fn new(dice: &mut Dice, is_mild: bool) -> Self {
        let faults = (!is_mild && dice.one_in(4)).then(|| Faults {
            drop: 10 + dice.roll(20),
            double: 10 + dice.roll(20),
            damage: 10 + dice.roll(20),
            swap: 4 + dice.roll(20),
            cut: 0,
        });
        let seed = dice.roll(u64::MAX) | 1;
        Self {
            block_bytes: pick(dice, &[4096, 4096, 8192, 10_000]),
            buffers: 2 + dice.roll(15) as u32,
            readers: 1 + dice.roll(3) as u32,
            depth: 1 + dice.roll(8) as u32,
            faults: faults.map(|faults| FaultConfig {
                faults,
                dice: Arc::new(std::sync::Mutex::new(Dice(seed))),
                // The kinds of the headers of blocks, packs and zeros, as docs/wire.md has them.
                concerns: |header| [5, 11, 12].contains(&header[4]),
            }),
            swallow: None,
        }
    }
}

impl ReceiverPlan {
    fn new(dice: &mut Dice) -> Self {
        Self {
            block_bytes: pick(dice, &[8192, 8192, 16_384]),
            buffers: 2 + dice.roll(10) as u32,
            window: 1 + dice.roll(10) as u32,
            // In the RDM form they do not come back.
            windows: if dice.one_in(4) { 0 } else { 512 },
            writers: 1 + dice.roll(3) as u32,
            swallow: None,
        }
    }
}

impl Errand {
    fn new(dice: &mut Dice, all: &[ReceiverPlan], times: &Times, is_mild: bool) -> Self {
        let receivers = all.len();
        // Small ones go several in a message.
        let are_small = dice.one_in(4);
        let files = 1 + dice.roll(if are_small { 60 } else { 4 });
        let size = |dice: &mut Dice| match dice.roll(6) {
            0 => 0,
            _ if are_small => 1 + dice.roll(700),
            1 => 1 + dice.roll(100),
            2 => pick(dice, &[4095, 4096, 4097, 8192]),
            _ => dice.roll(30_000),
        };
        let sizes = (0..files).map(|_| size(dice)).collect();
        let first = dice.roll(receivers as u64) as usize;
        let several = if dice.one_in(2) { receivers } else { 1 };
        let receivers: Vec<_> = (0..several).map(|n| (first + n) % receivers).collect();
        let transport = match receivers.iter().all(|to| all[*to].windows > 0) {
            true => pick(dice, &[Transport::Auto, Transport::Write]),
            false => Transport::Message,
        };
        let slow = [SlowPeer::default(), SlowPeer::CatchUp];
        let options = SendOptions::default()
            .transport(transport)
            .slow(pick(dice, &slow))
            // Without it, nobody finds what was damaged.
            .crc32c(!is_mild || !dice.one_in(8))
            .blake3(dice.one_in(6))
            .rails(
                1 + if dice.one_in(3) {
                    dice.roll(3) as u16
                } else {
                    0
                },
            )
            .priority(dice.roll(3) as u8)
            .rate(dice.one_in(8).then_some(200_000))
            .stalled_after(times.stalled);
        let (reconnects, deadline) = match is_mild {
            true => (20, None),
            false => (
                dice.roll(4) as u32,
                dice.one_in(4).then(|| millis(1 + dice.roll(20_000))),
            ),
        };
        Self {
            sizes,
            receivers,
            options: options.reconnects(reconnects).deadline(deadline),
            reconnects,
        }
    }
}

/// A provider of that kind, as strict as some are.
fn net(dice: &mut Dice, form: Form) -> NetConfig {
    use crate::in_flight::ContextKind;
    let default = NetConfig::default();
    let virtual_addresses = dice.one_in(2);
    NetConfig {
        form,
        contexts: pick(dice, &[ContextKind::Opaque, ContextKind::Cells]),
        short_cq_data: form == Form::Rdm && dice.one_in(3),
        inject_pays: dice.one_in(2),
        uses_more: dice.one_in(3),
        rma: default.rma.map(|rma| crate::endpoint::link::RmaLimits {
            virtual_addresses,
            ordered: form == Form::Msg,
            ..rma
        }),
        ..default
    }
}

/// When transfers begin, and what else is asked of them.
fn wishes(dice: &mut Dice, errands: usize, is_mild: bool) -> Vec<(Duration, Wish)> {
    let mut all = Vec::new();
    for errand in 0..errands {
        let begin = Duration::from_micros(dice.roll(200_000));
        all.push((begin, Wish::Begin(errand)));
        if dice.one_in(6) {
            let pause = begin + Duration::from_micros(dice.roll(100_000));
            let resume = pause + millis(dice.roll(if is_mild { 5000 } else { 30_000 }));
            all.push((pause, Wish::Pause(errand)));
            all.push((resume, Wish::Resume(errand)));
        }
        if !is_mild && dice.one_in(8) {
            let cancel = begin + Duration::from_micros(dice.roll(400_000));
            all.push((cancel, Wish::Cancel(errand)));
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}
