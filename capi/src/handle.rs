//! The tables of all handles.

use std::sync::Arc;

use fabricast::buffer::{BufferMut, Payload, SharedBufferManager};
use fabricast::endpoint::Message;
use fabricast::{Domain, Fabric, Region};

use crate::endpoint::Endpoint;
use crate::table::Table;

pub(crate) static FABRICS: Table<Arc<Fabric>> = Table::new(1, "fabric");
pub(crate) static DOMAINS: Table<Arc<Domain>> = Table::new(2, "domain");
pub(crate) static REGIONS: Table<Arc<Region>> = Table::new(3, "region");
pub(crate) static POOLS: Table<SharedBufferManager> = Table::new(4, "pool");
pub(crate) static BUFFERS: Table<BufferMut> = Table::new(5, "buffer");
pub(crate) static PAYLOADS: Table<Payload> = Table::new(6, "payload");
pub(crate) static MESSAGES: Table<Message> = Table::new(7, "message");
pub(crate) static ENDPOINTS: Table<Endpoint> = Table::new(8, "endpoint");
