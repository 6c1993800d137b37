//! What serves tokens in the tests of objects in a device's memory, and the memory that they name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::{BufferMut, Payload, RegionSlice, SharedBufferManager};
use fabricast::cuda::{Device, Stream};
use fabricast::endpoint::Destination;
use fabricast::object::{ChannelEvent, ObjectChannel, ObjectServer, ObjectServerConfig, RdmaToken};
use fabricast::{Fabric, Region};

use crate::fake_cuda::Fake;

/// Of anything that is expected to happen.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// Transfers in flight while a rate is measured.
const DEPTH: usize = 4;
/// How long that takes, at most.
const MEASURED: Duration = Duration::from_millis(150);

/// Where the server's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Device,
}

/// A channel, and memory for it.
pub(crate) struct Server {
    channel: ObjectChannel,
    host: SharedBufferManager,
    device: Option<(Arc<Region>, Stream)>,
    events: Vec<ChannelEvent>,
    pub(crate) server: ObjectServer,
}

impl Server {
    /// `bytes`: of the largest transfer.
    pub(crate) fn open(fabric: &Arc<Fabric>, bytes: usize) -> Self {
        let config = ObjectServerConfig::default();
        let server = ObjectServer::open(fabric, config).expect("a server");
        let host = SharedBufferManager::allocate(DEPTH as u32, bytes).expect("a pool");
        host.region().register(server.domain()).expect("registered");
        Self {
            channel: server.channel().expect("a channel"),
            host,
            device: None,
            events: Vec::new(),
            server,
        }
    }

    /// Memory of a device for it, which is registered with its domain.
    pub(crate) fn with_device(mut self, region: Arc<Region>) -> Self {
        let stream = Stream::new(region.kind().device().expect("a device's"));
        self.device = Some((region, stream.expect("a stream")));
        self
    }

    fn buffer(&self) -> BufferMut {
        self.host.try_acquire().expect("one is free")
    }

    /// Some of the device's memory, at an odd place.
    fn slice(&self, len: usize) -> RegionSlice {
        let (region, _) = self.device.as_ref().expect("it has some");
        region.slice(13..13 + len).expect("inside")
    }

    fn stream(&self) -> &Stream {
        &self.device.as_ref().expect("it has some").1
    }

    /// Writes the bytes to where the token says.
    pub(crate) fn write(
        &mut self,
        token: &RdmaToken,
        side: Side,
        bytes: &[u8],
    ) -> Result<(), String> {
        let payload: Payload = match side {
            Side::Host => {
                let mut buffer = self.buffer();
                buffer[..bytes.len()].copy_from_slice(bytes);
                buffer.freeze(bytes.len()).into()
            }
            Side::Device => {
                let slice = self.slice(bytes.len());
                let copied = slice.copy_from_host(bytes, self.stream());
                copied.expect("copied");
                slice.into()
            }
        };
        self.post_write(token, payload)?;
        self.outcome().map(drop)
    }

    /// Reads as many bytes as the token names.
    pub(crate) fn read(&mut self, token: &RdmaToken, side: Side) -> Result<Vec<u8>, String> {
        let len = token.len() as usize;
        let into = match side {
            Side::Host => Destination::buffer(self.buffer(), len),
            Side::Device => self.slice(len).into(),
        };
        self.post_read(token, into)?;
        let Some(into) = self.outcome()? else {
            return Err("it was no read".to_owned());
        };
        let into = match into.into_buffer() {
            Ok(buffer) => return Ok(buffer[..len].to_vec()),
            Err(into) => into.into_slice().expect("what was given"),
        };
        let mut bytes = vec![0; len];
        let copied = into.copy_to_host(&mut bytes, self.stream());
        copied.map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    fn post_write(&mut self, token: &RdmaToken, payload: Payload) -> Result<(), String> {
        let until = Instant::now() + SOON;
        let posted = self.channel.handle_get(token, 0, payload, 1, until);
        posted.map_err(|refused| refused.to_string())
    }

    fn post_read(&mut self, token: &RdmaToken, into: Destination) -> Result<(), String> {
        let until = Instant::now() + SOON;
        let posted = self.channel.handle_put(token, 0, into, 1, until);
        posted.map_err(|refused| refused.to_string())
    }

    /// What became of one transfer; what a read filled.
    fn outcome(&mut self) -> Result<Option<Destination>, String> {
        loop {
            match self.events.pop() {
                Some(ChannelEvent::Written { .. }) => return Ok(None),
                Some(ChannelEvent::Read { into, .. }) => return Ok(Some(into)),
                Some(
                    ChannelEvent::WriteFailed { error, .. }
                    | ChannelEvent::ReadFailed { error, .. },
                ) => return Err(error.kind.to_string()),
                // What a failed one gives back.
                Some(_) => {}
                None => {
                    self.channel.poll(&mut self.events).expect("polls");
                }
            }
        }
    }

    /// Moves all that the token names, whatever lies there.
    pub(crate) fn push(&mut self, token: &RdmaToken, writes: bool) -> Result<(), String> {
        self.post(token, Side::Host, writes)?;
        self.outcome().map(drop)
    }

    fn post(&mut self, token: &RdmaToken, side: Side, writes: bool) -> Result<(), String> {
        let len = token.len() as usize;
        match (writes, side) {
            (true, Side::Host) => {
                let payload = self.buffer().freeze(len).into();
                self.post_write(token, payload)
            }
            (true, Side::Device) => {
                let payload = self.slice(len).into();
                self.post_write(token, payload)
            }
            (false, Side::Host) => {
                let into = Destination::buffer(self.buffer(), len);
                self.post_read(token, into)
            }
            (false, Side::Device) => {
                let into = self.slice(len).into();
                self.post_read(token, into)
            }
        }
    }

    /// GB/s of transfers of all that the token names.
    pub(crate) fn rate(
        &mut self,
        token: &RdmaToken,
        side: Side,
        writes: bool,
    ) -> Result<f64, String> {
        let (mut begun, mut posted, mut done) = (Instant::now(), 0, 0);
        // The first ones open and map.
        let warm = 2 * DEPTH;
        while done < posted || posted < warm || begun.elapsed() < MEASURED {
            let more = posted < warm || begun.elapsed() < MEASURED;
            if more && posted - done < DEPTH {
                self.post(token, side, writes)?;
                posted += 1;
                continue;
            }
            drop(self.outcome()?);
            done += 1;
            if done == warm {
                begun = Instant::now();
            }
        }
        let bytes = (done - warm) as u64 * token.len();
        Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9)
    }
}

/// All bytes of a region of a device's memory.
pub(crate) fn content(region: &Arc<Region>, stream: &Stream) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    let all = region.slice(0..region.len()).expect("all of it");
    all.copy_to_host(&mut bytes, stream).expect("copied");
    bytes
}

pub(crate) fn fill(region: &Arc<Region>, bytes: &[u8], stream: &Stream) {
    let all = region.slice(0..region.len()).expect("all of it");
    all.copy_from_host(bytes, stream).expect("copied");
}

/// CUDA's managed memory of the first device.
pub(crate) fn managed(len: usize) -> Arc<Region> {
    // Something that makes the device's context.
    let stream = Stream::new(Device::new(0).expect("a device")).expect("a stream");
    stream.synchronize().expect("idle");
    make_current();
    let mut address = 0;
    let fake = Fake::load();
    let alloc: unsafe extern "C" fn(*mut u64, usize, u32) -> i32 =
        fake.get("cuMemAllocManaged").expect("there");
    // SAFETY: the type is that of the function, and the place is ours.
    assert_eq!(unsafe { alloc(&raw mut address, len, 1) }, 0);
    // SAFETY: allocated above, and freed by what keeps it.
    unsafe { Region::external_device(address, len, Box::new(Managed(address))) }
        .expect("known to CUDA")
}

fn make_current() {
    let fake = Fake::load();
    let set: unsafe extern "C" fn(*mut std::ffi::c_void) -> i32 =
        fake.get("cuCtxSetCurrent").expect("there");
    let retain: unsafe extern "C" fn(*mut *mut std::ffi::c_void, i32) -> i32 =
        fake.get("cuDevicePrimaryCtxRetain").expect("there");
    let mut context = std::ptr::null_mut();
    // SAFETY: the type is that of the function, and the place is ours.
    assert_eq!(unsafe { retain(&raw mut context, 0) }, 0);
    // SAFETY: a context that was just answered.
    assert_eq!(unsafe { set(context) }, 0);
}

/// Where it lies.
struct Managed(u64);

impl Drop for Managed {
    fn drop(&mut self) {
        make_current();
        let free: unsafe extern "C" fn(u64) -> i32 =
            Fake::load().get("cuMemFree_v2").expect("there");
        // SAFETY: allocated by `managed`, and nobody uses it any more.
        let code = unsafe { free(self.0) };
        if !std::thread::panicking() {
            assert_eq!(code, 0);
        }
    }
}
