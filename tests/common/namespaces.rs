//! Two processes in two network namespaces, joined by a pair of interfaces that can be taken down.

use std::process::Command;

use crate::common::child::{self, Child};
use crate::common::{Offers, SOON, Watchdog, domain, drive};

pub(crate) const NEAR: &str = "10.77.0.1";
pub(crate) const FAR: &str = "10.77.0.2";

/// How this process can get a network namespace of its own; `None`, after a line that says why,
/// where it can't.
fn unshare() -> Option<Vec<&'static str>> {
    let works = |wrapper: &[&str]| {
        let probe = "ip link add fbnear0 type veth peer name fbfar0 && ip addr add 10.77.0.1/24 \
            dev fbnear0";
        let mut command = Command::new(wrapper[0]);
        let output = command
            .args(&wrapper[1..])
            .args(["sh", "-c", probe])
            .output();
        output.is_ok_and(|output| output.status.success())
    };
    // As root; or as root of a user namespace of our own.
    for wrapper in [&["unshare", "-n"][..], &["unshare", "-U", "-r", "-n"]] {
        if works(wrapper) {
            return Some(wrapper.to_vec());
        }
    }
    println!("SKIPPED: no network namespace with a veth pair can be made here (unshare(1), ip(8))");
    None
}

pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .expect("ip(8)");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
}

/// Waits until an interface carries data: libfabric 2.x looks at the interfaces once in a process.
fn until_running(interface: &str) {
    drive(interface, SOON, || {
        let arguments = ["-o", "link", "show", interface];
        let output = Command::new("ip").args(arguments).output().expect("ip(8)");
        String::from_utf8_lossy(&output.stdout).contains("state UP")
    });
}

/// Runs `near` in a namespace of its own, in a process of its own; it may start `far` in another
/// one.
pub(crate) fn in_two_namespaces(test: &'static str, near: fn(&str), far: fn()) {
    match child::role().as_deref() {
        Some("near") => near(test),
        Some(_) => far(),
        None => {
            let _dog = Watchdog::with(test, 6 * SOON);
            let Some(domain) = domain() else { return };
            if !domain.works_in_namespaces() {
                return;
            }
            let Some(wrapper) = unshare() else { return };
            let mut child = Child::through(&wrapper, test, "near", "");
            let status = child.wait(6 * SOON);
            while let Some(line) = child.heard() {
                println!("{line}");
            }
            assert!(status.success(), "see above: {status}");
        }
    }
}

/// The far side, joined to this namespace by a veth pair; where it says that it listens.
pub(crate) fn start_far(test: &str) -> (Child, String) {
    // We are root here, of this namespace at least.
    let mut far = Child::through(&["unshare", "-n"], test, "far", format!("{FAR}:0"));
    let pid = far.expect("here", SOON);
    ip("link add fbnear0 type veth peer name fbfar0");
    ip(&format!("link set fbfar0 netns {pid}"));
    ip(&format!("addr add {NEAR}/24 dev fbnear0"));
    ip("link set lo up");
    ip("link set fbnear0 up");
    far.say("joined");
    let addr = far.expect("listening", SOON);
    until_running("fbnear0");
    (far, addr)
}

/// At the far side: takes its end of the pair.
pub(crate) fn join_far() {
    child::tell(format!("here {}", std::process::id()));
    assert_eq!(child::hear().as_deref(), Some("joined"));
    ip(&format!("addr add {FAR}/24 dev fbfar0"));
    ip("link set lo up");
    ip("link set fbfar0 up");
    until_running("fbfar0");
}
