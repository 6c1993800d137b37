//! Providers that need a card, over a fake link that is what the provider table says of them: what
//! works there, and what is refused before anything is posted. Some of them have also run on soft
//! RDMA ([`Provider::ran_on`]).

use std::time::Duration;

use crate::Error;
use crate::buffer::Payload;
use crate::endpoint::error::{SendErrorKind, WindowError};
use crate::endpoint::event::{ConnectionEvent, Level, ReceiveEvent};
use crate::endpoint::link::fake::{CloseMode, NetConfig};
use crate::endpoint::reconnect::ReconnectPolicy;
use crate::endpoint::testing::rig::{Rig, Setup};
use crate::fabric::{Fabric, PROVIDERS, Provider, Shape};
use crate::memory::Access;
use crate::protocol::connection::CloseReason;
use crate::protocol::wire;

/// Those that work on any machine.
const SOFTWARE: [&str; 6] = ["tcp", "tcp;ofi_rxm", "net", "shm", "sockets", "udp;ofi_rxd"];

/// Rows that need a card and that connections can be made over.
fn documented() -> impl Iterator<Item = &'static Provider> {
    let needs_a_card = |row: &&Provider| !SOFTWARE.contains(&row.name);
    PROVIDERS
        .iter()
        .filter(needs_a_card)
        .filter(|row| row.refused.is_none())
}

/// Those of them whose messages have room for a header and a payload.
fn with_segments() -> impl Iterator<Item = &'static Provider> {
    documented().filter(|row| Shape::for_iov_limit(row.iov_limit) == Shape::Iov)
}

/// Where a message is one segment, buffers have room for headers.
fn setup(row: &Provider) -> Setup {
    let headroom = match Shape::for_iov_limit(row.iov_limit) {
        Shape::Iov => 0,
        Shape::Headroom | Shape::TwoMessages => 10,
    };
    Setup {
        net: NetConfig::of(row),
        headroom,
        ..Setup::default()
    }
}

/// With a connection; both ends close as the row says.
fn connected(row: &Provider, setup: Setup) -> Rig {
    let rig = setup.connected();
    let mode = match row.queues.reports_after_close {
        true => CloseMode::Reports,
        false => CloseMode::Silent,
    };
    rig.net.set_close(rig.near, mode);
    rig.net.set_close(rig.far, mode);
    rig
}

#[test]
fn there_are_such_rows() {
    let names: Vec<_> = documented().map(|row| row.name).collect();
    assert_eq!(names, ["verbs", "verbs;ofi_rxm", "efa", "cxi", "psm3"]);
    let short = |row: &&Provider| row.queues.cq_data < 8;
    assert_eq!(
        with_segments().filter(short).count(),
        4,
        "4 bytes of CQ data"
    );
    assert!(
        documented().any(|row| row.memory.endpoint_scope),
        "FI_MR_ENDPOINT"
    );
    assert!(documented().any(|row| !row.queues.wait_fd), "no descriptor");
    assert!(
        documented().any(|row| row.queues.context_cells),
        "FI_CONTEXT"
    );
    assert!(documented().any(|row| !row.queues.reports_after_close));
}

#[test]
fn messages_arrive_in_order_and_a_goodbye_loses_none() {
    for row in documented() {
        let mut rig = connected(row, setup(row));
        // More than the numbers of short marks would need to be told apart, with a window of 4.
        for key in 0..500 {
            rig.send(key)
                .unwrap_or_else(|error| panic!("{}: {error}", row.name));
            if key % 3 == 0 {
                rig.settle();
            }
        }
        rig.settle();
        assert_eq!(rig.received, (0..500).collect::<Vec<_>>(), "{}", row.name);
        rig.sender()
            .begin_close(crate::endpoint::testing::rig::far_future());
        rig.settle();
        assert_eq!(rig.ended, Some(CloseReason::Finished), "{}", row.name);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn what_is_in_flight_at_a_loss_comes_back_and_the_next_connection_works() {
    for row in documented() {
        let again = Setup {
            reconnect: ReconnectPolicy::fixed(Duration::from_millis(1)),
            max_connections: 4,
            ..setup(row)
        };
        let mut rig = connected(row, again);
        for round in 0..3 {
            for key in 0..4 {
                rig.send(10 * round + key).unwrap();
            }
            rig.net.shut_down(rig.conn);
            rig.net.shut_down(rig.far_conn());
            rig.poll_sender();
            assert_eq!(rig.cuts as u64, round + 1, "{}", row.name);
            assert_eq!(rig.failed.len() as u64, 4 * (round + 1), "{}", row.name);
            rig.check_all_back();
            rig.pass(Duration::from_millis(1));
            rig.settle();
            assert!(rig.connected, "{}", row.name);
            rig.conn = rig
                .sender()
                .conn()
                .map(crate::endpoint::link::LinkConn::key)
                .unwrap();
            rig.send(1000 + round).unwrap();
            rig.settle();
            assert_eq!(rig.received.last(), Some(&(1000 + round)), "{}", row.name);
        }
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn a_receiver_that_goes_leaves_nothing_behind() {
    for row in documented() {
        let mut rig = connected(row, setup(row));
        for key in 0..4 {
            rig.send(key).unwrap();
        }
        rig.receiver = None;
        rig.settle();
        assert!(rig.ended.is_some(), "{}", row.name);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn one_segment_too_many_is_refused_before_anything_is_posted() {
    for row in with_segments() {
        let mut rig = connected(row, setup(row));
        let posted = rig.net.sends_of(rig.conn).len();
        // The header is a segment, too.
        let segments: Vec<_> = (0..row.iov_limit as u64).map(|n| rig.payload(n)).collect();
        let payload = Payload::from_iter(segments);
        let refused = rig.sender().send_data(payload, b"head", 7).unwrap_err();
        let SendErrorKind::TooManySegments { .. } = refused.kind else {
            panic!("{}: {}", row.name, refused.kind);
        };
        assert_eq!(
            refused.given.segments().len(),
            row.iov_limit,
            "{}",
            row.name
        );
        drop(refused);
        assert_eq!(rig.net.sends_of(rig.conn).len(), posted, "{}", row.name);
        assert_eq!(rig.sender().stats().posted, 0);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn writes_carry_data_where_8_bytes_go_and_are_refused_in_words_elsewhere() {
    for row in with_segments() {
        let mut with_windows = setup(row);
        with_windows.windows.windows = 4;
        with_windows.receive_slots = 40;
        let mut rig = connected(row, with_windows);
        let connection = rig.said.iter().find_map(|event| match event {
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                Some(*connection)
            }
            _ => None,
        });
        let memory = crate::memory::Region::host(4096).build().unwrap();
        let slice = memory.slice(0..4096).unwrap();
        let local = rig
            .receiver()
            .expose(connection.unwrap(), slice.into(), Access::WRITE);
        let local = local.unwrap();
        let remote = rig.sender().open_window(&local.descriptor()).unwrap();
        let payload = rig.payload(5);
        let index = payload.index();
        let place = remote.at(0);
        let wrote = rig
            .sender()
            .write(payload.into(), place, Some(1), Level::Delivered, 5);
        let refused = wrote.expect_err("no documented row but cxi has 8 bytes");
        let told = refused.kind.to_string();
        let SendErrorKind::Window(WindowError::NoImmediateData { .. }) = refused.kind else {
            panic!("{}: {told}", row.name);
        };
        assert!(told.contains("immediate data"), "{told}");
        drop(refused);
        assert!(rig.net.sends_of(rig.conn).is_empty(), "{}", row.name);
        // Without data it goes.
        let payload = rig.payload(6);
        rig.owed.insert(6, payload.index());
        assert_eq!(payload.index(), index);
        rig.sender()
            .write(payload.into(), remote.at(0), None, Level::Delivered, 6)
            .unwrap();
        rig.settle();
        assert_eq!(rig.completed, [6], "{}", row.name);
        drop(local);
        rig.settle();
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn a_row_that_is_refused_says_why_before_libfabric_is_asked() {
    for row in PROVIDERS {
        let Some(reason) = row.refused else { continue };
        let error = Fabric::builder().provider(row.name).open().unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn depths_that_short_marks_can_not_tell_apart_are_refused() {
    let deep = Setup {
        receive_depth: wire::SHORT_DEPTH_MAX + 1,
        ..setup(documented().find(|row| row.name == "efa").expect("efa"))
    };
    let mut rig = deep.rig();
    rig.settle();
    let Some(CloseReason::RefusedPeer(refusal) | CloseReason::Refused(refusal)) = rig.ended else {
        panic!("{:?}", rig.ended);
    };
    assert_eq!(refusal.code(), wire::RefusalCode::RECEIVE_DEPTH);
    rig.end();
}
