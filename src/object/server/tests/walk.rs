//! Random transfers, clients that stop and go on, and deadlines: each transfer has one outcome,
//! each buffer comes back, and what is said to be done is.

use super::*;
use std::collections::BTreeMap;

/// Places of a window; each has one transfer at a time.
const PLACES: usize = 8;
const PLACE: usize = 40_000;

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A transfer that is not over, or whose memory is not back.
struct Open {
    client: usize,
    place: usize,
    len: usize,
    told: bool,
}

struct Walk {
    rig: Rig,
    clients: Vec<WindowClient>,
    stalled: Vec<bool>,
    open: BTreeMap<u64, Open>,
    busy: Vec<[bool; PLACES]>,
    /// A write there was cut off: over tcp, its bytes may come whenever the client goes on.
    soiled: Vec<[bool; PLACES]>,
    next: u64,
    done: u64,
    failed: u64,
    late: u64,
}

impl Walk {
    fn begin(&mut self, dice: &mut Dice) {
        let (client, place) = (dice.below(3) as usize, dice.below(PLACES as u64) as usize);
        if self.busy[client][place] || self.rig.pool.free_count() == 0 {
            return;
        }
        let len = 1 + dice.below(PLACE as u64) as usize;
        let time = match dice.below(4) {
            0 => Duration::from_millis(10 + dice.below(30)),
            _ => SOON,
        };
        let (key, deadline) = (self.next, self.rig.now() + time);
        let (token, at) = (self.clients[client].token(), (place * PLACE) as u64);
        let channel = &mut self.rig.channel;
        let accepted = if key.is_multiple_of(2) {
            let mut buffer = self.rig.pool.try_acquire().expect("one is free");
            buffer[..len].copy_from_slice(&pattern(len, key as u8));
            let get = channel.handle_get(&token, at, buffer.freeze(len), key, deadline);
            get.map_err(|refused| refused.kind)
        } else {
            self.clients[client].set(place * PLACE, &pattern(len, key as u8));
            let buffer = self.rig.pool.try_acquire().expect("one is free");
            let into = crate::endpoint::Destination::buffer(buffer, len);
            let put = channel.handle_put(&token, at, into, key, deadline);
            put.map_err(|refused| refused.kind)
        };
        match accepted {
            Ok(()) => {
                self.busy[client][place] = true;
                let told = false;
                self.open.insert(
                    key,
                    Open {
                        client,
                        place,
                        len,
                        told,
                    },
                );
                self.next += 1;
            }
            Err(kind) => assert!(
                kind.is_would_block() || matches!(kind, TransferErrorKind::Budget { .. }),
                "{kind}"
            ),
        }
    }

    fn hear(&mut self, event: ChannelEvent) {
        let key = event.key();
        let open = self.open.get_mut(&key).expect("it is open");
        assert_eq!(
            open.told,
            !event.is_outcome(),
            "one outcome, then memory: {event:?}"
        );
        let (len, place) = (open.len, open.place);
        let soiled = &mut self.soiled[open.client][place];
        let is_back = match event {
            ChannelEvent::Written { .. } => {
                self.done += 1;
                let got = self.clients[open.client].part(place * PLACE..place * PLACE + len);
                assert!(got == pattern(len, key as u8), "key {key}");
                true
            }
            ChannelEvent::Read { into, .. } => {
                self.done += 1;
                let buffer = into.into_buffer().expect("a buffer");
                let good = buffer[..len] == pattern(len, key as u8);
                assert!(good || *soiled, "key {key}");
                true
            }
            ChannelEvent::WriteFailed { payload, error, .. } => {
                self.failed += 1;
                assert!(payload.is_some() || error.posted);
                *soiled |= error.posted;
                payload.is_some()
            }
            ChannelEvent::ReadFailed { into, error, .. } => {
                self.failed += 1;
                assert!(into.is_some() || error.posted);
                into.is_some()
            }
            ChannelEvent::WriteReturned { .. } | ChannelEvent::ReadReturned { .. } => true,
        };
        open.told = true;
        if is_back {
            self.busy[open.client][place] = false;
            self.open.remove(&key);
        } else {
            self.late += 1;
        }
    }

    fn turn(&mut self) {
        let mut events = std::mem::take(&mut self.rig.events);
        self.rig.channel.poll(&mut events).expect("it polls");
        self.rig.pass();
        for event in events.drain(..) {
            self.hear(event);
        }
        self.rig.events = events;
        for (client, stalled) in self.clients.iter_mut().zip(&self.stalled) {
            if !stalled {
                client.progress();
            }
        }
    }
}

fn walk(fabric: &Arc<Fabric>, seed: u64, steps: u32) {
    let depth = 1 + seed as u32 % 16;
    let retiring = 1 + seed as u32 % 3;
    let config = ObjectServerConfig::default()
        .depth(depth)
        .retiring(retiring);
    let rig = Rig::over(fabric, config);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (seed << 32) ^ seed);
    let clients = (0..3).map(|_| rig.client(PLACES * PLACE)).collect();
    let mut walk = Walk {
        rig,
        clients,
        stalled: vec![false; 3],
        open: BTreeMap::new(),
        busy: vec![[false; PLACES]; 3],
        soiled: vec![[false; PLACES]; 3],
        next: 0,
        done: 0,
        failed: 0,
        late: 0,
    };
    if seed.is_multiple_of(3) {
        walk.rig.channel.core.engine.rma.max_bytes = 1 + dice.below(10_000);
    }
    for _ in 0..steps {
        match dice.below(40) {
            0 => {
                let client = dice.below(3) as usize;
                walk.stalled[client] = !walk.stalled[client];
            }
            1 => {
                let time = Duration::from_micros(dice.below(3000));
                walk.rig.channel.wait(time).expect("it sleeps");
            }
            2..12 => walk.begin(&mut dice),
            _ => walk.turn(),
        }
        let stats = walk.rig.channel.stats();
        assert_eq!(stats.open + stats.done + stats.failed, stats.accepted);
        assert!(stats.endpoints <= u64::from(retiring) + 2, "{stats:?}");
    }
    let slow = dice.below(2) == 0;
    if !slow {
        walk.stalled = vec![false; 3];
    }
    let until = Instant::now()
        + if slow {
            Duration::from_millis(20)
        } else {
            SOON
        };
    while !walk.open.is_empty() && Instant::now() < until {
        walk.turn();
    }
    assert!(slow || walk.open.is_empty(), "{} are open", walk.open.len());
    finish(walk, seed);
}

/// The channel is closed: all that is open is told, and comes back.
fn finish(mut walk: Walk, seed: u64) {
    for event in walk.rig.close_within(Duration::ZERO) {
        walk.hear(event);
    }
    assert!(
        walk.open.is_empty(),
        "seed {seed}: {} are open",
        walk.open.len()
    );
    assert_eq!(walk.rig.pool.free_count(), 8, "seed {seed}");
    assert_eq!(walk.done + walk.failed, walk.next);
    println!(
        "{seed}: {} done, {} failed, {} late",
        walk.done, walk.failed, walk.late
    );
}

#[test]
fn whatever_happens_each_transfer_has_one_outcome() {
    let seeds = std::env::var("FABRICAST_OBJECT_WALKS").ok();
    let seeds = seeds.and_then(|text| text.parse().ok()).unwrap_or(6);
    for fabric in fabrics() {
        for seed in 0..seeds {
            walk(&fabric, seed, 2000);
        }
    }
}
