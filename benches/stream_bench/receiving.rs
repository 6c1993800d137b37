//! The process that receives. An order is `WAY SINK`, SINK a directory or `-`, of a stage with the
//! rate of the others in front of it; it answers `at ADDRESS` when it is ready, and
//! `done CPU SECONDS`, the seconds those of writing, where that is a stage.

use std::path::Path;

use clap::ValueEnum;
use fabricast::stream::{DirectorySink, DiscardSink};

use crate::case::{Case, Way};
use crate::error::{Failure, fail};
use crate::peer::{self, answer, words};
use crate::{bare, ours, socket, stages};

pub(crate) fn serve(case: &Case) -> Result<(), Failure> {
    // By message, and by write.
    let (mut discards, mut far) = ([None, None], None);
    peer::serve(|order| {
        let [way, sink] = words(order)?;
        let mut seconds = 0.0;
        let cpu = match Way::from_str(way, false).map_err(Failure::new)? {
            way if way.is_ours() && sink == "-" => {
                let kept = &mut discards[usize::from(way.is_by_write())];
                let windows = match way.is_by_write() {
                    true => case.receives,
                    false => 0,
                };
                let receiver = match kept {
                    Some(receiver) => receiver,
                    None => kept.insert(ours::receiver(case, DiscardSink, (false, windows))?),
                };
                ours::receive(receiver)
            }
            way if way.is_ours() => {
                let receiver = ours::receiver(case, DirectorySink::new(sink)?, (false, 0))?;
                let cpu = ours::receive(&receiver)?;
                receiver.close(ours::goodbye());
                empty(Path::new(sink))?;
                Ok(cpu)
            }
            way @ (Way::Gpu | Way::GpuCrc | Way::ReadStage | Way::WireStage | Way::WriteStage) => {
                let far = match &mut far {
                    Some(far) => far,
                    None => far.insert(stages::Far::open(case)?),
                };
                let (rate, sink) = sink.split_once(' ').unwrap_or(("", sink));
                let cpu = match way {
                    Way::Gpu | Way::GpuCrc => far.receive(Path::new(sink))?,
                    stage => {
                        let written = far.stage(stage, rate.parse()?, Path::new(sink))?;
                        seconds = written.seconds;
                        written.cpu
                    }
                };
                empty(Path::new(sink))?;
                Ok(cpu)
            }
            Way::Bare => bare::receive(case),
            Way::Socket | Way::Sendfile | Way::Splice => socket::receive(case),
            _ => fail("there is nothing to receive"),
        }?;
        answer(&format!("done {cpu} {seconds}"))
    })
}

/// Removes what a stream left in the directory, so that the next one writes a new file.
fn empty(directory: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
