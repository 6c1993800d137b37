//! `fabricast send` to and from machines that a remote shell reaches: here a script that runs the
//! command on this one, and where there is an sshd, ssh.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::program;
use crate::provider::node;
use crate::stream::{
    Ended, PATIENCE, Process, content, file, long_file, names, provider, temp, wait_for_stream,
};

/// A command that takes a host, and runs the rest here as a remote shell does. `SSH_CONNECTION` is
/// what ssh says.
pub(crate) fn shell_in(dir: &Path, body: &str) -> PathBuf {
    let path = dir.join("rsh");
    fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("room");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("it is ours");
    path
}

pub(crate) fn plain_shell(dir: &Path) -> PathBuf {
    let body = format!(
        r#"echo "$1" >>"{}/hosts"; shift
        SSH_CONNECTION="{node} 50000 {node} 22" exec sh -c "$*""#,
        dir.display(),
        node = node(),
    );
    shell_in(dir, &body)
}

/// `fabricast send` over that shell.
pub(crate) fn send(program: &Path, shell: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(["send", "--provider", provider(), "--block", "64K", "--rsh"]);
    command.arg(shell).arg("--remote-path").arg(program);
    command.args(more);
    command
}

pub(crate) fn end_of(command: &mut Command) -> Ended {
    Process::start_command(command).end()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

pub(crate) fn far(host: &str, dir: &Path) -> String {
    format!("{host}:{}", dir.display())
}

fn tree(from: &TempDir) -> PathBuf {
    let top = from.path().join("tree");
    fs::create_dir_all(top.join("a b/empty")).expect("room");
    fs::write(top.join("a b/file"), content(300_000)).expect("room");
    fs::write(top.join("other"), content(5)).expect("room");
    top
}

fn assert_tree(top: &Path) {
    assert_eq!(names(top), ["a b", "other"]);
    assert_eq!(names(&top.join("a b")), ["empty", "file"]);
    let arrived = fs::read(top.join("a b/file")).expect("it arrived");
    assert!(arrived == content(300_000), "its content differs");
}

/// Ends of transfers end with them: no process of this directory's is left.
fn assert_nothing_runs(mark: &Path) {
    let deadline = Instant::now() + *PATIENCE;
    let runs = |process: fs::DirEntry| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let has = |part: &[u8]| line.windows(part.len()).any(|it| it == part);
        let environ = fs::read(process.path().join("environ")).unwrap_or_default();
        let mark = mark.as_os_str().as_encoded_bytes();
        has(b"far-end") && environ.windows(mark.len()).any(|it| it == mark)
    };
    while fs::read_dir("/proc").expect("proc").flatten().any(runs) {
        assert!(Instant::now() < deadline, "a far end is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_tree_goes_to_two_machines_in_one_reading_and_nothing_is_left() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let shell = plain_shell(from.path());
    let top = tree(&from);
    let places = ["host1", "me@host2"].map(|host| far(host, &to.path().join(host)));
    let sent = end_of(
        send(&program, &shell, &[text(&top), &places[0], &places[1]])
            .env("FABRICAST_TEST_MARK", to.path()),
    );
    sent.assert_ok();
    for host in ["host1", "me@host2"] {
        // The last part of a path may be missing there.
        assert_tree(&to.path().join(host).join("tree"));
        assert!(
            sent.stdout.contains(&far(host, &to.path().join(host))),
            "{}",
            sent.stdout
        );
    }
    let mut hosts: Vec<_> = fs::read_to_string(from.path().join("hosts"))
        .expect("the shell was called")
        .lines()
        .map(str::to_owned)
        .collect();
    hosts.sort();
    assert_eq!(hosts, ["host1", "me@host2"]);
    assert_nothing_runs(to.path());
}

#[test]
fn a_tree_is_fetched_from_another_machine() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let shell = plain_shell(from.path());
    let top = tree(&from);
    let (source, into) = (far("host1", &top), to.path().join("new"));
    let mut command = send(&program, &shell, &[&source, text(&into)]);
    let fetched = end_of(command.env("FABRICAST_TEST_MARK", to.path()));
    fetched.assert_ok();
    assert_tree(&into.join("tree"));
    assert!(
        fetched.stdout.contains("bytes        300005"),
        "{}",
        fetched.stdout
    );
    // Links that lead out are made here if that is asked for, and there anyway.
    std::os::unix::fs::symlink("/etc/hostname", top.join("out")).expect("linked");
    let fetch = |more: &[&str]| {
        let words = [&[source.as_str(), text(&into)], more].concat();
        end_of(&mut send(&program, &shell, &words))
    };
    fetch(&[]).assert_failed(6, "tree/out: a symbolic link to /etc/hostname");
    fetch(&["--any-links", "--sums"]).assert_ok();
    let place = far("host1", &to.path().join("there"));
    end_of(&mut send(&program, &shell, &["--sums", text(&top), &place])).assert_ok();
    for copy in ["new", "there"] {
        let mut verify = Command::new(&program);
        verify
            .arg("verify")
            .arg(to.path().join(copy).join("tree.b3"));
        end_of(&mut verify).assert_ok();
        let link = fs::read_link(to.path().join(copy).join("tree/out"));
        assert_eq!(link.expect("a link"), Path::new("/etc/hostname"));
    }
    fs::remove_file(top.join("out")).expect("it is ours");
    // What is not there, the far end says through this one.
    let missing = far("host1", &from.path().join("missing"));
    let ended = end_of(&mut send(&program, &shell, &[&missing, text(&into)]));
    ended.assert_failed(5, "No such file");
    assert!(ended.stderr.contains("host1:"), "{}", ended.stderr);
    let json = send(&program, &shell, &["--json", &source, text(&into)]).output();
    let json = String::from_utf8(json.expect("it starts").stdout).expect("text");
    assert!(
        json.contains("\"ok\":true") && json.contains("\"type\":\"result\""),
        "{json}"
    );
    assert_nothing_runs(to.path());
}

#[test]
fn what_would_be_fetched_is_listed_as_if_it_were_here_and_nothing_is_made() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let shell = plain_shell(from.path());
    let top = tree(&from);
    fs::write(top.join("left.tmp"), "x").expect("room");
    std::os::unix::fs::symlink("other", top.join("link")).expect("linked");
    let into = to.path().join("new");
    let into = text(&into);
    let (here, there) = (text(&top), far("host1", &top));
    let list = |words: &[&str]| {
        let mut command = send(&program, &shell, &["-n", "--exclude", "*.tmp"]);
        command.args(words).env("FABRICAST_TEST_MARK", to.path());
        let ended = end_of(&mut command);
        ended.assert_ok();
        ended.stdout
    };
    for more in [&[][..], &["--json"], &["--quiet"]] {
        let of_here = list(&[more, &[here, "host2:/never"]].concat());
        let of_there = list(&[more, &[&there, into]].concat());
        assert_eq!(of_there, of_here, "{more:?}");
        assert!(of_here.contains("300") && !of_here.contains("left.tmp"));
    }
    let listed = list(&[&there, into]);
    for line in ["tree/a b/empty/", "tree/link@", "tree/other"] {
        assert!(listed.lines().any(|it| it == line), "{line}: {listed}");
    }
    let missing = far("host1", &from.path().join("missing"));
    let ended = end_of(&mut send(&program, &shell, &["-n", &missing, into]));
    ended.assert_failed(5, "host1:");
    fs::remove_file(top.join("link")).expect("it is ours");
    let fifo = Command::new("mkfifo").arg(top.join("fifo")).status();
    assert!(fifo.expect("it starts").success());
    let strict = end_of(&mut send(
        &program,
        &shell,
        &["-n", "--strict", &there, into],
    ));
    strict.assert_failed(9, "--strict");
    assert!(names(to.path()).is_empty(), "something was made");
    assert_nothing_runs(to.path());
}

#[test]
fn owners_go_there_and_back() {
    use std::os::unix::fs::{MetadataExt, chown};
    let Some(program) = program() else { return };
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root gives files to others");
        return;
    }
    let (from, to) = (temp(), temp());
    let shell = plain_shell(from.path());
    let top = tree(&from);
    chown(top.join("a b/file"), Some(1234), Some(5678)).expect("root may");
    chown(top.join("a b"), Some(4321), None).expect("root may");
    let (there, here) = (to.path().join("there"), to.path().join("here"));
    let push = ["--owners", text(&top), &far("host1", &there)];
    end_of(&mut send(&program, &shell, &push)).assert_ok();
    let fetch = ["--owners", &far("host1", &there.join("tree")), text(&here)];
    end_of(&mut send(&program, &shell, &fetch)).assert_ok();
    for place in [&there, &here] {
        let of = |name: &str| {
            let found = fs::metadata(place.join("tree").join(name)).expect(name);
            (found.uid(), found.gid())
        };
        assert_eq!(of("a b/file"), (1234, 5678));
        assert_eq!(of("a b").0, 4321);
        assert_eq!(of("other").0, 0);
    }
    let receiver = crate::stream::Running::start(&program, to.path(), &[]);
    let mut command = receiver.sender(&program);
    let refused = end_of(command.arg("--owners").arg(&top));
    refused.assert_failed(4, "fabricast recv --owners");
}

#[test]
fn attributes_go_there_and_back() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let shell = plain_shell(from.path());
    let top = tree(&from);
    let set = |name: &str| {
        let value = name.as_bytes();
        setxattr(top.join(name), "user.note", value, XattrFlags::empty())
    };
    if set("a b").and_then(|()| set("a b/file")).is_err() {
        println!("SKIPPED: {} has no extended attributes", top.display());
        return;
    }
    let (there, here) = (to.path().join("there"), to.path().join("here"));
    let push = ["--xattrs", text(&top), &far("host1", &there)];
    end_of(&mut send(&program, &shell, &push)).assert_ok();
    let fetch = ["--xattrs", &far("host1", &there.join("tree")), text(&here)];
    end_of(&mut send(&program, &shell, &fetch)).assert_ok();
    for place in [&there, &here] {
        let of = |name: &str| {
            let mut value = [0; 100];
            let found = getxattr(place.join("tree").join(name), "user.note", &mut value[..]);
            found.ok().map(|len| value[..len].to_vec())
        };
        assert_eq!(of("a b"), Some(b"a b".to_vec()));
        assert_eq!(of("a b/file"), Some(b"a b/file".to_vec()));
        assert_eq!(of("other"), None);
    }
    let receiver = crate::stream::Running::start(&program, to.path(), &[]);
    let mut command = receiver.sender(&program);
    let refused = end_of(command.arg("--xattrs").arg(&top));
    refused.assert_failed(4, "fabricast recv --xattrs");
}

/// It is on no command line and in no environment, and another one for each time.
#[test]
fn who_listens_for_a_far_end_has_its_own_key_for_one_time() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let log = from.path().join("log");
    let body = format!(r#"shift; tee -a "{}" | sh -c "$*""#, log.display());
    let shell = shell_in(from.path(), &body);
    let path = file(&from, "file", 100_000);
    let mut keys = Vec::new();
    for _ in 0..2 {
        let place = far("host1", to.path());
        end_of(&mut send(&program, &shell, &[text(&path), &place])).assert_ok();
        let said = fs::read_to_string(&log).expect("what was said");
        let last = said.lines().last().expect("a request").to_owned();
        let key = last.split("\"key\":\"").nth(1).expect("a key");
        keys.push(key.split('"').next().expect("its end").to_owned());
    }
    assert!(keys.iter().all(|key| key.len() == 64), "{keys:?}");
    assert_ne!(keys[0], keys[1]);
}

#[test]
fn a_far_end_that_cannot_be_is_said_in_one_line_with_what_to_do() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let path = file(&from, "file", 10);
    let place = far("host1", to.path());
    let with = |body: &str| {
        let shell = shell_in(from.path(), body);
        end_of(&mut send(&program, &shell, &[text(&path), &place]))
    };
    let missing = with("exec sh -c 'exec /nowhere/fabricast far-end'");
    missing.assert_failed(3, "--remote-path");
    let unknown = with("exec no-such-command-here");
    unknown.assert_failed(3, "install fabricast there");
    let refused = with("echo 'ssh: connect to host host1: refused' >&2; exit 255");
    refused.assert_failed(3, "could not start anything there");
    assert!(
        refused.stderr.contains("ssh: connect to host"),
        "{}",
        refused.stderr
    );
    let older = with("echo \"error: unrecognized subcommand 'far-end'\" >&2; exit 2");
    older.assert_failed(4, "older than this one");
    let newer = with(
        r#"echo 'Welcome'; echo 'fabricast-far {"protocol":1,"version":"99.1.0"}'; cat >/dev/null"#,
    );
    newer.assert_failed(4, "install the same version at both ends");
    assert!(newer.stderr.contains("Welcome"), "{}", newer.stderr);
    // A shell that is not there at all, and one that is no command.
    let nowhere = end_of(&mut send(
        &program,
        Path::new("/nowhere/rsh"),
        &[text(&path), &place],
    ));
    nowhere.assert_failed(3, "No such file");
    // A directory that can't be made.
    let shell = plain_shell(from.path());
    let place = far("host1", &to.path().join("no/such"));
    end_of(&mut send(&program, &shell, &[text(&path), &place])).assert_failed(6, "No such file");
    // A provider that this machine does not have stands for one that the far one lacks.
    let mut command = Command::new(&program);
    command.args(["send", "--provider", "nosuch", "--rsh", text(&shell)]);
    command.args(["--remote-path", text(&program), text(&path)]);
    let ended = end_of(command.arg(far("host1", to.path())));
    ended.assert_failed(4, "host1:");
    assert!(ended.stderr.contains("nosuch"), "{}", ended.stderr);
}

#[test]
fn a_wrong_command_line_is_said_before_anything_is_started() {
    let Some(program) = program() else { return };
    let dir = temp();
    let shell = plain_shell(dir.path());
    let path = file(&dir, "file", 1);
    let path = text(&path);
    for (words, why) in [
        (&[path][..], "no receiver"),
        (&["h:/a", "h:/b"], "nothing of this machine"),
        (&[path, "-oProxyCommand=x:/d", "--"], "unexpected argument"),
        (&["--", path, "-oProxyCommand=x:/d"], "no host"),
        (&[path, "h:/d", "--to", "127.0.0.1:1"], "--key"),
        (&[path, "h:7471"], "--to"),
        (
            &["--rail", "192.0.2.77", path, "h:/d"],
            "no address of this machine",
        ),
        (&["--rail", "eth0", path, "h:/d"], "or none"),
    ] {
        let ended = end_of(&mut send(&program, &shell, words));
        assert_eq!(ended.status.code(), Some(2), "{words:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{words:?}: {}", ended.stderr);
    }
    assert!(!dir.path().join("hosts").exists(), "a shell was started");
}

/// As a terminal does it: a signal for all of the group, and as `kill` does: for one.
#[test]
fn an_interrupted_send_says_how_to_go_on_and_its_far_end_ends() {
    use rustix::process::{Pid, Signal, kill_process, kill_process_group};
    use std::os::unix::process::CommandExt;

    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let shell = plain_shell(from.path());
    let path = long_file(&from);
    let into = |number: i32| to.path().join(number.to_string());
    for (number, (signal, all, code)) in (1..).zip([
        (Signal::INT, true, 130),
        (Signal::INT, false, 130),
        (Signal::TERM, false, 143),
    ]) {
        let into = into(number);
        fs::create_dir(&into).expect("room");
        let place = far("host1", &into);
        let mut command = send(
            &program,
            &shell,
            &["--limit-rate", "4M", text(&path), &place],
        );
        command
            .env("FABRICAST_TEST_MARK", to.path())
            .process_group(0);
        let process = Process::start_command(&mut command);
        wait_for_stream(&into);
        let pid = Pid::from_raw(process.0.id() as i32).expect("it runs");
        let killed = match all {
            true => kill_process_group(pid, signal),
            false => kill_process(pid, signal),
        };
        killed.expect("it is ours");
        process
            .end()
            .assert_failed(code, "give the same command again");
        assert_nothing_runs(to.path());
        assert!(!into.join("long").exists(), "not under its name");
    }
    // The part that is there is taken.
    let place = far("host1", &into(2));
    end_of(&mut send(&program, &shell, &[text(&path), &place])).assert_ok();
    assert_eq!(names(&into(2)), ["long"]);
}

/// Each way is one that this end names an address of.
#[test]
fn a_far_end_is_met_where_rails_were_asked_for() {
    let Some(program) = program() else { return };
    if !fabricast::fabric::provider(provider()).is_some_and(|row| row.over_tcp) {
        return println!("SKIPPED: this provider has no loopback addresses");
    }
    let (from, to) = (temp(), temp());
    let log = from.path().join("log");
    let body = format!(r#"shift; sh -c "$*" | tee "{}""#, log.display());
    let shell = shell_in(from.path(), &body);
    let path = file(&from, "file", 3_000_000);
    let rails = ["--rail", "127.0.0.1", "--rail", "127.0.0.2"];
    let place = far("host1", to.path());
    let words = [&rails[..], &[text(&path), &place]].concat();
    end_of(&mut send(&program, &shell, &words)).assert_ok();
    let arrived = fs::read(to.path().join("file")).expect("it arrived");
    assert!(arrived == content(3_000_000), "its content differs");
    let said = fs::read_to_string(&log).expect("what was said");
    // From loopback addresses, the way to each of them begins at the first.
    assert_eq!(said.matches("127.0.0.1:").count(), 2, "{said}");
}

#[test]
fn a_near_end_that_is_killed_takes_its_far_ends_with_it() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let shell = plain_shell(from.path());
    let path = long_file(&from);
    for words in [
        [text(&path).to_owned(), far("host1", to.path())],
        [far("host1", &path), text(to.path()).to_owned()],
    ] {
        let mut command = send(&program, &shell, &["--limit-rate", "4M"]);
        command.args(&words).env("FABRICAST_TEST_MARK", to.path());
        let mut process = Process::start_command(&mut command);
        wait_for_stream(to.path());
        process.kill();
        process.status();
        drop(process);
        assert_nothing_runs(to.path());
        for name in names(to.path()) {
            fs::remove_dir_all(to.path().join(name)).expect("it is ours");
        }
    }
}

/// A script that runs a command with the directory that sshd wants to be there.
const IN_RUN: &str = r#"mount -t tmpfs none /run && mkdir /run/sshd && exec "$0" "$@""#;

/// Keys, configuration and port of its own; ended when this is dropped.
struct Sshd {
    process: std::process::Child,
    shell: String,
}

impl Sshd {
    /// `None`, after a line that says why: there is no sshd here, or it does not start.
    fn start(dir: &Path) -> Option<Self> {
        let paths = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"];
        let Some(sshd) = paths.into_iter().find(|path| Path::new(path).exists()) else {
            println!("SKIPPED: there is no sshd here");
            return None;
        };
        for key in ["host", "user"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            let made = command.arg(dir.join(key)).stdin(Stdio::null()).status();
            if !made.is_ok_and(|status| status.success()) {
                println!("SKIPPED: there is no ssh-keygen here");
                return None;
            }
        }
        fs::copy(dir.join("user.pub"), dir.join("authorized")).expect("room");
        let listener = std::net::TcpListener::bind((node(), 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        drop(listener);
        let config = format!(
            "Port {port}\nListenAddress {}\nHostKey {dir}/host\n\
             AuthorizedKeysFile {dir}/authorized\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\n",
            node(),
            dir = dir.display(),
        );
        fs::write(dir.join("config"), config).expect("room");
        // What starts it as a service makes this directory: without a service, it is there in a
        // mount namespace alone.
        let wrapper = match Path::new("/run/sshd").exists() || !rustix::process::geteuid().is_root()
        {
            true => &[][..],
            false => &["unshare", "-m", "sh", "-c", IN_RUN],
        };
        let words = [wrapper, &[sshd, "-D", "-e", "-f"]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(dir.join("config"));
        let command = command.stdin(Stdio::null()).stderr(Stdio::piped());
        let process = command.spawn().expect("it starts");
        let shell = format!(
            "ssh -p {port} -i {dir}/user -F none -o BatchMode=yes -o StrictHostKeyChecking=no \
             -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            dir = dir.display(),
        );
        let mut sshd = Self { process, shell };
        let deadline = Instant::now() + *PATIENCE;
        loop {
            let mut words = sshd.shell.split(' ');
            let mut command = Command::new(words.next().expect("ssh"));
            command.args(words).args([node(), "true"]);
            if command.output().is_ok_and(|output| output.status.success()) {
                return Some(sshd);
            }
            let has_ended = sshd.process.try_wait().expect("it is ours").is_some();
            if has_ended || Instant::now() > deadline {
                let _ = sshd.process.kill();
                let mut said = String::new();
                let mut from = sshd.process.stderr.take().expect("a pipe");
                let _ = std::io::Read::read_to_string(&mut from, &mut said);
                let why = said.lines().last().unwrap_or("it says nothing");
                println!("SKIPPED: sshd lets nobody in here: {why}");
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn over_ssh_files_go_there_and_back() {
    let Some(program) = program() else { return };
    let (from, to, keys) = (temp(), temp(), temp());
    let Some(sshd) = Sshd::start(keys.path()) else {
        return;
    };
    let shell = PathBuf::from(&sshd.shell);
    let top = tree(&from);
    let there = far(node(), &to.path().join("there"));
    end_of(&mut send(&program, &shell, &[text(&top), &there])).assert_ok();
    assert_tree(&to.path().join("there/tree"));
    let back = to.path().join("back");
    let source = format!("{there}/tree");
    end_of(&mut send(&program, &shell, &[&source, text(&back)])).assert_ok();
    assert_tree(&back.join("tree"));
}
