//! Objects through `fabricast`: the bench's client is a server of objects that writes or reads a
//! window by its token, with `depth` in flight; the bench's server lends it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fabricast::Region;
use fabricast::buffer::RegionSlice;
use fabricast::object::{
    ChannelEvent, ObjectChannel, ObjectClient, ObjectClientConfig, ObjectOperation, ObjectServer,
    ObjectServerConfig, RdmaToken,
};

use super::builder;
use crate::case::{Arrived, Case, Operation, Sent, Wait};
use crate::control::Control;
use crate::error::{Failure, fail};
use crate::object::{self, Mover};

/// Until when a transfer must be over: none comes near.
const BUDGET: Duration = Duration::from_secs(60);

fn stride(case: &Case) -> usize {
    case.size.next_multiple_of(64)
}

pub(crate) fn operation(case: &Case) -> ObjectOperation {
    match case.operation {
        Operation::ObjectPut => ObjectOperation::Put,
        _ => ObjectOperation::Get,
    }
}

/// A client. Where queues have descriptors, its thread sleeps on them; else this one spins.
pub(crate) fn client(case: &Case) -> Result<ObjectClient, Failure> {
    let config = ObjectClientConfig::default().progress_thread(case.wait == Wait::Fd);
    Ok(ObjectClient::open(&builder(case).open()?, config)?)
}

/// Lends memory until the other end is done with it.
pub(crate) fn lend(case: &Case, control: &mut Control) -> Result<Arrived, Failure> {
    let client = client(case)?;
    let region = Region::host(case.depth * stride(case)).build()?;
    let slice = region.slice(0..region.len())?;
    let memory = client.register(slice, operation(case).access());
    let memory = memory.map_err(|error| Failure::new(error.to_string()))?;
    let token = memory.token(0..memory.len(), operation(case));
    let token = token.map_err(|error| Failure::new(error.to_string()))?;
    control.say(&format!("ready {token}"))?;
    let arrived = match case.wait {
        Wait::Fd => object::hear(case, control),
        Wait::None => object::serve(case, control, || {
            client.progress();
            Ok(0)
        }),
    };
    token.done();
    arrived
}

/// The end that writes and reads.
struct Channel {
    channel: ObjectChannel,
    token: RdmaToken,
    operation: Operation,
    /// Local memory, with the number of its place in the window as the key.
    free: VecDeque<(RegionSlice, u64)>,
    stride: u64,
    events: Vec<ChannelEvent>,
}

impl Mover for Channel {
    #[inline]
    fn free(&self) -> usize {
        self.free.len()
    }

    #[inline]
    fn post(&mut self) -> Result<bool, Failure> {
        let Some((slice, key)) = self.free.pop_front() else {
            return Ok(false);
        };
        let (channel, token) = (&mut self.channel, &self.token);
        let (at, deadline) = (key * self.stride, Instant::now() + BUDGET);
        if self.operation == Operation::ObjectPut {
            match channel.handle_put(token, at, slice, key, deadline) {
                Ok(()) => Ok(true),
                Err(refused) => fail(refused.to_string()),
            }
        } else {
            match channel.handle_get(token, at, slice, key, deadline) {
                Ok(()) => Ok(true),
                Err(refused) => fail(refused.to_string()),
            }
        }
    }

    #[inline]
    fn poll(&mut self) -> Result<usize, Failure> {
        let found = self.channel.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                ChannelEvent::Written { key, payload } => {
                    let slice = payload.into_slice().ok();
                    self.free.extend(slice.map(|slice| (slice, key)));
                }
                ChannelEvent::Read { key, into } => {
                    let slice = into.into_slice().ok();
                    self.free.extend(slice.map(|slice| (slice, key)));
                }
                ChannelEvent::WriteFailed { error, .. }
                | ChannelEvent::ReadFailed { error, .. } => return fail(error.to_string()),
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Writes or reads with `depth` in flight for the time of the case.
pub(crate) fn run(
    case: &Case,
    token: &str,
    control: &mut Control,
) -> Result<(Sent, Arrived), Failure> {
    let server = ObjectServer::open(&builder(case).open()?, ObjectServerConfig::default())?;
    let region = Region::host(case.depth * stride(case)).build()?;
    region
        .register(server.domain())
        .map_err(|error| Failure::new(error.to_string()))?;
    let mut free = VecDeque::new();
    for place in 0..case.depth {
        let start = place * stride(case);
        free.push_back((region.slice(start..start + case.size)?, place as u64));
    }
    let mut channel = Channel {
        channel: server.channel()?,
        token: token.parse()?,
        operation: case.operation,
        free,
        stride: stride(case) as u64,
        events: Vec::with_capacity(64),
    };
    object::drive(case, &mut channel, control)
}
