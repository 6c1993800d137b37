//! The process that sends, or reads or writes alone. An order is `WAY ADDRESS SYNC PATH`, of a
//! stage with the rate of the others in place of SYNC; its answer is `sent SECONDS CPU` and four
//! shares of the time: what ours waited for.

use std::path::Path;
use std::time::Instant;

use clap::ValueEnum;
use fabricast::stream::{FileSource, SendOptions, Transport};

use crate::case::{Case, Waits, Way};
use crate::error::{Failure, fail};
use crate::host::cpu_seconds;
use crate::peer::{self, answer, words};
use crate::throttled::Throttled;
use crate::{alone, bare, ours, socket, stages};

/// What a run took, at the sender: from before it connects until it knows that the receiver has had
/// everything.
pub(crate) struct Sent {
    pub(crate) seconds: f64,
    cpu: f64,
    /// What ours waited for, as shares of the time.
    pub(crate) waits: Waits,
    /// Which way its bytes took, as ours reports it.
    pub(crate) path: String,
}

/// Measures a run that is all set up.
pub(crate) fn timed<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<(Sent, T), Failure> {
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let result = run()?;
    let sent = Sent {
        seconds: began.elapsed().as_secs_f64(),
        cpu: cpu_seconds() - cpu,
        waits: Waits::default(),
        path: String::new(),
    };
    Ok((sent, result))
}

pub(crate) fn serve(case: &Case) -> Result<(), Failure> {
    let (mut sender, mut near) = (None, None);
    peer::serve(|order| {
        let [way, to, sync, path] = words(order)?;
        let path = Path::new(path);
        let file = || Ok(FileSource::file(path)?);
        let throttled = || Ok(Throttled::new(file()?));
        let sent = match Way::from_str(way, false).map_err(Failure::new)? {
            way if way.is_ours() => {
                let sender = match &sender {
                    Some(sender) => sender,
                    None => sender.insert(ours::sender(case, false)?),
                };
                let options = SendOptions::default()
                    .crc32c(way.has_crc())
                    .transport(match way.is_by_write() {
                        true => Transport::Write,
                        false => Transport::Message,
                    })
                    .sync(sync == "sync");
                match way {
                    Way::Throttled => ours::send(sender, to, options, throttled),
                    _ => ours::send(sender, to, options, file),
                }
            }
            way @ (Way::Gpu | Way::GpuCrc | Way::ReadStage | Way::WireStage | Way::WriteStage) => {
                let near = match &mut near {
                    Some(near) => near,
                    None => near.insert(stages::Near::open(case)?),
                };
                match way {
                    Way::Gpu | Way::GpuCrc => near.send(to, way == Way::GpuCrc, path),
                    stage => near.stage(stage, to, sync.parse()?, path),
                }
            }
            Way::SlowestStage => fail("it is not measured by itself"),
            Way::Bare => bare::send(case, to.parse()?, path),
            way @ (Way::Socket | Way::Sendfile | Way::Splice) => {
                socket::send(case, way, to.parse()?, path)
            }
            Way::ReadAlone => alone::read(case, file),
            Way::ThrottledAlone => alone::read(case, throttled),
            // What it writes beside is named where others have an address.
            Way::CopyAlone => alone::copy(case, path, Path::new(to)),
            _ => alone::write(case, path),
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
