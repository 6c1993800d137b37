//! The process that sends, or reads or writes alone. An order is `WAY ADDRESS SYNC PATH`, its answer `sent SECONDS CPU` and four shares of
//! the time: what ours waited for.

use std::path::Path;
use std::time::Instant;

use clap::ValueEnum;

use crate::case::{Case, Waits, Way};
use crate::error::{Failure, fail};
use crate::host::cpu_seconds;
use crate::peer::{self, answer, words};
use crate::{alone, bare, ours, socket};

/// What a run took, at the sender: from before it connects until it knows that the receiver has had everything.
pub(crate) struct Sent {
    seconds: f64,
    cpu: f64,
    /// What ours waited for, as shares of the time.
    pub(crate) waits: Waits,
}

/// Measures a run that is all set up.
pub(crate) fn timed<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<(Sent, T), Failure> {
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let result = run()?;
    let sent = Sent {
        seconds: began.elapsed().as_secs_f64(),
        cpu: cpu_seconds() - cpu,
        waits: Waits::default(),
    };
    Ok((sent, result))
}

pub(crate) fn serve(case: &Case) -> Result<(), Failure> {
    let mut sender = None;
    peer::serve(|order| {
        let [way, to, sync, path] = words(order)?;
        let path = Path::new(path);
        let sent = match Way::from_str(way, false).map_err(Failure)? {
            way @ (Way::Ours | Way::OursCrc) => {
                let sender = match &sender {
                    Some(sender) => sender,
                    None => sender.insert(ours::sender(case)?),
                };
                ours::send(sender, to, (way == Way::OursCrc, sync == "sync"), path)
            }
            Way::Bare => bare::send(case, to.parse()?, path),
            way @ (Way::Socket | Way::Sendfile | Way::Splice) => {
                socket::send(case, way, to.parse()?, path)
            }
            Way::ReadAlone => alone::read(case, path),
            Way::WriteAlone => alone::write(case, path),
        }?;
        if sent.seconds <= 0.0 {
            return fail("it took no time");
        }
        let [disk, wire, credits, sink] = sent.waits.0;
        let (seconds, cpu) = (sent.seconds, sent.cpu);
        answer(&format!(
            "sent {seconds} {cpu} {disk} {wire} {credits} {sink}"
        ))
    })
}
