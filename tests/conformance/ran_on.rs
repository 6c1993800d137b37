//! What ran where, for docs/providers.tsv: a line for each row that ran whole and failed nowhere,
//! printed, and appended to the file that FABRICAST_RAN_ON names (target/ran-on.tsv).
//! `FABRICAST_RAN_ON=FILE FABRICAST_WRITE_DOCS=1 cargo test --test tools providers` takes them from
//! there, or from a log.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use fabricast::fabric::Run;

use crate::behaviours::BEHAVIOURS;
use crate::rows;
use crate::table::{Cell, Line, Shown};

/// Prints the lines, and appends them to the file.
pub(crate) fn write(lines: &[Line]) {
    let runs: Vec<_> = lines.iter().filter_map(run).collect();
    let text: String = runs.iter().map(|run| run.to_line() + "\n").collect();
    print!("{text}");
    let named = std::env::var_os("FABRICAST_RAN_ON").filter(|path| !path.is_empty());
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/ran-on.tsv");
    let path = named.map_or_else(usual, PathBuf::from);
    let mut open = fs::OpenOptions::new();
    let written = open
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    if let Err(error) = written {
        println!("not kept: {}: {error}", path.display());
    }
}

/// `None` for a row that failed, or of which only a part was asked for.
fn run(line: &Line) -> Option<Run> {
    let row = rows::row_named(&line.provider);
    let (mut cannot, mut fails) = (Vec::new(), Vec::new());
    for ((name, _), cell) in BEHAVIOURS.iter().zip(&line.cells) {
        match cell {
            Cell::Shown(Shown::Works) | Cell::Second => {}
            Cell::Shown(Shown::Hole(_)) => cannot.push(*name),
            Cell::Known(_) => fails.push(*name),
            Cell::Failed | Cell::NotAsked => return None,
        }
    }
    // Its version without what whoever built it has added.
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel
        .split(|c: char| c != '.' && !c.is_ascii_digit())
        .next();
    let fields = [
        row.provider.to_owned(),
        row.kind.to_string(),
        row.cq_data.to_string(),
        line.version.clone(),
        kernel.unwrap_or_default().to_owned(),
        described(&line.device),
        today(),
        (line.cells.len() - cannot.len() - fails.len()).to_string(),
        cannot.join(", "),
        fails.join(", "),
    ];
    Some(Run::parse(&fields.join("\t")).expect("a line"))
}

/// A card with its driver; one without a device below it is software.
fn described(device: &str) -> String {
    let card = Path::new("/sys/class/infiniband").join(device);
    if !card.exists() {
        return device.to_owned();
    }
    let driver = fs::read_link(card.join("device/driver")).ok();
    let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    format!("{device} ({})", driver.as_deref().unwrap_or("virtual"))
}

fn today() -> String {
    let date = Command::new("date").args(["-u", "+%F"]).output();
    let text = date.expect("date(1)").stdout;
    String::from_utf8_lossy(&text).trim().to_owned()
}
