//! What each kind of endpoint asks for. That it is enough, the rig says: its queues are no longer
//! than this (`Net::fix_queues`).

use super::*;
use crate::buffer::{HeaderSlotConfig, HeaderSlotManager};
use crate::endpoint::hub::line::PIECES_IN_FLIGHT;
use crate::endpoint::hub::long_send::PIECES_MAX;
use crate::endpoint::testing::hubs::HubSetup;
use crate::endpoint::testing::rig::{Setup, receive_settings, send_settings};

fn of_receiver(settings: &HubSettings, buffers: usize) -> QueueSizes {
    InFlightMax::of_hub(settings, Form::Msg, buffers).queue_sizes()
}

#[test]
fn a_listener_has_room_for_peers_that_send_in_two_messages() {
    let setup = Setup {
        receive_depth: 16,
        ..Setup::default()
    };
    let settings = receive_settings(&setup);
    let once = settings.receives(Form::Msg);
    let sizes = of_receiver(&settings, 100);
    assert_eq!(sizes.each.1 as u32, once.with(2).max);
    assert_eq!(sizes.each.1 as u32, once.reserve + 32);
    // Nobody publishes in two messages.
    let subscriber = HubSettings {
        publishing: true,
        ..settings
    };
    let once = subscriber.receives(Form::Msg);
    assert_eq!(of_receiver(&subscriber, 100).each.1 as u32, once.max);
}

#[test]
fn windows_take_sends_of_this_side_and_completions_of_the_peers() {
    let mut settings = receive_settings(&Setup::default());
    settings.windows.operations = 8;
    let without = of_receiver(&settings, 100);
    settings.windows.windows = 1;
    let with = of_receiver(&settings, 100);
    let more = (8 + PIECES_IN_FLIGHT) as usize;
    assert_eq!(with.each.0, without.each.0 + more);
    assert_eq!(with.total.0, without.total.0 + more);
    assert_eq!((without.total.1, with.total.1), (100, 200));
    assert_eq!(without.connections, with.connections);
}

#[test]
fn a_sender_in_two_messages_has_two_sends_for_each() {
    let sizes = |shape| {
        let setup = Setup {
            depth: 10,
            shape,
            ..Setup::default()
        };
        let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).unwrap();
        let settings = send_settings(&setup, &Default::default(), &headers);
        let sizes = InFlightMax::of_hub(&settings, Form::Msg, 10).queue_sizes();
        assert_eq!(settings.one_sided_pieces(), 0, "nothing is staged");
        sizes
    };
    let one = sizes(None);
    assert_eq!(one.each.0 as u32, CONTROL_SENDS + 10 + PIECES_MAX);
    assert_eq!(one.total.0, one.each.0 + CONTROLS_PER_CONNECTION as usize);
    assert_eq!(sizes(Some(Shape::TwoMessages)).each.0, one.each.0 + 10);
}

#[test]
fn a_hub_has_pieces_for_a_long_message_on_each_connection() {
    let sizes = |sends_long, total| {
        let setup = HubSetup {
            sends_long,
            total,
            max_connections: 4,
            ..HubSetup::default()
        };
        of_receiver(&setup.settings_alone(), 100)
    };
    for (total, at_once) in [(8, 4), (3, 3)] {
        let (without, with) = (sizes(false, total), sizes(true, total));
        assert_eq!(with.each.0, without.each.0 + PIECES_MAX as usize);
        let all = (PIECES_MAX * at_once) as usize;
        assert_eq!(with.total.0, without.total.0 + all);
        assert_eq!(with.each.1, without.each.1 + 1, "the answer to an offer");
    }
}
