//! The client: runs one side of a case against the server.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use crate::case::{Arrived, Case, Operation, Sent, Side};
use crate::control::Control;
use crate::error::{Failure, fail};
use crate::publish::Publisher;
use crate::server::Wish;
use crate::stats::quantile;
use crate::{bare, c, coalesced, http, ours};

/// What one run gave. What was not measured is NaN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) gb_per_s: f64,
    pub(crate) msgs_per_s: f64,
    /// Messages between the marks, both ways counted.
    pub(crate) messages: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) cpu_s_per_gb: f64,
}

/// Runs it once.
pub(crate) fn run(control: &mut Control, side: Side, case: &Case) -> Result<Figures, Failure> {
    let mut wish = Wish {
        side,
        case: case.clone(),
        back: None,
    };
    run_side(control, &mut wish).map_err(|failure| {
        Failure(format!(
            "{} {}: {failure}",
            side.name(),
            case.operation.name()
        ))
    })
}

fn run_side(control: &mut Control, wish: &mut Wish) -> Result<Figures, Failure> {
    let case = wish.case.clone();
    let patience = case.limit() + Duration::from_secs(10);
    if wish.side == Side::C {
        let (sent, arrived) = run_c(control, wish, patience)?;
        return Ok(Figures::new(&case, &arrived, sent));
    }
    let listener = match (wish.side, case.operation) {
        (Side::Ours, Operation::Pingpong) => Some(ours::PingPong::listen(&case)?),
        _ => None,
    };
    if case.operation.is_object() {
        let (sent, arrived) = run_object(control, wish, patience)?;
        return Ok(Figures::new(&case, &arrived, sent));
    }
    let publisher = match (wish.side, case.operation) {
        (Side::Ours, Operation::Publish) => Some(Publisher::listen(&case)?),
        _ => None,
    };
    wish.back = listener.as_ref().map(|listener| listener.addr);
    wish.back = wish
        .back
        .or_else(|| publisher.as_ref().map(|publisher| publisher.addr));
    control.say(&wish.line())?;
    let to = control.expect("ready", patience)?;
    if matches!(case.operation, Operation::RmaWrite | Operation::RmaRead) {
        let (sent, arrived) = run_one_sided(control, wish.side, &case, to.parse()?, patience)?;
        return Ok(Figures::new(&case, &arrived, sent));
    }
    let arrived = || arrived(&control.expect("arrived", patience)?);
    if matches!(case.operation, Operation::Rdm | Operation::Publish) {
        let (sent, arrived) = match (publisher, wish.side, case.operation) {
            (Some(publisher), ..) => publisher.run(&case, arrived),
            (None, Side::Bare, Operation::Publish) => bare::publish(&case, &to, arrived),
            (None, Side::Bare, _) => bare::rdm::send(&case, &to, arrived),
            (None, ..) => ours::send(&case, to.parse()?, arrived),
        }?;
        return Ok(Figures::new(&case, &arrived, sent));
    }
    let to: SocketAddr = to.parse()?;
    let (sent, arrived) = match (listener, wish.side, case.operation) {
        (Some(listener), ..) => listener.run(&case, to, arrived),
        (None, Side::Ours, Operation::Coalesced) => coalesced::send(&case, to, arrived),
        (None, Side::Bare, Operation::Coalesced) => coalesced::bare_send(&case, to, arrived),
        (None, Side::Ours, _) => ours::send(&case, to.into(), arrived),
        (None, Side::Bare, Operation::Send) => bare::send(&case, to, arrived),
        (None, ..) => bare::ping_pong(&case, to, arrived),
    }?;
    Ok(Figures::new(&case, &arrived, sent))
}

/// The client's half of what is measured through the C interface.
fn run_c(
    control: &mut Control,
    wish: &mut Wish,
    patience: Duration,
) -> Result<(Sent, Arrived), Failure> {
    let case = wish.case.clone();
    let listener = match case.operation {
        Operation::Pingpong => Some(c::Server::listen(&case)?),
        _ => None,
    };
    wish.back = match &listener {
        Some(listener) => Some(listener.addr.parse()?),
        None => None,
    };
    control.say(&wish.line())?;
    let to = control.expect("ready", patience)?;
    let control = RefCell::new(control);
    let window = || control.borrow_mut().expect("window", patience);
    let arrived = || arrived(&control.borrow_mut().expect("arrived", patience)?);
    match (listener, case.operation) {
        (Some(listener), _) => listener.ping(&case, &to, arrived),
        (None, Operation::Send | Operation::Rdm) => c::send(&case, &to, arrived),
        (None, Operation::Coalesced) => c::coalesced::send(&case, &to, arrived),
        (None, Operation::RmaWrite) => c::rma::run(&case, &to, window, arrived),
        (None, operation) => fail(format!("{} is not run through C", operation.name())),
    }
}

/// The client's half of what is measured of objects.
fn run_object(
    control: &mut Control,
    wish: &Wish,
    patience: Duration,
) -> Result<(Sent, Arrived), Failure> {
    let (side, case) = (wish.side, &wish.case);
    control.say(&wish.line())?;
    let to = control.expect("ready", patience)?;
    match (side, case.operation) {
        (Side::Ours, operation) if operation.is_by_token() => ours::object::run(case, &to, control),
        (Side::Ours, _) => ours::object_request::run(case, &to, control),
        (Side::Bare, Operation::ObjectHttp) => http::run(case, &to, control),
        (Side::Bare, Operation::ObjectRequest) => bare::object_request::run(case, &to, control),
        (_, _) => bare::object::run(case, &to, control),
    }
}

/// The server says where its window is once the connection stands.
fn run_one_sided(
    control: &mut Control,
    side: Side,
    case: &Case,
    to: SocketAddr,
    patience: Duration,
) -> Result<(Sent, Arrived), Failure> {
    let control = RefCell::new(control);
    let window = || control.borrow_mut().expect("window", patience);
    let arrived = || arrived(&control.borrow_mut().expect("arrived", patience)?);
    match side {
        Side::Bare => bare::rma::run(case, to, window, arrived),
        _ => ours::rma::run(case, to, window, arrived),
    }
}

pub(crate) fn arrived(line: &str) -> Result<Arrived, Failure> {
    let mut words = line.split(' ');
    let mut word = || words.next().ok_or_else(|| Failure::of("a short report"));
    Ok(Arrived {
        messages: word()?.parse()?,
        elapsed_s: word()?.parse()?,
        cpu_s: word()?.parse()?,
    })
}

impl Figures {
    fn new(case: &Case, arrived: &Arrived, sent: Sent) -> Self {
        let ways = match case.operation {
            Operation::Pingpong => 2.0,
            _ => 1.0,
        };
        let messages = arrived.messages as f64 * ways;
        // What is told of a ping-pong is half a round trip; of a request, all of it.
        let us = match case.operation.is_object() {
            true => 2e-3,
            false => 1e-3,
        };
        let gigabytes = messages * case.size as f64 * 1e-9;
        let mut half_ns = sent.half_ns;
        half_ns.sort_unstable();
        let sum: f64 = half_ns.iter().map(|&ns| f64::from(ns)).sum();
        Self {
            gb_per_s: gigabytes / arrived.elapsed_s,
            msgs_per_s: messages / arrived.elapsed_s,
            messages,
            p50_us: quantile(&half_ns, 0.5) * us,
            p99_us: quantile(&half_ns, 0.99) * us,
            p999_us: quantile(&half_ns, 0.999) * us,
            mean_us: sum / half_ns.len() as f64 * us,
            cpu_s_per_gb: (arrived.cpu_s + sent.cpu_s) / gigabytes,
        }
    }
}
