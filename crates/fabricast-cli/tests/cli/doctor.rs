//! `doctor` on this machine, whatever it is.

use std::process::Command;

use serde_json::Value;

#[test]
fn it_says_of_each_thing_what_to_do_and_tries_what_is_here() {
    let Some(program) = crate::program() else {
        return;
    };
    let mut command = Command::new(program);
    command.args(["doctor", "--json"]).env("FI_HOOK", "noop");
    let output = command.output().expect("it runs");
    let out = String::from_utf8(output.stdout).expect("UTF-8");
    let lines = out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<Value> = lines.collect();
    let of = |check: &'static str| lines.iter().filter(move |line| line["check"] == check);
    for check in [
        "memory that may be locked",
        "TCP buffers",
        "clock",
        "libfabric",
    ] {
        assert_eq!(of(check).count(), 1, "{check}: {out}");
    }
    for line in &lines {
        let state = line["state"].as_str().expect("a word");
        assert!(["ok", "note", "warn", "fail"].contains(&state), "{line}");
        let is_mended = line["todo"].as_str().is_some_and(|todo| !todo.is_empty());
        assert!(is_mended || state != "warn" && state != "fail", "{line}");
    }
    let hook = of("variables").find(|line| {
        line["what"]
            .as_str()
            .is_some_and(|it| it.starts_with("FI_HOOK=noop"))
    });
    assert!(hook.is_some(), "{out}");
    // The one that the tests are told to use was tried.
    let provider = crate::over().expect("the program is there");
    let tried = of("provider").find(|line| {
        let what = line["what"].as_str().unwrap_or_default();
        what.starts_with(&format!("{provider}: "))
    });
    let tried = tried.unwrap_or_else(|| panic!("{out}"));
    assert_eq!(tried["state"], "ok", "{tried}");
    // Its peers are other processes.
    let over_shm = of("provider").find(|line| {
        let what = line["what"].as_str().unwrap_or_default();
        what.starts_with("shm: ")
    });
    match over_shm {
        Some(tried) => assert_eq!(tried["state"], "ok", "{tried}"),
        None => println!("SKIPPED: libfabric has no shm here"),
    }
    assert_eq!(output.status.code(), Some(0), "{out}");
}

#[test]
fn a_library_that_is_not_there_is_the_one_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    command
        .args(["doctor"])
        .env("FABRICAST_LIBFABRIC", "/nowhere/libfabric.so.1");
    let output = command.output().expect("it runs");
    let out = String::from_utf8(output.stdout).expect("UTF-8");
    let failed = out.lines().filter(|line| line.starts_with("FAIL "));
    let failed: Vec<_> = failed.collect();
    assert_eq!(failed.len(), 1, "{out}");
    assert!(failed[0].contains("/nowhere/libfabric.so.1") && failed[0].contains("=>"));
    assert!(!out.contains("provider: "), "{out}");
    assert_eq!(output.status.code(), Some(1));
}
