//! The tables of the groups are what the code does, for each endpoint: defaults, ranges, and that a
//! setting of others is refused.

use std::time::Duration;

use crate::Error;
use crate::buffer::{HeaderSlotConfig, SharedBufferManager};
use crate::endpoint::event::{DeadlinePolicy, Inject, Level, Packing};
use crate::endpoint::settings::{
    ConnectionSettings, IncomingSettings, OutgoingSettings, SettingsOf,
};
use crate::endpoint::testing::documented_settings::{Other, Setting, compare_group};
use crate::endpoint::{AcceptPolicy, Keepalive, LongMessages, ReceiveConfig, ReconnectPolicy};
use crate::fabric::{EndpointSettings, Shape};
use crate::protocol::wire::HeaderMode;

/// Each endpoint, by the word that the tables have for it.
const ALL: [(SettingsOf, &str); 6] = [
    (SettingsOf::Send, "send"),
    (SettingsOf::Buffered, "buffered"),
    (SettingsOf::Publish, "publish"),
    (SettingsOf::Connectionless, "connectionless"),
    (SettingsOf::Receive, "receive"),
    (SettingsOf::Subscribe, "subscribe"),
];

type Of<S> = (SettingsOf, S);

#[test]
fn the_table_of_connection_settings_is_what_the_code_does() {
    type Given = Of<ConnectionSettings>;
    let settings: &[Setting<Given>] = &[
        Setting {
            name: "connect_timeout",
            get: |(_, s)| s.connect_timeout.into(),
            set: |(of, s), v| (of, s.connect_timeout(v.time())),
        },
        Setting {
            name: "close_timeout",
            get: |(_, s)| s.close_timeout.into(),
            set: |(of, s), v| (of, s.close_timeout(v.time())),
        },
        Setting {
            name: "unresponsive_after",
            get: |(_, s)| s.liveness.unresponsive.into(),
            set: |(of, s), v| (of, s.lost_after(None).unresponsive_after(v.limit())),
        },
        Setting {
            name: "lost_after",
            get: |(_, s)| s.liveness.lost.into(),
            set: |(of, s), v| (of, s.unresponsive_after(None).lost_after(v.limit())),
        },
        Setting {
            name: "fence_timeout",
            get: |(_, s)| s.fence_timeout_of().into(),
            set: |(of, s), v| (of, s.fence_timeout(v.time())),
        },
        Setting {
            name: "tcp_user_timeout",
            get: |(_, s)| s.watch.user_timeout.into(),
            set: |(of, s), v| (of, s.tcp_user_timeout(v.limit())),
        },
        Setting {
            name: "max_connections",
            get: |(of, s)| s.max_connections_of(*of).into(),
            set: |(of, s), v| (of, s.max_connections(v.count())),
        },
        Setting {
            name: "windows",
            get: |(of, s)| s.windows_of(*of).into(),
            set: |(of, s), v| (of, s.windows(v.count())),
        },
    ];
    let others: &[Other<Given>] = &[
        ("keepalive", |(of, s)| {
            (of, s.keepalive(Some(Keepalive::default())))
        }),
        ("reconnect", |(of, s)| {
            (
                of,
                s.reconnect(ReconnectPolicy::fixed(Duration::from_secs(1))),
            )
        }),
        ("accept", |(of, s)| (of, s.accept(AcceptPolicy::Ask))),
        ("name", |(of, s)| (of, s.name("one of many"))),
        ("endpoint", |(of, s)| {
            (of, s.endpoint(EndpointSettings::default().tx_size(8)))
        }),
    ];
    for (of, whose) in ALL {
        compare_group(
            include_str!("connection.rs"),
            ("ConnectionSettings", whose),
            settings,
            others,
            || (of, ConnectionSettings::default()),
            |(of, settings)| settings.check(*of),
        );
    }
}

#[test]
fn the_table_of_outgoing_settings_is_what_the_code_does() {
    type Given = Of<OutgoingSettings>;
    let settings: &[Setting<Given>] = &[
        Setting {
            name: "depth",
            get: |(of, s)| s.depth_of(*of).into(),
            set: |(of, s), v| (of, s.depth(v.count())),
        },
        Setting {
            name: "deadline",
            get: |(_, s)| s.deadline.into(),
            set: |(of, s), v| (of, s.deadline(v.limit())),
        },
    ];
    let others: &[Other<Given>] = &[
        ("headers", |(of, s)| {
            (of, s.headers(HeaderSlotConfig::default()))
        }),
        ("header_mode", |(of, s)| {
            (of, s.header_mode(HeaderMode::Raw))
        }),
        ("shape", |(of, s)| (of, s.shape(Some(Shape::Iov)))),
        ("inject", |(of, s)| (of, s.inject(Inject::Off))),
        ("packing", |(of, s)| (of, s.packing(Packing::Auto))),
        ("gather", |(of, s)| (of, s.gather(false))),
        ("level", |(of, s)| (of, s.level(Level::Delivered))),
        ("deadline_policy", |(of, s)| {
            (of, s.deadline_policy(DeadlinePolicy::Notify))
        }),
        // A ring needs a GPU; it is a setting of all who send anything.
        ("staging", |given| given),
    ];
    for (of, whose) in ALL {
        if of == SettingsOf::Subscribe {
            continue;
        }
        compare_group(
            include_str!("outgoing.rs"),
            ("OutgoingSettings", whose),
            settings,
            others,
            || (of, OutgoingSettings::default()),
            |(of, settings)| settings.check(*of),
        );
    }
}

#[test]
fn header_slots_are_as_many_and_as_long_as_the_table_says() {
    let said = [
        (SettingsOf::Send, 64),
        (SettingsOf::Connectionless, 64),
        (SettingsOf::Publish, 128),
    ];
    for (of, slot_size) in said {
        let headers = OutgoingSettings::default().headers_of(of).manager();
        let headers = headers.expect("memory");
        assert_eq!(
            (headers.capacity(), headers.slot_size()),
            (256, slot_size),
            "{of:?}"
        );
    }
}

#[test]
fn the_table_of_incoming_settings_is_what_the_code_does() {
    type Given = Of<IncomingSettings>;
    let settings: &[Setting<Given>] = &[
        Setting {
            name: "max_message",
            get: |(_, s)| s.max_message.into(),
            set: |(of, s), v| (of, s.max_message(v.bytes())),
        },
        Setting {
            name: "slots",
            get: |(_, s)| s.slots_or(256).into(),
            set: |(of, s), v| (of, s.slots(v.count())),
        },
        Setting {
            name: "credits",
            get: |(_, s)| s.credits.into(),
            set: |(of, s), v| (of, s.credits(v.count())),
        },
    ];
    let others: &[Other<Given>] = &[
        ("pool", |(of, s)| {
            let pool = SharedBufferManager::allocate(4, 128).expect("memory");
            (of, s.pool(&pool))
        }),
        ("shared_pool", |(of, s)| {
            let pool = SharedBufferManager::allocate(4, 128).expect("memory");
            (of, s.shared_pool(&pool, 1..=4))
        }),
        // Buffers in a GPU's memory; it is a setting of all who receive.
        ("deliver_to", |given| given),
        ("long_messages", |(of, s)| {
            let pool = SharedBufferManager::allocate(1, 64).expect("memory");
            (of, s.long_messages(LongMessages::new(pool)))
        }),
    ];
    for (of, whose) in ALL {
        let receives = [
            SettingsOf::Receive,
            SettingsOf::Subscribe,
            SettingsOf::Connectionless,
        ];
        if !receives.contains(&of) {
            continue;
        }
        compare_group(
            include_str!("incoming.rs"),
            ("IncomingSettings", whose),
            settings,
            others,
            || (of, IncomingSettings::default()),
            |(of, settings)| settings.check(*of, settings.slots_or(256), (1, "must be more")),
        );
    }
}

/// A group that is lent twice keeps what was set before.
#[test]
fn a_group_that_is_set_twice_keeps_both() {
    let config = ReceiveConfig::default()
        .outgoing(|out| out.depth(0))
        .outgoing(|out| out.deadline(None));
    let said = format!("{config:?}");
    assert!(
        said.contains("depth: Some(0)") && said.contains("deadline: None"),
        "{said}"
    );
    let settings = OutgoingSettings::default().depth(0).deadline(None);
    let refused = settings.check(SettingsOf::Receive);
    let Err(Error::Config { field, reason, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((field, reason), ("depth", "must be 1 to 65536 operations"));
}
