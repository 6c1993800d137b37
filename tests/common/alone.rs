//! One test of this program, alone in a process: what is loaded once in a process and never again
//! is loaded there.

#[path = "names.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "whoever needs it has it; programs take these files one by one"
)]
mod names;

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Whether this is the process of that test; `mark` is the variable that says so.
pub(crate) fn is_child(mark: &str, test: &str) -> bool {
    std::env::var(mark).is_ok_and(|name| name == test)
}

/// This program again, with that one test.
pub(crate) fn child(mark: &str, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([
            names::full_name(test),
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(mark, test)
        .stdin(Stdio::null());
    command
}

/// Waits for it, and ends it when it takes longer than that; whether its test passed, and what it
/// said.
pub(crate) fn finish(mut command: Command, limit: Duration) -> (bool, String) {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("starts");
    let pipes: [Box<dyn Read + Send>; 2] = [
        Box::new(process.stdout.take().expect("piped")),
        Box::new(process.stderr.take().expect("piped")),
    ];
    let readers = pipes.map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What a killed child did not write is not missed.
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    let until = Instant::now() + limit;
    let passed = loop {
        if let Some(status) = process.try_wait().expect("our child") {
            break status.success();
        }
        if Instant::now() > until {
            process.kill().expect("our child");
            process.wait().expect("our child");
            break false;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let output: String = readers.map(|it| it.join().expect("reads")).concat();
    // A filter that fits no test passes, too.
    (passed && output.contains("1 passed"), output)
}
