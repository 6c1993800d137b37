//! `info` on this machine, whatever it is.

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_is_gone_is_no_reason_to_panic() {
    let Some(program) = crate::program() else {
        return;
    };
    let mut command = Command::new(program);
    command
        .args(["info", "--provider", "tcp"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!err.contains("panicked"), "{err}");
    assert_eq!(output.status.code(), Some(0), "{err}");
}

#[test]
fn a_provider_that_nobody_has_is_refused_with_the_names_that_there_are() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    let output = command
        .args(["info", "--provider", "tpc"])
        .output()
        .expect("it runs");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("tpc") && err.contains("tcp, "), "{err}");
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(output.stdout.is_empty());
}
