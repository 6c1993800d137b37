//! `fabricast send --delete`: what receivers have besides goes, where they allow it, and nothing
//! else.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::far::{end_of, far, plain_shell, send, text};
use crate::program;
use crate::stream::{Ended, PATIENCE, Process, Running, content, names, provider, temp};

/// A directory with two files, one of them in a directory of it.
fn tree(from: &TempDir) -> PathBuf {
    let top = from.path().join("tree");
    fs::create_dir_all(top.join("sub")).expect("room");
    fs::write(top.join("file"), content(100_000)).expect("room");
    fs::write(top.join("sub/other"), content(5)).expect("room");
    top
}

/// Puts something besides into a copy of it, and beside it: so many of it may go.
fn add_extra(to: &Path) -> usize {
    fs::create_dir_all(to.join("tree/old/deep")).expect("room");
    for name in [
        "tree/extra",
        "tree/sub/extra.o",
        "tree/old/deep/a.o",
        "beside",
    ] {
        fs::write(to.join(name), name).expect("room");
    }
    symlink("..", to.join("tree/sub/up")).expect("linked");
    6
}

fn says(ended: &Ended, line: &str) {
    ended.assert_ok();
    let all = &ended.stdout;
    assert!(all.lines().any(|it| it == line), "{line}: {all}");
}

#[test]
fn what_is_there_besides_goes_where_a_receiver_allows_it() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let top = tree(&from);
    let closed = Running::start(&program, to.path(), &[]);
    let send = |receiver: &Running, more: &[&str]| {
        let mut command = receiver.sender(&program);
        Process::start_command(command.args(more).arg(&top)).end()
    };
    send(&closed, &[]).assert_ok();
    let extra = add_extra(to.path());
    // Who does not allow it says so before anything is sent.
    fs::write(top.join("new"), content(5)).expect("room");
    let refused = send(&closed, &["--delete"]);
    refused.assert_failed(4, "fabricast recv --allow-delete");
    assert!(!to.path().join("tree/new").exists());
    drop(closed);
    let open = Running::start(
        &program,
        to.path(),
        &["--allow-delete", "--protect", "keep/"],
    );
    let hidden = to.path().join("tree/.fabricast-0123");
    for directory in [&hidden, &to.path().join("tree/keep")] {
        fs::create_dir(directory).expect("room");
        fs::write(directory.join("file"), "kept").expect("room");
    }
    // Unless it is asked, everything stays.
    send(&open, &[]).assert_ok();
    assert!(to.path().join("tree/extra").exists());
    let shown = send(&open, &["--delete", "--dry-run"]);
    shown.assert_ok();
    assert!(shown.stderr.contains("is not shown"), "{}", shown.stderr);
    assert!(to.path().join("tree/extra").exists());
    let times = |name: &str| {
        fs::metadata(to.path().join(name))
            .expect(name)
            .modified()
            .ok()
    };
    let sent = send(&open, &["--delete", "--skip-unchanged", "--sync"]);
    says(
        &sent,
        &format!("deleted      {extra} files and directories"),
    );
    let left = [".fabricast-0123", "file", "keep", "new", "sub"];
    assert_eq!(names(&to.path().join("tree")), left);
    assert_eq!(names(&to.path().join("tree/sub")), ["other"]);
    assert_eq!(names(&hidden), ["file"]);
    assert_eq!(names(to.path()), ["beside", "tree"]);
    let here = fs::metadata(&top).expect("it is there").modified().ok();
    assert_eq!(
        times("tree"),
        here,
        "the time of a directory is the sender's"
    );
    // Of a file, what is beside it is nobody's business.
    let mut one = open.sender(&program);
    Process::start_command(one.arg("--delete").arg(top.join("file")))
        .end()
        .assert_ok();
    assert_eq!(names(to.path()), ["beside", "file", "tree"]);
    let json = send(&open, &["--delete", "--json"]);
    assert!(json.stdout.contains("\"deleted\":0"), "{}", json.stdout);
}

#[test]
fn what_is_excluded_is_protected_over_a_shell_and_elsewhere_refused() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let shell = plain_shell(from.path());
    let top = tree(&from);
    fs::write(top.join("mine.o"), "left out").expect("room");
    let there = to.path().join("there");
    let place = far("host1", &there);
    let options = ["--delete", "--exclude", "*.o", "--include", "extra.o"];
    let push = |more: &[&str]| {
        let words = [more, &options, &[text(&top), &place]].concat();
        end_of(&mut send(&program, &shell, &words))
    };
    push(&[]).assert_ok();
    let extra = add_extra(&there);
    fs::write(there.join("tree/mine.o"), "of theirs").expect("room");
    // What is below a protected name's directory keeps the directory: `a.o`, `deep`, `old` stay.
    says(
        &push(&[]),
        &format!("deleted      {} files and directories", extra - 3),
    );
    assert_eq!(names(&there.join("tree")), ["file", "mine.o", "old", "sub"]);
    assert_eq!(names(&there.join("tree/old/deep")), ["a.o"]);
    assert_eq!(
        fs::read(there.join("tree/mine.o")).expect("kept"),
        b"of theirs"
    );
    // Fetched, this side is the one that removes.
    let here = to.path().join("here");
    let source = far("host1", &top);
    let fetch = || {
        let words = [&options[..], &[&source, text(&here)]].concat();
        end_of(&mut send(&program, &shell, &words))
    };
    fetch().assert_ok();
    add_extra(&here);
    says(
        &fetch(),
        &format!("deleted      {} files and directories", extra - 3),
    );
    assert_eq!(names(&here.join("tree")), ["file", "old", "sub"]);
    let mut to_address = Command::new(&program);
    to_address
        .args(["send", "--to", "127.0.0.1:1"])
        .args(options)
        .arg(&top);
    let refused = end_of(&mut to_address);
    refused.assert_failed(2, "does not know what is left out");
}

#[test]
fn nothing_goes_where_something_is_skipped_or_fails() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let top = tree(&from);
    let receiver = Running::start(&program, to.path(), &["--allow-delete"]);
    let send = |more: &[&str]| {
        let mut command = receiver.sender(&program);
        Process::start_command(command.arg("--delete").args(more).arg(&top)).end()
    };
    send(&[]).assert_ok();
    add_extra(to.path());
    let made = Command::new("mkfifo").arg(top.join("fifo")).status();
    assert!(made.expect("mkfifo is there").success());
    let sent = send(&[]);
    sent.assert_ok();
    let why = "--delete: nothing is removed, since 1 of what is to be sent is skipped";
    assert!(sent.stderr.contains(why), "{}", sent.stderr);
    assert!(to.path().join("tree/extra").exists());
    fs::remove_file(top.join("fifo")).expect("it is ours");
    // A directory lies where a file is to.
    fs::write(top.join("old"), "a file").expect("room");
    send(&[]).assert_failed(6, "old: Is a directory");
    assert!(to.path().join("tree/extra").exists());
    // A link that the receiver does not make: what arrived before changes nothing.
    fs::remove_file(top.join("old")).expect("it is ours");
    symlink("/etc", top.join("out")).expect("linked");
    send(&[]).assert_failed(6, "out: a symbolic link to /etc");
    assert!(to.path().join("tree/extra").exists());
    fs::remove_file(top.join("out")).expect("it is ours");
    says(&send(&[]), "deleted      6 files and directories");
}

/// What can't be removed is said, and the rest of it is.
#[test]
fn what_cannot_be_removed_is_said_when_all_has_arrived() {
    let Some(program) = program() else { return };
    if rustix::process::geteuid().is_root() {
        println!("SKIPPED: root may remove everything");
        return;
    }
    let (from, to) = (temp(), temp());
    let top = tree(&from);
    let receiver = Running::start(&program, to.path(), &["--allow-delete"]);
    // Without rights to read it, nobody looks into it.
    let closed = to.path().join("tree/closed");
    fs::create_dir_all(&closed).expect("room");
    fs::write(closed.join("x"), "x").expect("room");
    fs::write(to.path().join("tree/extra"), "x").expect("room");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o0)).expect("it is ours");
    let mut command = receiver.sender(&program);
    let sent = end_of(command.arg("--delete").arg(&top));
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("it is ours");
    sent.assert_failed(
        6,
        "all of it is under its names; 1 files and directories besides",
    );
    assert_eq!(names(&to.path().join("tree")), ["closed", "file", "sub"]);
}

/// A receiver is killed while it removes: what was sent is there, and the same command goes on.
#[test]
fn a_receiver_that_is_killed_while_it_removes_leaves_a_tree_to_go_on_from() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let top = tree(&from);
    let old = to.path().join("tree/old");
    fs::create_dir_all(&old).expect("room");
    const OLD: usize = 5_000;
    for number in 0..OLD {
        fs::write(old.join(number.to_string()), "").expect("room");
    }
    let arguments = [
        "send",
        "--provider",
        provider(),
        "--delete",
        "--retry-for",
        "0",
        "--to",
    ];
    let command = |receiver: &Running| {
        let mut command = Command::new(&program);
        command.args(arguments).arg(&receiver.address).arg(&top);
        command
    };
    let mut receiver = Running::start(&program, to.path(), &["--allow-delete"]);
    let sending = Process::start_command(&mut command(&receiver));
    let deadline = Instant::now() + *PATIENCE;
    while fs::read_dir(&old).is_ok_and(|left| left.count() == OLD) {
        assert!(Instant::now() < deadline, "nothing is removed");
        std::thread::sleep(Duration::from_millis(1));
    }
    receiver.process.kill();
    sending.end();
    // By then all of it has its name.
    let is_there = |name: &str, len| {
        let found = fs::read(to.path().join("tree").join(name)).expect(name);
        assert!(found == content(len), "{name}");
    };
    is_there("file", 100_000);
    is_there("sub/other", 5);
    let left = fs::read_dir(&old).map_or(0, Iterator::count);
    println!("killed with {left} of {OLD} files left to remove");
    let receiver = Running::start(&program, to.path(), &["--allow-delete"]);
    end_of(&mut command(&receiver)).assert_ok();
    is_there("file", 100_000);
    assert_eq!(names(&to.path().join("tree")), ["file", "sub"]);
    assert_eq!(names(to.path()), ["tree"], "nothing hidden is left");
}
