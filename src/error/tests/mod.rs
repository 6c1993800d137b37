//! What errors say: what, where, which limit, and what to do about it.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::buffer::{AcquireError, HeaderError, LeaseError, RingError};
use crate::coalesce::{FormatError, FormatErrorKind, PackError};
use crate::endpoint::DropReason;
use crate::endpoint::error::{Blocked, PeerError, SendErrorKind, WindowError};
use crate::memory::{Access, RegionKind};

mod debug;

/// Each error, with what its text has to have in it.
fn check(rows: &[(&dyn std::fmt::Display, &[&str])]) {
    for (error, needed) in rows {
        let text = error.to_string();
        for part in *needed {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }
}

#[test]
fn a_completion_queue_that_is_too_long_says_what_makes_it_shorter() {
    let error = Error::CompletionQueue {
        entries: 40_000,
        errno: FabricErrno::new(libc::EINVAL),
    };
    let needed = [
        "40000",
        "lower depths, slots or connections",
        "several endpoints",
    ];
    check(&[(&error, &needed)]);
}

#[test]
fn a_send_that_is_refused_says_what_to_do() {
    let errno = FabricErrno::new(libc::EINVAL);
    let closed = CloseReason::PeerLost { errno: None };
    check(&[
        (
            &SendErrorKind::HeaderTooLong { len: 63, max: 62 },
            &[
                "63",
                "62",
                "HeaderSlotConfig::slot_size",
                "`headers`",
                "publication",
            ],
        ),
        (
            &SendErrorKind::TooManySegments { count: 4, max: 3 },
            &[
                "4",
                "3",
                "join segments",
                "OutgoingSettings::shape",
                "TwoMessages",
            ],
        ),
        (
            &SendErrorKind::ForeignBuffer { segment: 1 },
            &["segment 1", "Region::register", "this endpoint's domain"],
        ),
        (
            &SendErrorKind::NotRegistered { segment: 0 },
            &["segment 0", "Region::register", "OutgoingSettings::headers"],
        ),
        (
            &SendErrorKind::NotStaged { segment: 0 },
            &["segment 0", "Region::path", "OutgoingSettings::staging"],
        ),
        (
            &SendErrorKind::StagingTooLong { len: 9, max: 8 },
            &["9", "8", "StagingConfig"],
        ),
        (&SendErrorKind::Closing, &["closing", "new endpoint"]),
        (
            &SendErrorKind::Closed(closed),
            &[
                "the peer was lost",
                "new endpoint",
                "ConnectionSettings::reconnect",
            ],
        ),
        (
            &SendErrorKind::Forked(Forked { made_by: 7 }),
            &["process 7", "fabric of its own in the child"],
        ),
        (
            &SendErrorKind::Fabric(errno),
            &["fi_sendmsg", "(22)", "FI_LOG_LEVEL"],
        ),
        (
            &SendErrorKind::NoSubscribers { tag: 9 },
            &["nobody", "tag 9"],
        ),
        (&DropReason::Closing, &["closing"]),
    ]);
}

#[test]
fn a_window_or_a_peer_that_is_refused_says_what_to_do() {
    let errno = FabricErrno::new(libc::EHOSTUNREACH);
    let host = RegionKind::Host;
    check(&[
        (&WindowError::NotConnected, &["not connected", "Connected"]),
        (&WindowError::Empty, &["0 bytes", "at least 1"]),
        (
            &WindowError::TooManyWindows { limit: 4 },
            &["4", "setting `windows`", "revoke"],
        ),
        (
            &WindowError::NoImmediateData { bytes: 4 },
            &["4", "8", "write and a message"],
        ),
        (
            &WindowError::Forked(Forked { made_by: 7 }),
            &["process 7", "fabric of its own in the child"],
        ),
        (
            &WindowError::Fabric {
                call: "fi_writemsg",
                errno,
            },
            &["fi_writemsg", "(113)", "no route"],
        ),
        (
            &PeerError::Fabric {
                call: "fi_av_insert",
                errno: FabricErrno::new(libc::EINVAL),
            },
            &["fi_av_insert", "(22)", "FI_LOG_LEVEL"],
        ),
        (&PeerError::Unknown, &["no such peer", "add_peer"]),
        (
            &PeerError::TooMany { limit: 3 },
            &["3", "`max_peers`", "remove_peer", "raise"],
        ),
        (
            &PeerError::NoReceiveBuffers { free: 2, needed: 4 },
            &["2", "4", "`slots`", "raise"],
        ),
        (
            &SendErrorKind::HeaderLength { len: 7, fixed: 8 },
            &["7", "Fixed(8)", "give it 8 bytes", "`header_mode`"],
        ),
        (
            &SendErrorKind::StagingTooLong { len: 9, max: 8 },
            &["9", "8", "StagingConfig", "in parts"],
        ),
        (&WindowError::Unsupported, &["use messages", "PROVIDERS"]),
        (
            &WindowError::WrongConnection,
            &["another connection", "exposed anew"],
        ),
        (&WindowError::Revoked, &["ask it for another"]),
        (
            &WindowError::OutOfRange {
                offset: 5,
                len: 6,
                window_len: 7,
            },
            &["6 bytes at offset 5", "7 bytes", "RemoteWindow::len"],
        ),
        (
            &WindowError::Access {
                asked: Access::WRITE,
                has: Access::READ,
            },
            &["write asked for", "gives read", "`expose`"],
        ),
        (
            &RegisterError::Device {
                kind: host,
                reason: Arc::from("it is not"),
            },
            &["it is not"],
        ),
    ]);
}

#[test]
fn memory_that_is_not_registered_says_what_to_do() {
    check(&[
        (
            &RegisterError::Fabric {
                call: "fi_mr_regattr",
                errno: FabricErrno::new(libc::ENOMEM),
            },
            &["fi_mr_regattr", "(12)", "RLIMIT_MEMLOCK"],
        ),
        (
            &RegisterError::Forked { made_by: 7 },
            &["process 7", "fabric of its own in the child"],
        ),
        (
            &RegisterError::DomainLimit { limit: 2 },
            &["2", "max_registrations"],
        ),
        (
            &LeaseError::Staged { segment: 2 },
            &["segment 2", "OutgoingSettings::staging"],
        ),
        (
            &LeaseError::NotRegistered { segment: 2 },
            &["segment 2", "Region::register"],
        ),
        (
            &LeaseError::ForeignBuffer { segment: 2 },
            &["segment 2", "Region::register"],
        ),
    ]);
}

#[test]
fn a_lack_of_room_says_what_makes_room() {
    check(&[
        (
            &RingError::Full { free: 5 },
            &["5 bytes", "drop fragments", "larger"],
        ),
        (
            &RingError::TooLong { len: 9, max: 8 },
            &["9", "8", "larger"],
        ),
        (
            &RingError::TooManyFragments { max: 3 },
            &["3", "`max_fragments`"],
        ),
        (
            &AcquireError::TimedOut {
                waited: Duration::from_secs(2),
            },
            &["2s", "drop", "more slots"],
        ),
        (
            &HeaderError::NoSlot,
            &["no header slot", "HeaderSlotConfig::slots"],
        ),
        (
            &HeaderError::TooLong { len: 9, max: 8 },
            &["9", "8", "HeaderSlotConfig::slot_size"],
        ),
        (&Blocked::HeaderSlots, &["HeaderSlotConfig::slots"]),
        (&Blocked::Buffers, &["no buffer is free"]),
        (&Blocked::Depth, &["`depth`"]),
        (&Blocked::Staging, &["StagingConfig"]),
        (&PackError::Full { need: 9, free: 8 }, &["9", "8", "flush"]),
        (
            &PackError::TooLong { len: 9, max: 8 },
            &["9", "8", "larger buffers"],
        ),
    ]);
}

#[test]
fn a_mismatch_of_formats_is_named_as_the_usual_cause() {
    let of = |kind| FormatError { offset: 4, kind };
    for kind in [
        FormatErrorKind::NotCompact { found: [0; 4] },
        FormatErrorKind::Reserved,
        FormatErrorKind::NoTag,
        FormatErrorKind::Truncated { need: 9, have: 8 },
        FormatErrorKind::Length { said: 9, have: 8 },
        FormatErrorKind::Count { said: 9, have: 8 },
    ] {
        check(&[(&of(kind), &["byte 4", "same `Format`"])]);
    }
    check(&[(
        &of(FormatErrorKind::Version { found: 9 }),
        &["version 9", "known is 1"],
    )]);
}

#[test]
fn what_fails_as_a_whole_says_what_to_do() {
    let fabric = |call, errno| Error::Fabric {
        call,
        errno: FabricErrno::new(errno),
    };
    let refused = CloseReason::ConnectFailed(FabricErrno::new(libc::ECONNREFUSED));
    check(&[
        (
            &fabric("fi_getinfo", libc::ENOSYS),
            &["fi_getinfo", "(38)", "does not have it"],
        ),
        (
            &fabric("fi_listen", libc::EADDRINUSE),
            &["fi_listen", "(98)", "another port"],
        ),
        (
            &fabric("fi_pep_bind", libc::EADDRNOTAVAIL),
            &["(99)", "address of this machine"],
        ),
        (
            &fabric("fi_cq_open", libc::EMFILE),
            &["(24)", "RLIMIT_NOFILE"],
        ),
        (
            &fabric("fi_domain", libc::EACCES),
            &["(13)", "the device's files"],
        ),
        // One that no table has.
        (&fabric("fi_fabric", 300), &["(300)", "FI_LOG_LEVEL"]),
        (&refused, &["could not connect", "(111)", "nobody listens"]),
        (
            &CloseReason::ConnectTimedOut,
            &["connect timeout", "`connect_timeout`"],
        ),
        (
            &Error::Closed(CloseReason::Finished),
            &["finished", "new endpoint"],
        ),
        (
            &Error::TooManyDomains { limit: 64 },
            &["64", "drop some", "share one"],
        ),
        (
            &Error::Forked { made_by: 7 },
            &["process 7", "fabric of its own in the child"],
        ),
    ]);
}

#[test]
fn what_is_too_large_says_which_limit_and_what_to_do() {
    check(&[
        (
            &MemoryError::TooLarge {
                asked_bytes: usize::MAX,
            },
            &["18446744073709551615 bytes", "2^63", "fewer slots"],
        ),
        (
            &crate::stream::SinkError::TooLarge { bytes: 9, room: 8 },
            &["9 bytes", "room for 8", "with more"],
        ),
        (
            &crate::storage::FileErrorKind::TooLarge,
            &["2^63 - 1 bytes", "transfer less"],
        ),
        (
            &Error::TooManyConnections { limit: 3 },
            &["3", "`max_connections`", "close some", "raise"],
        ),
        (
            &Error::NoReceiveBuffers { free: 2, needed: 4 },
            &["2", "4", "`slots`", "raise"],
        ),
    ]);
}
