//! The client: runs one side of a case against the server.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use crate::case::{Arrived, Case, Operation, Sent, Side};
use crate::control::Control;
use crate::error::{Failure, fail};
use crate::publish::Publisher;
use crate::server::{Through, Wish};
use crate::stats::quantile;
use crate::times::Times;
use crate::{bare, coalesced, http, latency, ours, stream};

/// What one run gave. What was not measured is NaN.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Payload, 10^9 bytes a second.
    pub gb_per_s: f64,
    /// Messages a second, both ways counted.
    pub msgs_per_s: f64,
    /// Messages between the marks, both ways counted.
    pub messages: f64,
    /// The median time of a message, in microseconds.
    pub p50_us: f64,
    /// The time that 99 % of messages don't exceed.
    pub p99_us: f64,
    /// The time that 99.9 % of messages don't exceed.
    pub p999_us: f64,
    /// The mean time of a message.
    pub mean_us: f64,
    /// Processor seconds of both processes for 10^9 bytes.
    pub cpu_s_per_gb: f64,
    /// The times of all messages.
    pub times: Times,
}

/// How long a peer that failed may take to say why.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs it once.
///
/// # Errors
/// When either half fails; [`Kind::Unreachable`] when the server is gone.
///
/// [`Kind::Unreachable`]: crate::error::Kind::Unreachable
pub fn run(
    control: &mut Control,
    side: Side,
    case: &Case,
    through: Option<Through>,
) -> Result<Figures, Failure> {
    let mut wish = Wish {
        side,
        case: case.clone(),
        back: None,
    };
    run_side(control, &mut wish, through).map_err(|failure| {
        // What the other end knows of it says more than what this one saw.
        let failure = match control.last_words(LAST_WORDS) {
            Some(words) if !failure.to_string().contains(&words.to_string()) => {
                Failure::new(format!("{words} ({failure})")).is(words.kind())
            }
            _ => failure,
        };
        let kind = failure.kind();
        Failure::new(format!(
            "{} {}: {failure}",
            side.name(),
            case.operation.name()
        ))
        .is(kind)
    })
}

fn run_side(
    control: &mut Control,
    wish: &mut Wish,
    through: Option<Through>,
) -> Result<Figures, Failure> {
    let case = wish.case.clone();
    let patience = case.limit() + Duration::from_secs(10);
    let by_itself = match (wish.side, case.operation) {
        (Side::C, _) => match through {
            Some(through) => Some((through.client)(control, wish, patience)?),
            None => return fail("this end has no C interface"),
        },
        (_, Operation::Stream) => Some(stream::send(&case, wish, control)?),
        (_, Operation::Latency) => Some(latency::send(&case, wish, control)?),
        _ => None,
    };
    if let Some((sent, arrived)) = by_itself {
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

/// What a server says that it received.
///
/// # Errors
/// When it says something else.
pub fn arrived(line: &str) -> Result<Arrived, Failure> {
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
        let mut times = sent.times.unwrap_or_default();
        for &ns in &sent.half_ns {
            times.add(u64::from(ns) * (us * 1e3) as u64);
        }
        let mut half_ns = sent.half_ns;
        if half_ns.is_empty() && !times.is_empty() {
            return Self {
                gb_per_s: gigabytes / arrived.elapsed_s,
                msgs_per_s: messages / arrived.elapsed_s,
                messages,
                p50_us: times.at(50.0),
                p99_us: times.at(99.0),
                p999_us: times.at(99.9),
                mean_us: times.mean(),
                cpu_s_per_gb: (arrived.cpu_s + sent.cpu_s) / gigabytes,
                times,
            };
        }
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
            times,
        }
    }

    /// All of them as one line, for another process.
    pub fn line(&self) -> String {
        format!(
            "figures {} {} {} {} {} {} {} {} {}",
            self.gb_per_s,
            self.msgs_per_s,
            self.messages,
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.mean_us,
            self.cpu_s_per_gb,
            self.times.text(),
        )
    }

    /// Those of such a line, without its first word.
    ///
    /// # Errors
    /// When it is none.
    pub fn of_line(line: &str) -> Result<Self, Failure> {
        let words: Vec<_> = line.split(' ').collect();
        let [numbers @ .., times] = &words[..] else {
            return fail("figures without a figure");
        };
        let numbers: Result<Vec<f64>, _> = numbers.iter().map(|word| word.parse()).collect();
        let [
            gb_per_s,
            msgs_per_s,
            messages,
            p50_us,
            p99_us,
            p999_us,
            mean_us,
            cpu_s_per_gb,
        ] = numbers?[..]
        else {
            return fail("figures of another number");
        };
        Ok(Self {
            gb_per_s,
            msgs_per_s,
            messages,
            p50_us,
            p99_us,
            p999_us,
            mean_us,
            cpu_s_per_gb,
            times: Times::of_text(times)?,
        })
    }

    /// What several clients that ran at once have done together.
    pub fn sum(all: &[Self]) -> Self {
        let add = |of: fn(&Self) -> f64| all.iter().map(of).sum::<f64>();
        let mut times = Times::default();
        for one in all {
            times.add_all(&one.times);
        }
        let (gb_per_s, messages) = (add(|it| it.gb_per_s), add(|it| it.messages));
        let cpu = add(|it| it.cpu_s_per_gb * it.messages);
        let nan_if_none = |value: f64| if times.is_empty() { f64::NAN } else { value };
        Self {
            gb_per_s,
            msgs_per_s: add(|it| it.msgs_per_s),
            messages,
            p50_us: nan_if_none(times.at(50.0)),
            p99_us: nan_if_none(times.at(99.0)),
            p999_us: nan_if_none(times.at(99.9)),
            mean_us: nan_if_none(times.mean()),
            cpu_s_per_gb: cpu / messages,
            times,
        }
    }
}
