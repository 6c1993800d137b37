//! The server over real providers, within one process: windows of domains of their own, whose
//! endpoints the tests drive, or do not.

mod rig;

use std::time::{Duration, Instant};

use super::*;
use rig::{PROVIDERS, Rig, SOON, WindowClient};

/// GET and PUT of all sizes at all places, byte by byte.
#[test]
fn bytes_go_both_ways_and_nowhere_else() {
    for provider in PROVIDERS {
        let Some(mut rig) = Rig::open(provider, ObjectServerConfig::default()) else {
            continue;
        };
        let mut client = rig.client(3 << 20);
        for (at, len) in [
            (0, 1),
            (1, 2),
            (4095, 4097),
            (7, 70_001),
            (1 << 20, 2 << 20),
            ((3 << 20) - 1, 1),
        ] {
            rig.get_and_put(&mut client, at, len);
        }
        let stats = rig.channel.stats();
        assert_eq!((stats.done, stats.failed, stats.open), (12, 0, 0));
        assert_eq!(stats.endpoints, 1, "{stats:?}");
    }
}
