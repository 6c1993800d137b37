//! What the start of libfabric costs each process here, and why: docs/internals/libfabric-start.md.

use std::time::{Duration, Instant};

use fabricast::Fabric;
use serde_json::{Value, json};

use super::child::End;
use super::{Finding, State};
use crate::failure::Failure;
use crate::say::say;

const CHECK: &str = "libfabric";

/// From where on the start is worth a line.
const SLOW: u64 = 100;

/// Libraries that wait for a tenth of a second as they are loaded, to find out how fast a clock is.
const SLEEPERS: [&str; 2] = ["libinfinipath.so", "libpsm2.so"];

/// With it, libfabric has its provider verbs.
const VERBS: &str = "libibverbs.so";

/// Starts libfabric in a process of its own, and says how that went.
pub(super) fn of(patience: Duration) -> Finding {
    let said = End::of(&["--start"], patience).and_then(|end| match end.failure() {
        Some(why) => Err(why),
        None => serde_json::from_str(&end.out).map_err(|error| error.to_string()),
    });
    judge(&said)
}

fn judge(said: &Result<Value, String>) -> Finding {
    let said = match said {
        Ok(said) => said,
        Err(why) => {
            let todo = "apt install libfabric1, or name one: FABRICAST_LIBFABRIC=/path/to/\
                        libfabric.so.1";
            return Finding::new(CHECK, State::Fail, why).todo(todo);
        }
    };
    let number = |name: &str| said[name].as_u64().unwrap_or_default();
    let word = |name: &str| said[name].as_str().unwrap_or("?");
    let (loading, asking, symbols) = (number("load_ms"), number("ask_ms"), number("kallsyms_ms"));
    let age = match word("version").starts_with("1.") {
        true => ", of the 1.x series, which 2.0 followed in December 2024",
        false => "",
    };
    let start = loading + asking;
    let what = format!(
        "{} ({}){age}; it starts in {start} ms",
        word("version"),
        word("path")
    );
    if start < SLOW {
        return Finding::new(CHECK, State::Ok, what);
    }
    let with = said["with"].as_array().into_iter().flatten();
    let with: Vec<&str> = with.filter_map(Value::as_str).collect();
    let sleepers = SLEEPERS
        .into_iter()
        .filter(|name| with.iter().any(|file| file.contains(name)));
    let sleepers: Vec<_> = sleepers.collect();
    let mut why = vec![format!("{loading} ms to be loaded")];
    if !sleepers.is_empty() {
        let names = sleepers.join(" and ");
        why.push(format!("in which {names} wait 100 ms each"));
    }
    why.push(format!("{asking} ms for its first answer"));
    // Nothing else that it does takes as long.
    let reads = with.iter().any(|file| file.contains(VERBS)) && symbols > 0 && asking >= symbols;
    if reads {
        let what = "in which its provider verbs reads all of /proc/kallsyms";
        why.push(format!("{what}, {symbols} ms each time"));
    }
    let what = format!("{what}, which every process waits for: {}", why.join(", "));
    let finding = Finding::new(CHECK, State::Note, what);
    match sleepers.is_empty() && !reads {
        true => finding,
        false => finding.todo(
            "where there are no such cards, a libfabric that is built with --disable-psm \
             --disable-psm2 --disable-verbs, by FABRICAST_LIBFABRIC",
        ),
    }
}

/// The start itself, in its process.
pub(super) fn run() -> Result<(), Failure> {
    let begin = Instant::now();
    let library = libfabric_sys::Library::load().map_err(Failure::of)?;
    let loaded = begin.elapsed();
    // That there is no such provider takes as long to find out.
    let _ = Fabric::builder().provider("tcp").open();
    let asked = begin.elapsed() - loaded;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files = |name: &str| {
        let mut files = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5));
        files.find(|file| file.contains(name)).map(str::to_owned)
    };
    let with = SLEEPERS.into_iter().chain([VERBS]).filter_map(files);
    let with: Vec<_> = with.collect();
    let begin = Instant::now();
    let symbols = std::fs::read("/proc/kallsyms").map_or(Duration::ZERO, |_| begin.elapsed());
    let milliseconds = |time: Duration| time.as_millis() as u64;
    let version = library.version();
    say(json!({
        "version": format!("{}.{}", version >> 16, version & 0xffff),
        "path": files("libfabric.so").unwrap_or_else(|| library.path().display().to_string()),
        "load_ms": milliseconds(loaded),
        "ask_ms": milliseconds(asked),
        "kallsyms_ms": milliseconds(symbols),
        "with": with,
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(version: &str, times: [u64; 3], with: &[&str]) -> Finding {
        let [load, ask, symbols] = times;
        judge(&Ok(json!({
            "version": version, "path": "/lib/libfabric.so.1", "with": with,
            "load_ms": load, "ask_ms": ask, "kallsyms_ms": symbols,
        })))
    }

    #[test]
    fn a_slow_start_has_a_cause_where_one_was_seen() {
        let quick = said("2.5", [1, 5, 80], &[]);
        assert_eq!(quick.state, State::Ok);
        assert!(quick.what.contains("6 ms") && !quick.what.contains("1.x"));
        let all = [
            "/lib/libpsm2.so.2",
            "/lib/libinfinipath.so.4",
            "/lib/libibverbs.so.1",
        ];
        let slow = said("1.17", [203, 160, 80], &all);
        assert_eq!(slow.state, State::Note);
        for word in ["363 ms", "libpsm2", "libinfinipath", "kallsyms", "1.x"] {
            assert!(slow.what.contains(word), "{word}: {}", slow.what);
        }
        assert!(!slow.todo.is_empty());
        let verbs = said("2.6", [1, 120, 80], &all[2..]);
        assert!(verbs.what.contains("kallsyms") && !verbs.what.contains("libpsm2"));
        // It has verbs, and was quicker than one reading.
        let other = said("2.6", [110, 20, 80], &all[2..]);
        assert!(!other.what.contains("kallsyms"), "{}", other.what);
        assert_eq!((other.state, other.todo.as_str()), (State::Note, ""));
    }

    #[test]
    fn one_that_does_not_start_is_a_failure() {
        let finding = judge(&Err("it ended with signal: 11".to_owned()));
        assert_eq!(finding.state, State::Fail);
        assert!(!finding.todo.is_empty());
    }
}
