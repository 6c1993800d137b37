//! Messages over zenoh, to be measured beside the library's: `scripts/peers.sh` builds it as a
//! crate of its own, as nothing of it belongs into the workspace, and `benches/peers/peers.py` runs
//! it.
//!
//! ```text
//! zenoh_messages pull ADDRESS                 listens, counts between two marks
//! zenoh_messages push ADDRESS SIZE SECONDS    connects, sends
//! ```
//!
//! Two peers by tcp without discovery; nothing is dropped (`CongestionControl::Block`), and the
//! payload is shared, not copied, by each message.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use zenoh::bytes::ZBytes;
use zenoh::qos::CongestionControl;
use zenoh::{Config, Session, Wait};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const KEY: &str = "bench";
/// What a message of one byte says.
const BEGIN: u8 = 1;
const END: u8 = 2;

fn open(listen: &str, connect: &str) -> Outcome<Session> {
    let list = |address: &str| match address {
        "" => "[]".to_owned(),
        address => format!("[\"tcp/{address}\"]"),
    };
    let mut config = Config::default();
    config.insert_json5("mode", "\"peer\"")?;
    config.insert_json5("scouting/multicast/enabled", "false")?;
    config.insert_json5("listen/endpoints", &list(listen))?;
    config.insert_json5("connect/endpoints", &list(connect))?;
    zenoh::open(config).wait()
}

fn pull(address: &str) -> Outcome<()> {
    let session = open(address, "")?;
    let (done, is_done) = channel();
    let begun: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
    let _subscriber = session
        .declare_subscriber(KEY)
        .callback(move |sample| {
            let mut begun = begun.lock().expect("nobody panics");
            let payload = sample.payload();
            if payload.len() > 1 {
                if let Some((_, messages)) = begun.as_mut() {
                    *messages += 1;
                }
                return;
            }
            match (payload.to_bytes().first(), *begun) {
                (Some(&BEGIN), _) => *begun = Some((Instant::now(), 0)),
                (Some(&END), Some((since, messages))) => {
                    let _ = done.send((messages, since.elapsed().as_secs_f64()));
                }
                _ => {}
            }
        })
        .wait()?;
    println!("listening on {address}");
    let (messages, seconds) = is_done.recv_timeout(Duration::from_secs(60))?;
    println!("{{\"messages\":{messages},\"seconds\":{seconds:.6}}}");
    Ok(())
}

fn push(address: &str, size: usize, seconds: f64) -> Outcome<()> {
    let session = open("", address)?;
    let publisher = session
        .declare_publisher(KEY)
        .congestion_control(CongestionControl::Block)
        .wait()?;
    // The other side's subscription comes by itself.
    std::thread::sleep(Duration::from_millis(500));
    let payload = ZBytes::from(vec![0_u8; size]);
    for (mark, share) in [(BEGIN, 0.2), (END, 1.0)] {
        let (begun, time) = (Instant::now(), Duration::from_secs_f64(seconds * share));
        while begun.elapsed() < time {
            for _ in 0..16 {
                publisher.put(payload.clone()).wait()?;
            }
        }
        publisher.put(vec![mark]).wait()?;
    }
    // Sent, and taken in by the other side, before the session is gone.
    std::thread::sleep(Duration::from_millis(500));
    println!("{{}}");
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pull", address] => pull(address),
        ["push", address, size, seconds] => push(address, size.parse()?, seconds.parse()?),
        _ => Err("zenoh_messages pull ADDRESS | push ADDRESS SIZE SECONDS".into()),
    }
}
