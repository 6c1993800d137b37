//! `Peer`: a child that takes orders, a line each, and answers with lines. `Orders`: the child's
//! end of that.

use std::io::{BufRead, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use crate::case::Case;
use crate::child::Guard;
use crate::error::{Failure, fail};

/// How long a child may take to end.
const END: Duration = Duration::from_secs(15);

/// This program in another role. It ends with this value, and with this process.
pub(crate) struct Peer {
    guard: Guard,
    orders: ChildStdin,
    answers: Box<dyn BufRead>,
    role: &'static str,
}

impl Peer {
    pub(crate) fn start(role: &'static str, case: &Case) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(role).args(case.arguments());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guard = Guard::start(&mut command, None)?;
        let orders = guard.orders()?;
        let answers = Box::new(guard.lines()?);
        Ok(Self {
            guard,
            orders,
            answers,
            role,
        })
    }

    pub(crate) fn order(&mut self, line: &str) -> Result<(), Failure> {
        Ok(self.orders.write_all(format!("{line}\n").as_bytes())?)
    }

    /// The rest of the next line, which must begin with this word. A child waits for nothing
    /// without a deadline, so neither does this for ever.
    pub(crate) fn expect(&mut self, word: &str) -> Result<String, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim_end().split_once(' ') {
            Some((first, rest)) if first == word => Ok(rest.to_owned()),
            Some(("failed", why)) => fail(format!("{}: {why}", self.role)),
            _ => fail(format!("{}: no {word}", self.role)),
        }
    }

    /// Lets it end.
    pub(crate) fn end(self) -> Result<(), Failure> {
        let Self {
            mut guard, orders, ..
        } = self;
        drop(orders);
        guard.wait(END)?;
        Ok(())
    }
}

/// Answers the parent.
pub(crate) fn answer(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    Ok(out.flush()?)
}

/// Carries out orders until there are no more; one that fails is answered with the reason.
pub(crate) fn serve(mut carry_out: impl FnMut(&str) -> Result<(), Failure>) -> Result<(), Failure> {
    for order in std::io::stdin().lock().lines() {
        if let Err(failure) = carry_out(&order?) {
            answer(&format!("failed {failure}"))?;
        }
    }
    Ok(())
}

/// The words of an order; the last may have spaces.
pub(crate) fn words<const N: usize>(order: &str) -> Result<[&str; N], Failure> {
    let words: Vec<_> = order.splitn(N, ' ').collect();
    words
        .try_into()
        .map_err(|_| Failure::new(format!("no such order: {order}")))
}
