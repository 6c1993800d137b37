//! `fabricast verify`: compares files with lists of their hashes.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use clap::Args;
use serde_json::json;

use crate::failure::{End, Failure};
use crate::say::say;
use crate::stream::measure::Bytes;
use crate::sums::{self, Sum};

/// Bytes that a thread reads at a time.
const PIECE: usize = 1 << 20;

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Lists of hashes, as `recv --sums` and `b3sum` write them
    #[arg(required = true, value_name = "FILE")]
    lists: Vec<PathBuf>,
    /// Directory that the names in the lists are relative to; default: that of each list
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Threads that read; default: as many as there are processors, 16 at most
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Print what differs as JSON objects, one a line, and the result as the last one
    #[arg(long)]
    json: bool,
}

/// What becomes of one comparison.
enum Finding {
    Same,
    Differs,
    Unreadable(io::Error),
}

pub(crate) fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let mut files = Vec::new();
    for list in &args.lists {
        let beside = list.parent().unwrap_or_else(|| Path::new(""));
        let dir = args.dir.as_deref().unwrap_or(beside);
        let sums = sums::read(list)?.into_iter();
        files.extend(sums.map(|sum| Sum {
            name: dir.join(sum.name),
            ..sum
        }));
    }
    if files.is_empty() {
        let names: Vec<_> = args
            .lists
            .iter()
            .map(|list| list.display().to_string())
            .collect();
        let text = format!("{}: there is no file in it", names.join(", "));
        return Err(Failure::new(text).ends(End::Source));
    }
    let has = std::thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(16);
    let threads = args.threads.map_or(has, usize::from).min(files.len());
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let wrong = Mutex::new((0, 0));
    let compare = || {
        let mut piece = vec![0; PIECE];
        while let Some(sum) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let finding = compare(sum, &mut piece, &bytes);
            let mut wrong = wrong
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let text = match finding {
                Finding::Same => continue,
                Finding::Differs => {
                    wrong.0 += 1;
                    "it is not what its hash says".to_owned()
                }
                Finding::Unreadable(error) => {
                    wrong.1 += 1;
                    error.to_string()
                }
            };
            let name = sum.name.display();
            match args.json {
                true => say(json!({ "type": "file", "name": name.to_string(), "error": text })),
                false => say(format_args!("{name}: {text}")),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(compare);
        }
        compare();
    });
    let (differ, unreadable) = wrong
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let (files, bytes) = (files.len(), bytes.into_inner());
    let end = match differ + unreadable {
        0 => None,
        _ => Some(End::Differs),
    };
    if args.json {
        say(json!({
            "type": "result",
            "ok": end.is_none(),
            "files": files,
            "bytes": bytes,
            "differ": differ,
            "unreadable": unreadable,
            "exit": end.map_or(0, |end| end as u8),
        }));
    }
    match end {
        None if args.json => Ok(()),
        None => {
            let bytes = Bytes(bytes as f64);
            say(format_args!(
                "{files} files, {bytes}: all are what their hashes say"
            ));
            Ok(())
        }
        Some(end) => {
            let text = format!(
                "of {files} files {differ} are not what their hashes say, and {unreadable} can't \
                 be read"
            );
            Err(Failure::new(text).ends(end))
        }
    }
}

fn compare(sum: &Sum, piece: &mut [u8], bytes: &AtomicU64) -> Finding {
    let mut hashed = || {
        let mut file = File::open(&sum.name)?;
        let mut hasher = blake3::Hasher::new();
        loop {
            match io::Read::read(&mut file, piece) {
                Ok(0) => return Ok(hasher.finalize()),
                Ok(read) => {
                    hasher.update(&piece[..read]);
                    bytes.fetch_add(read as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    };
    match hashed() {
        Ok(hash) if hash == sum.hash => Finding::Same,
        Ok(_) => Finding::Differs,
        Err(error) => Finding::Unreadable(error),
    }
}
