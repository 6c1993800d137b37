//! A hub's wakers in the pools that it waits for: they go with it, also where it was never made.

use std::sync::{Arc, Mutex};

use crate::buffer::{HeaderSlotConfig, HeaderSlotManager, SharedBufferManager};
use crate::endpoint::event::SendEvent;
use crate::endpoint::hub::Hub;
use crate::endpoint::link::fake::{FakeLink, FakeWait, Net, NetConfig};
use crate::endpoint::testing::rig::{SLOT_BYTES, Setup, send_settings};
use crate::fabric::Shape;

#[test]
fn a_hub_that_can_not_be_made_leaves_no_waker_behind() {
    for iov_limit in [1, 4] {
        let setup = Setup {
            net: NetConfig {
                iov_limit,
                ..NetConfig::default()
            },
            // What a provider of one segment can't do: known when the pool has its waker already.
            shape: Some(Shape::Iov),
            ..Setup::default()
        };
        let pool = SharedBufferManager::allocate(16, SLOT_BYTES * 2).unwrap();
        let headers = HeaderSlotManager::new(HeaderSlotConfig {
            slots: 8,
            slot_size: 64,
        })
        .unwrap();
        let settings = send_settings(&setup, &Arc::new(Mutex::new(Vec::new())), &headers);
        let hub = Hub::<FakeLink, SendEvent>::listen(
            Net::new(setup.net).link(),
            Arc::new(FakeWait),
            setup.clock.clone(),
            pool.clone(),
            settings,
        );
        assert_eq!(hub.is_ok(), iov_limit > 1, "{:?}", hub.err());
        let wakers = usize::from(hub.is_ok());
        assert_eq!((pool.wakers(), headers.wakers()), (wakers, wakers));
        drop(hub);
        assert_eq!((pool.wakers(), headers.wakers()), (0, 0));
    }
}
