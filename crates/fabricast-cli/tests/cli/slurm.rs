//! `--slurm`: tasks of a step, by the variables that srun sets.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::program;
use crate::provider::node;
use crate::stream::{PATIENCE, Process, content, file, long_file, names, provider, temp};

/// This task of three.
fn task(program: &Path, number: u32, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).args(["--provider", provider()]);
    command
        .env("SLURM_PROCID", number.to_string())
        .env("SLURM_NTASKS", "3")
        .env("SLURM_JOB_ID", "4711")
        .env("SLURM_STEP_ID", "0")
        .env_remove("SLURM_RESTART_COUNT");
    command
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn task_0_sends_to_all_others_and_believes_nothing_that_is_older() {
    let Some(program) = program() else { return };
    let (from, to, shared) = (temp(), temp(), temp());
    let path = file(&from, "file", 3_000_000);
    // Of an earlier job with the same numbers.
    let step = shared.path().join("fabricast-4711.0.0");
    fs::create_dir(&step).expect("room");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&step, mode).expect("it is ours");
    let key = "00".repeat(32);
    fs::write(
        step.join("key"),
        format!(r#"{{"run":"old","key":"{key}"}}"#),
    )
    .expect("room");
    let old = r#"{"run":"old","listening":["127.0.0.1:1"]}"#;
    fs::write(step.join("task-1"), old).expect("room");
    // One with the same command as task 0, and one by `recv`, both before task 0 is there.
    let [one, two] = ["1", "2"].map(|name| to.path().join(name));
    let shared_dir = text(shared.path());
    let send = [
        "send",
        text(&path),
        "--slurm",
        shared_dir,
        "--dir",
        text(&one),
    ];
    let rail = [&send[..], &["--rail", node()]].concat();
    let first = Process::start_command(&mut task(&program, 1, &rail));
    let at = format!("{}:0", node());
    let recv = [
        "recv",
        "--slurm",
        shared_dir,
        "--dir",
        text(&two),
        "--listen",
        &at,
    ];
    let second = Process::start_command(&mut task(&program, 2, &recv));
    // They wait for the old one, and are given the new one's.
    let deadline = Instant::now() + *PATIENCE;
    let is_old = |number: u32| {
        let said = fs::read_to_string(step.join(format!("task-{number}")));
        said.is_ok_and(|said| said.contains("\"old\""))
    };
    while !is_old(2) {
        assert!(Instant::now() < deadline, "task 2 does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
    let sent = Process::start_command(&mut task(&program, 0, &rail)).end();
    sent.assert_ok();
    for name in ["task 1", "task 2"] {
        assert!(sent.stdout.contains(name), "{}", sent.stdout);
    }
    for ended in [first.end(), second.end()] {
        ended.assert_ok();
    }
    for dir in [&one, &two] {
        let arrived = fs::read(dir.join("file")).expect("it arrived");
        assert!(arrived == content(3_000_000), "its content differs");
        assert_eq!(names(dir), ["file"]);
    }
    assert!(names(shared.path()).is_empty(), "nothing is left");
}

#[test]
fn a_task_that_cannot_is_said_by_all() {
    let Some(program) = program() else { return };
    let (from, to, shared) = (temp(), temp(), temp());
    let path = long_file(&from);
    let shared_dir = text(shared.path());
    let send = |number: u32, dir: &str, file: &Path| {
        let words = ["send", text(file), "--slurm", shared_dir, "--dir", dir];
        Process::start_command(task(&program, number, &words).arg("--rail").arg(node()))
    };
    // Nothing to send: the others need not wait.
    let others = [1, 2].map(|number| send(number, text(to.path()), &path));
    let missing = send(0, ".", &from.path().join("missing")).end();
    missing.assert_failed(5, "No such file");
    for other in others {
        let ended = other.end();
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains("task 0: "), "{}", ended.stderr);
    }
    // One that has nowhere to write.
    let others = [(1, text(to.path())), (2, "/proc/no/such")];
    let others = others.map(|(number, dir)| send(number, dir, &path));
    let ended = send(0, ".", &path).end();
    ended.assert_failed(6, "task 2: /proc/no/such");
    let [first, second] = others.map(Process::end);
    first.assert_failed(1, "task 0: task 2");
    second.assert_failed(6, "/proc/no/such");
    assert!(names(shared.path()).is_empty(), "nothing is left");
    // Without srun.
    let mut command = Command::new(&program);
    command.args(["send", text(&path), "--slurm", shared_dir]);
    command.env_remove("SLURM_PROCID");
    let alone = Process::start_command(&mut command).end();
    alone.assert_failed(2, "start it by srun");
}
