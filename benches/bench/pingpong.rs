//! `fi_pingpong` of libfabric's own package beside our bare loop: is the loop that we compare with
//! any good?

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use fabricast_bench::case::{Case, HEADER, Side};
use fabricast_bench::child::Guard;
use fabricast_bench::client;
use fabricast_bench::control::Control;
use fabricast_bench::error::{Failure, fail};
use fabricast_bench::stats::{median, median_interval};

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs pairs of both at one message size, header included, and prints the ratio of their rates:
/// above 1, ours is faster.
pub(crate) fn compare(
    control: &mut Control,
    case: &Case,
    pairs: usize,
    pin: bool,
) -> Result<(), Failure> {
    let Some(payload) = case.size.checked_sub(HEADER).filter(|&payload| payload > 0) else {
        return fail(format!("a size must be above the header's {HEADER} bytes"));
    };
    let bare = Case {
        size: payload,
        // As fi_pingpong's.
        bare_connections: 1,
        ..case.clone()
    };
    let (mut theirs, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    // The first run says how many round trips fill the time.
    let mut round_trips = 1000;
    for pair in 0..=pairs {
        let their_us = fi_pingpong(case, round_trips, pin)?;
        round_trips = ((case.seconds * 1e6 / (2.0 * their_us)) as usize).clamp(100, 10_000_000);
        if pair == 0 {
            continue;
        }
        let our_us = client::run(control, Side::Bare, &bare, None)?.mean_us;
        theirs.push(their_us);
        ours.push(our_us);
        ratios.push(their_us / our_us);
    }
    let (low, high) = median_interval(&ratios);
    println!(
        "{:>9} bytes: fi_pingpong {:.2} us, bare loop {:.2} us (means of half a round trip), ratio \
         {:.3} [{low:.3}, {high:.3}]",
        case.size,
        median(&theirs),
        median(&ours),
        median(&ratios),
    );
    Ok(())
}

/// Half a round trip, in microseconds.
fn fi_pingpong(case: &Case, round_trips: usize, pin: bool) -> Result<f64, Failure> {
    // Free a moment ago; another program could take it in between, and then this run fails.
    let port = TcpListener::bind((case.node.as_str(), 0))?
        .local_addr()?
        .port();
    let common = |command: &mut Command| {
        command
            .args(["-p", &case.provider, "-e", "msg"])
            .args(["-S", &case.size.to_string(), "-I", &round_trips.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
    };
    let mut server = Command::new("fi_pingpong");
    common(server.args(["-B", &port.to_string()]));
    let mut server = Guard::start(&mut server, pin.then_some(1))
        .map_err(|error| Failure::new(format!("fi_pingpong (package libfabric-bin): {error}")))?;
    std::thread::sleep(Duration::from_millis(100));
    let mut client = Command::new("fi_pingpong");
    common(client.args(["-P", &port.to_string()]));
    let mut client = Guard::start(client.arg(&case.node), pin.then_some(0))?;
    let status = client.wait(PATIENCE)?;
    let mut text = String::new();
    client.lines()?.read_to_string(&mut text)?;
    server.wait(PATIENCE)?;
    if !status.success() {
        return fail(format!("fi_pingpong ended with {status}"));
    }
    microseconds(&text).ok_or_else(|| Failure::new(format!("fi_pingpong printed `{text}`")))
}

/// The column `usec/xfer` of the only row.
fn microseconds(text: &str) -> Option<f64> {
    let mut lines = text.lines();
    let column =
        lines.find_map(|line| line.split_whitespace().position(|word| word == "usec/xfer"))?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}
