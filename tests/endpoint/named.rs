//! Providers whose endpoints have names, in one place that all processes of the machine share
//! (`shm`): each endpoint has a name of its own, whatever processes are there or were.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;

use fabricast::error::Error;
use fabricast::fabric::{EndpointKind, PROVIDERS};
use fabricast::{
    ConnectionEvent, Domain, Fabric, PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy,
    SendEvent,
};

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::common::child::{self, Child};
use crate::common::{SOON, Watchdog, after, drive, node, pool, sending, small_receiver};

/// Receivers, each with a sender, all at once.
const PAIRS: usize = 5;
const MESSAGES: u64 = 200;
const SIZE: usize = 6000;
const SHARED: &str = "/dev/shm";
/// As many endpoints as a process opens here at most.
const NAMES: u32 = 16;

fn open(provider: &str) -> Result<Arc<Domain>, Error> {
    let builder = Fabric::builder()
        .provider(provider)
        .endpoint_kind(EndpointKind::Rdm);
    builder.open()?.open_domain()
}

/// The providers of this library whose endpoints have names.
fn named() -> impl Iterator<Item = (&'static str, Arc<Domain>)> {
    let rows = PROVIDERS.iter().filter(|row| row.names.is_some());
    rows.filter_map(|row| match open(row.name) {
        Ok(domain) => Some((row.name, domain)),
        Err(error) => {
            println!("SKIPPED: {}: {error}", row.name);
            None
        }
    })
}

fn listen(domain: &Arc<Domain>) -> ReceiveEndpoint {
    ReceiveEndpoint::listen(domain, PeerAddr::any(), small_receiver()).expect("listens")
}

/// The region that an address names.
fn region(addr: &PeerAddr) -> PathBuf {
    let text = addr.to_string();
    let (_, name) = text.split_once("://").expect("a name");
    PathBuf::from(SHARED).join(name)
}

/// What is left in /dev/shm of a process that did not close, and of a test that failed.
struct Regions(String);

impl Drop for Regions {
    fn drop(&mut self) {
        for entry in fs::read_dir(SHARED).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&self.0) {
                // Gone already, if its process ended well.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Regions of others, which live, at the names that the provider gives this process's next
/// endpoints by itself: those of another container with the same `/dev/shm`, where another process
/// has the same number.
struct Others(Vec<(PathBuf, Vec<u8>)>);

impl Others {
    fn plant(domain: &Arc<Domain>) -> Self {
        let mut like = fs::read(region(&listen(domain).local_addr())).expect("its region");
        like.truncate(4096);
        // SAFETY: a call that reads a number and touches no memory.
        let user = unsafe { libc::getuid() };
        let plant = |number| {
            let name = format!("{}:{user}:{number}", process::id());
            let path = PathBuf::from(SHARED).join(name);
            fs::write(&path, &like).expect("room");
            (path, like.clone())
        };
        Self((1..=NAMES).map(plant).collect())
    }

    fn assert_untouched(&self) {
        for (path, bytes) in &self.0 {
            let now = fs::read(path).unwrap_or_default();
            assert!(now == *bytes, "the region of another: {}", path.display());
        }
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for (path, _) in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

fn content(key: u64) -> Vec<u8> {
    (0..SIZE as u64).map(|i| (key * 31 + i * 7) as u8).collect()
}

/// The role: receives all messages of one sender.
fn receive(domain: &Arc<Domain>) {
    let mut receiver = listen(domain);
    child::tell(format!("addr {}", receiver.local_addr()));
    let (mut events, mut got, mut over) = (Vec::new(), 0, false);
    drive("all messages and the end", SOON, || {
        receiver.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Message(message) => {
                    assert!(message.payload() == content(got), "message {got}");
                    got += 1;
                }
                ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    assert!(over || got == MESSAGES, "{reason}");
                    over = true;
                }
                _ => {}
            }
        }
        over
    });
    child::tell(format!("received {got}"));
}

/// The role: sends them.
fn send(domain: &Arc<Domain>, to: PeerAddr) {
    let mut sender = SendEndpointZeroCopy::connect(domain, to, sending()).expect("begins");
    sender.wait_connected().expect("connects");
    let pool = pool(domain, 8, SIZE);
    let (mut events, mut next, mut back) = (Vec::new(), 0, 0);
    drive("all messages", SOON, || {
        while next < MESSAGES
            && let Some(mut buffer) = pool.try_acquire()
        {
            buffer.copy_from_slice(&content(next));
            match sender.send_data(buffer.freeze(SIZE), b"", next) {
                Ok(()) => next += 1,
                Err(refused) if refused.is_would_block() => break,
                Err(refused) => panic!("{refused}"),
            }
        }
        sender.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            match event {
                SendEvent::Completed { .. } => back += 1,
                SendEvent::Writable | SendEvent::Connection(ConnectionEvent::Connected(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        back == MESSAGES
    });
    sender.close(after(SOON)).expect("closes");
    child::tell(format!("sent {back}"));
}

#[test]
fn processes_at_once_leave_each_other_their_names() {
    const TEST: &str = "processes_at_once_leave_each_other_their_names";
    if let Some(role) = child::role() {
        let told = child::argument();
        let (provider, to) = told.split_once(' ').unwrap_or((&told, ""));
        let domain = open(provider).expect("it was there");
        let others = Others::plant(&domain);
        match &*role {
            "receive" => receive(&domain),
            _ => send(&domain, to.parse().expect("an address")),
        }
        return others.assert_untouched();
    }
    let _watchdog = Watchdog::new(TEST);
    for (provider, _) in named() {
        let start = |role: &str, argument: String| {
            let child = Child::start(TEST, role, argument);
            let regions = Regions(format!("{}:", child.id()));
            (regions, child)
        };
        let mut receivers: Vec<_> = (0..PAIRS)
            .map(|_| start("receive", provider.to_owned()))
            .collect();
        let addrs: Vec<_> = receivers
            .iter_mut()
            .map(|(_, child)| child.expect("addr", SOON))
            .collect();
        let mut senders: Vec<_> = addrs
            .iter()
            .map(|to| start("send", format!("{provider} {to}")))
            .collect();
        for (_, sender) in &mut senders {
            assert_eq!(sender.expect("sent", SOON), MESSAGES.to_string());
            sender.finish(SOON);
        }
        for (_, receiver) in &mut receivers {
            assert_eq!(receiver.expect("received", SOON), MESSAGES.to_string());
            receiver.finish(SOON);
        }
    }
}

#[test]
fn an_endpoint_has_a_name_that_no_other_has() {
    for (provider, domain) in named() {
        let names: Vec<_> = (0..3)
            .map(|_| listen(&domain).local_addr().to_string())
            .collect();
        let distinct: HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), 3, "{provider}: {names:?}");
        for bad in [&names[0], "127.0.0.1:0"] {
            let addr = bad.parse().expect("an address");
            let error = ReceiveEndpoint::listen(&domain, addr, small_receiver());
            let error = error.expect_err("it listens where it was not asked to");
            assert!(matches!(error, Error::Address { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(bad) && text.contains("\"any\""), "{text}");
        }
    }
}

#[test]
fn a_node_is_refused_where_endpoints_have_names() {
    for (provider, _) in named() {
        let builder = Fabric::builder().provider(provider).node(node());
        let error = builder.open().expect_err("it has no such address");
        assert!(matches!(error, Error::Address { .. }), "{error}");
        let text = error.to_string();
        for part in [provider, node(), "names", "without a node"] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        let any = || Fabric::builder().endpoint_kind(EndpointKind::Rdm);
        if let Ok(fabric) = any().node(node()).open() {
            assert_eq!(fabric.provider().names, None, "it has no such address");
        }
        let none = any().node(node()).interface("nowhere").open();
        let text = none.expect_err("there is no such interface").to_string();
        let reason = format!("{provider}: its endpoints have names");
        assert!(
            text.split("; ").any(|said| said.starts_with(&reason)),
            "{text}"
        );
    }
}

/// libfabric 2.x makes an endpoint without memory of what it can't open a file for, and crashes.
#[test]
fn an_endpoint_is_refused_where_a_descriptor_is_wanting() {
    const TEST: &str = "an_endpoint_is_refused_where_a_descriptor_is_wanting";
    if child::role().is_some() {
        let domain = open(&child::argument()).expect("it was there");
        let to = "fi_shm://1:0:0".parse().expect("an address");
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(3);
        setrlimit(Resource::Nofile, limit).expect("lowered");
        let error = SendEndpointZeroCopy::connect(&domain, to, sending()).expect_err("no file");
        assert!(matches!(error, Error::TooFewDescriptors { .. }), "{error}");
        return child::tell("refused");
    }
    for (provider, _) in named() {
        let mut child = Child::start(TEST, "open", provider);
        child.expect("refused", SOON);
        child.finish(SOON);
    }
}

/// How a process gets a PID namespace of its own; none, after a line that says why, where it can't.
fn namespace() -> Option<&'static [&'static str]> {
    let wrappers = [
        &["unshare", "--pid", "--fork"][..],
        &["unshare", "-U", "-r", "--pid", "--fork"],
    ];
    let works = |wrapper: &&[&str]| {
        let mut command = process::Command::new(wrapper[0]);
        let status = command.args(&wrapper[1..]).arg("true").status();
        status.is_ok_and(|status| status.success())
    };
    let found = wrappers.into_iter().find(works);
    if found.is_none() {
        println!("SKIPPED: no PID namespace can be made here (unshare(1))");
    }
    found
}

/// The provider moves bytes into the process that has its peer's number here, whichever that is,
/// unless it is told not to.
#[test]
fn a_peer_whose_number_is_of_another_namespace_is_refused() {
    const TEST: &str = "a_peer_whose_number_is_of_another_namespace_is_refused";
    if let Some(role) = child::role() {
        let told = child::argument();
        let (provider, to) = told.split_once(' ').unwrap_or((&told, ""));
        let domain = open(provider).expect("it was there");
        match &*role {
            "receive" => return receive(&domain),
            "send" => return send(&domain, to.parse().expect("an address")),
            _ => {}
        }
        let to = to.parse().expect("an address");
        let begun = SendEndpointZeroCopy::connect(&domain, to, sending());
        return child::tell(format!(
            "refused {:?}",
            begun.err().map(|it| it.to_string())
        ));
    }
    let _watchdog = Watchdog::new(TEST);
    let Some(wrapper) = namespace() else { return };
    let without = [&["env", "FI_SHM_DISABLE_CMA=1"], wrapper].concat();
    for (provider, _) in named() {
        let mut receiver = Child::through(&without, TEST, "receive", provider);
        let to = format!("{provider} {}", receiver.expect("addr", SOON));
        let mut refused = Child::through(wrapper, TEST, "connect", &to);
        let text = refused.expect("refused", SOON);
        refused.finish(SOON);
        for part in ["PID namespace", "FI_SHM_DISABLE_CMA=1"] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        let mut sender = Child::through(&without, TEST, "send", &to);
        assert_eq!(sender.expect("sent", SOON), MESSAGES.to_string());
        sender.finish(SOON);
        assert_eq!(receiver.expect("received", SOON), MESSAGES.to_string());
        receiver.finish(SOON);
    }
}
