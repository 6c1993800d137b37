//! The tables of all handles.

use std::sync::Arc;

use fabricast::buffer::{
    BufferMut, DeviceBufferManager, Payload, Reservation, RingRegion, SharedBufferManager,
};
use fabricast::endpoint::{LocalWindow, RemoteWindow, StagingRing};
use fabricast::{Domain, Fabric, Region};

use crate::endpoint::Endpoint;
use crate::message::Kept;
use crate::table::Table;

pub(crate) static FABRICS: Table<Arc<Fabric>> = Table::new(1, "fabric");
pub(crate) static DOMAINS: Table<Arc<Domain>> = Table::new(2, "domain");
pub(crate) static REGIONS: Table<Arc<Region>> = Table::new(3, "region");
pub(crate) static POOLS: Table<SharedBufferManager> = Table::new(4, "pool");
pub(crate) static BUFFERS: Table<BufferMut> = Table::new(5, "buffer");
pub(crate) static PAYLOADS: Table<Payload> = Table::new(6, "payload");
pub(crate) static MESSAGES: Table<Kept> = Table::new(7, "message");
pub(crate) static ENDPOINTS: Table<Endpoint> = Table::new(8, "endpoint");
pub(crate) static WINDOWS: Table<LocalWindow> = Table::new(9, "window");
pub(crate) static REMOTE_WINDOWS: Table<RemoteWindow> = Table::new(10, "remote window");
pub(crate) static RINGS: Table<RingRegion> = Table::new(11, "ring");
pub(crate) static RESERVATIONS: Table<Reservation> = Table::new(12, "reservation");
pub(crate) static STAGINGS: Table<StagingRing> = Table::new(13, "staging ring");
pub(crate) static DEVICE_POOLS: Table<DeviceBufferManager> = Table::new(14, "device pool");
