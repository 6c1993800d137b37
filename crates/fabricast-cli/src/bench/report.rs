//! `bench report`: what one or two files of results say, as text, HTML, pictures or CSV.

mod case;
mod compare;
mod contents;
mod csv;
mod curves;
mod facts;
mod interval;
mod reading;
mod text;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::failure::{End, Failure};
use contents::{Chapter, Contents};

const EXAMPLES: &str = "Examples:
  fabricast bench report before.jsonl                     as text
  fabricast bench report before.jsonl --html before.html  with charts, in one file
  fabricast bench report before.jsonl after.jsonl         what has changed, and whether the runs
                                                          differ by more than their own spread

A file has lines of JSON, as bench --json writes them. A change is named when the 95 % intervals of
both medians do not overlap; with fewer than 6 runs, when the ranges of all runs do not.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportArgs {
    /// What bench --json has written; of two files, the second is compared with the first; -:
    /// standard input
    #[arg(required = true, num_args = 1..=2, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write a page with charts into this file; it needs no other file and no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each chart as SVG into this directory
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write each chart as PNG into this directory
    #[cfg(feature = "png")]
    #[arg(long, value_name = "DIR")]
    png: Option<PathBuf>,
    /// Write all figures as CSV into this file, a row for each case
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Shows it. Text on stdout only where nothing else is asked for.
///
/// # Errors
/// A file can't be read, is none of results, or can't be written.
pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let stdin = |path: &&PathBuf| path.as_os_str() == "-";
    if args.files.iter().filter(stdin).count() > 1 {
        return Err(Failure::new("-: standard input can be read once").ends(End::Usage));
    }
    let read = args.files.iter().map(|path| reading::read(path));
    let results = read.collect::<Result<Vec<_>, _>>()?;
    let mut is_written = false;
    if let Some(path) = &args.csv {
        write(path, csv::table(&results).as_bytes())?;
        is_written = true;
    }
    let contents = Contents::of(&results);
    if let Some(path) = &args.html {
        write(path, contents.page().html().as_bytes())?;
        is_written = true;
    }
    if let Some(dir) = &args.svg {
        each_picture(&contents, dir, "svg", |picture| {
            Ok(picture.file().into_bytes())
        })?;
        is_written = true;
    }
    #[cfg(feature = "png")]
    if let Some(dir) = &args.png {
        let zoom = 2.0;
        let render = |picture: &fabricast_charts::Picture| {
            fabricast_charts::png::render(&picture.svg, zoom).map_err(Failure::of)
        };
        each_picture(&contents, dir, "png", render)?;
        is_written = true;
    }
    if !is_written {
        crate::say::say(text::of(&contents).trim_end());
    }
    Ok(())
}

/// A page of what was just measured, from the lines that `bench --json` writes.
///
/// # Errors
/// They are no such lines.
pub(crate) fn html(lines: &str) -> Result<String, Failure> {
    let results = reading::parse("this run".to_owned(), lines.as_bytes())?;
    Ok(Contents::of(&[results]).page().html())
}

/// A table of the same as comma-separated values.
///
/// # Errors
/// They are no such lines.
pub(crate) fn csv(lines: &str) -> Result<String, Failure> {
    let results = reading::parse("this run".to_owned(), lines.as_bytes())?;
    Ok(csv::table(&[results]))
}

/// A file for each chart, called by what it shows.
fn each_picture(
    contents: &Contents,
    dir: &Path,
    extension: &str,
    render: impl Fn(&fabricast_charts::Picture) -> Result<Vec<u8>, Failure>,
) -> Result<(), Failure> {
    let failed = |error: &io::Error| Failure::os(dir.display(), error).ends(End::Sink);
    fs::create_dir_all(dir).map_err(|error| failed(&error))?;
    let drawn = contents.parts.iter().flat_map(Chapter::drawn);
    for (number, drawn) in drawn.enumerate() {
        let name = format!("{:03}-{}.{extension}", number + 1, drawn.name);
        write(&dir.join(name), &render(&drawn.picture())?)?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::os(path.display(), &error).ends(End::Sink);
    fs::write(path, bytes).map_err(failed)
}
