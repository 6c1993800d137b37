//! What others fell into over cards, each over both kinds of endpoint: memory inside of a larger
//! allocation, memory that nobody may write, small batches, queues beyond what a device has, writes
//! with data that a card has no room for, and peers that are not there. docs/internals/memory.md
//! says where it was seen.

#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::Arc;

use fabricast::buffer::Payload;
use fabricast::endpoint::{Access, Destination, ReceiveConfig, SendErrorKind, WindowEvent};
use fabricast::error::Error;
use fabricast::{Domain, PeerAddr, ReceiveEndpoint, Region, SendEndpointZeroCopy, SendEvent};

use crate::common;
use crate::common::provider::kinds;
use crate::common::{Pair, SOON, Watchdog, drive, millis, pattern, send_end, small_receiver};
use crate::rma::{Both, contents, with_windows};

/// Calls `check` with a domain of each kind that the provider has.
fn on_each_kind(mut check: impl FnMut(Arc<Domain>)) {
    for domain in kinds().filter_map(common::domain_of) {
        println!("{}", domain.report());
        check(domain);
    }
}

fn pair(domain: &Arc<Domain>) -> Pair {
    Pair::with(domain, common::sending(), small_receiver())
}

/// A part of another region, at no boundary of anything, which stays as long as this one does.
fn inner(whole: &Arc<Region>, at: usize, len: usize) -> Arc<Region> {
    let base = NonNull::new(whole.as_ptr().wrapping_add(at)).expect("inside");
    // SAFETY: inside of the other region, which is kept, and of which these tests have no
    // references.
    let region = unsafe { Region::external(base, len, Box::new(Arc::clone(whole))) };
    region.expect("a region")
}

fn fill(region: &Region, content: &[u8]) {
    assert!(content.len() <= region.len());
    // SAFETY: as long as that, and nobody uses it meanwhile.
    unsafe {
        region
            .as_ptr()
            .copy_from_nonoverlapping(content.as_ptr(), content.len());
    }
}

fn bytes(region: &Arc<Region>) -> Vec<u8> {
    contents(&region.slice(0..region.len()).expect("all of it"))
}

/// Where a registration is rounded to pages, or its offset forgotten, its neighbours' bytes are
/// sent, or overwritten.
#[test]
fn a_region_inside_of_a_larger_allocation_is_just_that() {
    let _watchdog = Watchdog::new("a_region_inside_of_a_larger_allocation");
    let page = rustix::param::page_size();
    let (at, len) = (page + 123, 2 * page + 77);
    on_each_kind(|domain| {
        let pair = Pair::with(&domain, common::sending(), with_windows());
        let mut both = Both::over(pair);
        let whole = Region::host(6 * page).build().expect("memory");
        let content = pattern(1, whole.len());
        fill(&whole, &content);
        let inside = inner(&whole, at, len);
        inside.register(&domain).expect("registered");
        // All of it, by two who overlap; the larger one goes first.
        whole.register(&domain).expect("registered");
        for outer in [true, false] {
            if !outer {
                whole.deregister(&domain);
            }
            let slice = inside.slice(0..len).expect("all of it");
            let got = both.pair.exchange(slice, b"", 1);
            assert!(got.payload == content[at..at + len], "outer {outer}");
        }
        // A window of all of it, but for its ends.
        let part = inside.slice(5..len - 5).expect("inside");
        let (_local, remote) = both.far_window(part, Access::all());
        let written = pattern(2, len - 10);
        let payload = both.pair.buffer(&written);
        let sender = both.pair.sender();
        sender.windows().write(payload, &remote, 2).expect("posted");
        both.until("written", |both| !both.near.is_empty());
        let outcome = both.near.pop().expect("one");
        assert!(
            matches!(outcome, WindowEvent::Written { .. }),
            "{outcome:?}"
        );
        let mut expected = content;
        expected[at + 5..at + len - 5].copy_from_slice(&written);
        assert!(bytes(&whole) == expected, "beside what was written");
        let into = both.pair.pool.try_acquire().expect("a buffer");
        let into = Destination::buffer(into, len - 10);
        both.pair
            .sender()
            .windows()
            .read(into, &remote, 3)
            .expect("posted");
        both.until("read", |both| !both.near.is_empty());
        let Some(WindowEvent::Read { into, .. }) = both.near.pop() else {
            panic!("read");
        };
        let buffer = into.into_buffer().expect("a buffer");
        assert!(buffer[..len - 10] == written[..], "what was read");
    });
}

/// Pages that are unmapped behind the last registration.
struct Mapped(NonNull<libc::c_void>, usize);

// SAFETY: whoever has it only unmaps it.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `read_only`, and nobody has an address in it any more.
        let rc = unsafe { libc::munmap(self.0.as_ptr(), self.1) };
        assert_eq!(rc, 0, "munmap");
    }
}

/// A region of pages with this content that nobody may write any more.
fn read_only(content: &[u8]) -> Arc<Region> {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let len = content.len();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: mapped just now, as long as that.
    unsafe {
        at.cast::<u8>()
            .copy_from_nonoverlapping(content.as_ptr(), len)
    };
    // SAFETY: the mapping just made.
    let rc = unsafe { libc::mprotect(at, len, libc::PROT_READ) };
    assert_eq!(rc, 0, "mprotect");
    let base = NonNull::new(at).expect("mapped");
    let keep = Mapped(base, len);
    // SAFETY: mapped until the keep-alive is dropped, and nobody has a reference to it.
    let region = unsafe { Region::external(base.cast(), len, Box::new(keep)) };
    region.expect("a region")
}

/// As a file that was mapped for reading. A registration that asks for more than sending is refused
/// there by cards (EFAULT).
#[test]
fn memory_that_nobody_may_write_is_sent_and_lent_for_reading() {
    let _watchdog = Watchdog::new("memory_that_nobody_may_write");
    on_each_kind(|domain| {
        let content = pattern(3, 3 * rustix::param::page_size());
        let region = read_only(&content);
        region.register(&domain).expect("registered for sending");
        let pair = Pair::with(&domain, common::sending(), with_windows());
        let mut both = Both::over(pair);
        let slice = region.slice(0..content.len()).expect("all of it");
        let got = both.pair.exchange(slice.clone(), b"", 1);
        assert!(got.payload == content);
        let (_local, remote) = both.far_window(slice, Access::READ);
        let into = both.pair.pool.try_acquire().expect("a buffer");
        let into = Destination::buffer(into, content.len());
        both.pair
            .sender()
            .windows()
            .read(into, &remote, 2)
            .expect("posted");
        both.until("read", |both| !both.near.is_empty());
        let Some(WindowEvent::Read { into, .. }) = both.near.pop() else {
            panic!("read");
        };
        let buffer = into.into_buffer().expect("a buffer");
        assert!(buffer[..content.len()] == content[..]);
    });
}

/// Posts that are flagged with FI_MORE wait for one that is not: the last of a batch is none,
/// however short it is.
#[test]
fn a_small_batch_leaves_without_another_behind_it() {
    let _watchdog = Watchdog::new("a_small_batch_leaves");
    on_each_kind(|domain| {
        let mut pair = pair(&domain);
        for messages in 1..=5_u64 {
            let content: Vec<_> = (0..messages).map(|n| pattern(n, 100)).collect();
            let batch: Vec<_> = (0..messages)
                .zip(&content)
                .map(|(n, bytes)| (pair.buffer(bytes), [], n))
                .collect();
            let sent = pair.sender().send_batch(batch).expect("room for all");
            assert_eq!(sent as u64, messages);
            let (mut completed, mut got) = (0, Vec::new());
            pair.until("the batch", |pair| {
                let done = |event: &SendEvent| matches!(event, SendEvent::Completed { .. });
                completed += pair.sent.drain(..).filter(done).count() as u64;
                got.extend(pair.messages());
                completed == messages && got.len() as u64 == messages
            });
            let got: Vec<_> = got.into_iter().map(|got| got.payload).collect();
            assert!(got == content, "{messages} messages");
        }
    });
}

/// What a device's queue can't hold is refused in words when the endpoint is opened, and nothing of
/// it stays behind; what can be had, works.
#[test]
fn a_queue_beyond_a_devices_limit_is_refused_or_there() {
    let _watchdog = Watchdog::new("a_queue_beyond_a_devices_limit");
    on_each_kind(|domain| {
        // rxe's completion queues hold 32,767; a pool of small slots asks for more.
        let large = ReceiveConfig::default()
            .incoming(|incoming| incoming.slots(40_000).max_message(512).credits(16))
            .connection(|c| c.max_connections(8));
        let addr = common::any_port();
        match ReceiveEndpoint::listen(&domain, addr, large) {
            Ok(endpoint) => println!("  there: {}", endpoint.local_addr()),
            Err(error) => {
                println!("  refused: {error}");
                let call = match &error {
                    Error::Fabric { call, .. } => *call,
                    // Where queues are fixed, it says whose they are and what helps.
                    Error::CompletionQueue { entries, .. } => {
                        assert!(*entries >= 40_000, "{error}");
                        "lower depths, slots or connections"
                    }
                    other => panic!("{other}"),
                };
                assert!(error.to_string().contains(call), "{error}");
            }
        }
        assert_eq!(domain.registrations(), 0, "nothing stays registered");
        let got = pair(&domain).exchange(Payload::empty(), b"it goes on", 1);
        assert_eq!(got.header, b"it goes on");
    });
}

/// Data of 8 bytes go in the immediate data of a card, which has 4: that is known before the write
/// is posted, and no write fails for it later.
#[test]
fn a_write_with_data_is_refused_at_once_or_done() {
    let _watchdog = Watchdog::new("a_write_with_data_is_refused_at_once_or_done");
    on_each_kind(|domain| {
        let pair = Pair::with(&domain, common::sending(), with_windows());
        let mut both = Both::over(pair);
        let region = Region::host(4096).build().expect("memory");
        let target = region.slice(0..4096).expect("all of it");
        let (_local, remote) = both.far_window(target.clone(), Access::WRITE);
        let payload = both.pair.buffer(b"with data");
        let carries = domain.report().cq_data_size >= size_of::<u64>();
        match both
            .pair
            .sender()
            .windows()
            .write_with_data(payload, &remote, 7, 1)
        {
            Ok(()) => {
                assert!(carries, "there is no room");
                both.until("both", |both| !both.near.is_empty() && !both.far.is_empty());
            }
            Err(refused) => {
                assert!(!carries, "{refused}");
                assert!(
                    matches!(refused.kind, SendErrorKind::Window(_)),
                    "{refused}"
                );
                let sender = both.pair.sender();
                let written = sender.windows().write(refused.given, &remote, 1);
                written.expect("posted without data");
                both.until("written", |both| !both.near.is_empty());
            }
        }
        let outcome = both.near.pop().expect("one");
        assert!(
            matches!(outcome, WindowEvent::Written { key: 1, .. }),
            "{outcome:?}"
        );
        assert_eq!(contents(&target)[..9], *b"with data");
    });
}

/// An address that leads nowhere: of a network for documentation (RFC 5737).
const NOWHERE: &str = "192.0.2.1:7471";

/// Some providers look for a peer's address while they take it (address vectors, endpoints), and
/// stand still for seconds.
#[test]
fn a_peer_that_is_nowhere_holds_nobody_up() {
    let _watchdog = Watchdog::new("a_peer_that_is_nowhere_holds_nobody_up");
    on_each_kind(|domain| {
        let mut pair = pair(&domain);
        let nowhere: PeerAddr = NOWHERE.parse().expect("an address");
        let config = common::sending().connection(|c| c.connect_timeout(millis(3000)));
        let mut lost = match SendEndpointZeroCopy::connect(&domain, nowhere, config) {
            Ok(lost) => lost,
            // Where there is no way to that network at all, it is known at once.
            Err(error) => return println!("  refused: {error}"),
        };
        let (mut events, mut sent) = (Vec::new(), 0_u64);
        drive("the end of the attempt", SOON, || {
            lost.poll(&mut events).expect("polls");
            let content = pattern(sent, 200);
            let got = pair.exchange(pair.buffer(&content), b"", sent);
            assert!(got.payload == content);
            sent += 1;
            send_end(&events).is_some()
        });
        let reason = send_end(&events).expect("it ended");
        println!("  {reason}, after {sent} messages beside it");
    });
}
