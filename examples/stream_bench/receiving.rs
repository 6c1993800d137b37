//! The process that receives. An order is `WAY SINK`, SINK a directory or `-`; it answers `at ADDRESS` when it is ready, and `done CPU`.

use std::path::Path;

use clap::ValueEnum;

use crate::case::{Case, Way};
use crate::error::{Failure, fail};
use crate::peer::{self, answer, words};
use crate::{bare, ours, socket};

pub(crate) fn serve(case: &Case) -> Result<(), Failure> {
    let mut discards = None;
    peer::serve(|order| {
        let [way, sink] = words(order)?;
        let cpu = match Way::from_str(way, false).map_err(Failure)? {
            Way::Ours | Way::OursCrc if sink == "-" => {
                let receiver = match &discards {
                    Some(receiver) => receiver,
                    None => discards.insert(ours::receiver(case, None)?),
                };
                ours::receive(receiver)
            }
            Way::Ours | Way::OursCrc => {
                let receiver = ours::receiver(case, Some(Path::new(sink)))?;
                let cpu = ours::receive(&receiver)?;
                receiver.stop(ours::goodbye());
                empty(Path::new(sink))?;
                Ok(cpu)
            }
            Way::Bare => bare::receive(case),
            Way::Socket | Way::Sendfile | Way::Splice => socket::receive(case),
            Way::ReadAlone | Way::WriteAlone => fail("there is nothing to receive"),
        }?;
        answer(&format!("done {cpu}"))
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
