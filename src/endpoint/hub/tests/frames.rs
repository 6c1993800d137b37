//! Small messages that go out in frames.

use crate::endpoint::error::Blocked;
use crate::endpoint::event::Packing;
use crate::endpoint::link::PostRefused;
use crate::endpoint::link::fake::NetConfig;
use crate::endpoint::testing::rig::{Rig, Setup};
use crate::fabric::Shape;
use crate::protocol::connection::{CloseReason, Form};

fn packing() -> Setup {
    Setup {
        packing: Packing::UpTo(100),
        payloads: 64,
        ..Setup::default()
    }
}

/// Over both forms, with long marks and with short ones, and in each shape.
fn everywhere() -> Vec<Setup> {
    let nets = [(Form::Msg, false), (Form::Rdm, false), (Form::Rdm, true)];
    let mut setups = Vec::new();
    for (form, short_cq_data) in nets {
        for shape in [Shape::Iov, Shape::Headroom, Shape::TwoMessages] {
            let setup = packing();
            setups.push(Setup {
                net: NetConfig {
                    form,
                    short_cq_data,
                    ..setup.net
                },
                shape: Some(shape),
                headroom: 64,
                ..setup
            });
        }
    }
    setups
}

fn send_all(rig: &mut Rig, keys: std::ops::Range<u64>) {
    for key in keys {
        rig.send(key).unwrap_or_else(|refused| panic!("{key}: {refused}"));
    }
}

#[test]
fn a_burst_leaves_in_frames_and_arrives_in_order() {
    for setup in everywhere() {
        let said = format!("{setup:?}");
        let mut rig = setup.connected();
        send_all(&mut rig, 0..40);
        rig.settle();
        let all: Vec<_> = (0..40).collect();
        assert_eq!(rig.received, all, "{said}");
        assert_eq!(rig.completed, all, "{said}");
        let (sent, came) = (rig.sender().stats(), rig.receiver().stats());
        assert_eq!((sent.packed, came.packed), (39, 39), "all but the first: {said}");
        assert_eq!(sent.frames, came.frames);
        assert_eq!(sent.frames, 2, "512 bytes each: {said}");
        assert_eq!(came.messages, 40);
        rig.check_all_back();
        rig.end();
    }
}
