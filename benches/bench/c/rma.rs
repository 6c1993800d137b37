//! One-sided writes through the C interface.

#![allow(unsafe_code)] // Functions of C's.

use std::ffi::c_void;

use fabricast_capi::event::{
    FCAST_EVENT_CONNECTED, FCAST_EVENT_MESSAGE, FCAST_EVENT_WRITE_FAILED, FCAST_EVENT_WRITTEN,
};
use fabricast_capi::region::{fcast_region, fcast_region_release};
use fabricast_capi::send::fcast_send;
use fabricast_capi::settings::{FCAST_HEADER_FIXED, fcast_settings};
use fabricast_capi::status::FCAST_AGAIN;
use fabricast_capi::window::{
    FCAST_ACCESS_WRITE, FCAST_WINDOW_DESCRIPTOR_LEN, fcast_remote_window, fcast_remote_window_open,
    fcast_window, fcast_window_descriptor, fcast_window_expose,
};
use fabricast_capi::window_operations::fcast_window_write;

use super::{Endpoint, check, header, memory, open, settings};
use fabricast_bench::CONNECT;
use fabricast_bench::case::{Arrived, Case, HEADER, Header, Pacer, Sent};
use fabricast_bench::clock::{Deadline, Sampler};
use fabricast_bench::error::{Failure, fail};

/// Payload bytes of a mark.
const MARK: usize = 8;

fn stride(case: &Case) -> usize {
    case.size.next_multiple_of(64)
}

/// A listener with windows.
pub(crate) fn listen(case: &Case) -> Result<Endpoint, Failure> {
    let domain = open(case)?;
    let settings = fcast_settings {
        max_message: 64,
        credits: 4,
        slots: 32,
        max_connections: 1,
        windows: 1,
        ..settings()
    };
    let mut endpoint = Endpoint::listen(domain, case, &settings)?;
    endpoint.domain = Some(domain);
    Ok(endpoint)
}

/// Lets the client write until its end mark. `tell` says to it where.
pub(crate) fn expose(
    endpoint: &mut Endpoint,
    case: &Case,
    tell: impl FnOnce(String) -> Result<(), Failure>,
) -> Result<Arrived, Failure> {
    let deadline = Deadline::after(case.limit());
    let mut connection = None;
    while connection.is_none() {
        endpoint.poll(|event| {
            if event.kind == FCAST_EVENT_CONNECTED {
                connection = Some(event.connection);
            }
            Ok(())
        })?;
        deadline.check("a connection")?;
        std::thread::yield_now();
    }
    let len = case.depth * stride(case);
    let (region, base) = memory(len)?;
    let mut window = fcast_window { id: 0 };
    let (of, access) = (connection.unwrap_or_default(), FCAST_ACCESS_WRITE);
    // SAFETY: the memory is the region's, and the result is writable.
    let status = unsafe {
        fcast_window_expose(
            endpoint.handle,
            of,
            region,
            base,
            len,
            access,
            &raw mut window,
        )
    };
    check(status)?;
    check(fcast_region_release(region))?;
    let mut bytes = [0_u8; FCAST_WINDOW_DESCRIPTOR_LEN];
    // SAFETY: there is room for a descriptor.
    check(unsafe { fcast_window_descriptor(window, bytes.as_mut_ptr().cast::<c_void>()) })?;
    tell(bytes.map(|byte| byte.to_string()).join(" "))?;
    let mut sampler = Sampler::new(case.limit());
    while !sampler.done() {
        let found = endpoint.poll(|event| {
            if event.kind == FCAST_EVENT_MESSAGE {
                sampler.on_message(header(event.header, event.header_len)?);
            }
            Ok(())
        })?;
        sampler.on_poll(found)?;
    }
    sampler.arrived()
}

/// Writes with `depth` in flight for the time of the case.
pub(crate) fn run(
    case: &Case,
    to: &str,
    window: impl FnOnce() -> Result<String, Failure>,
    arrived: impl FnOnce() -> Result<Arrived, Failure>,
) -> Result<(Sent, Arrived), Failure> {
    let mut client = Client::connect(case, to)?;
    let bytes: Result<Vec<u8>, _> = window()?.split(' ').map(str::parse).collect();
    client.open(&bytes?)?;
    let mut pacer = Pacer::new(case);
    loop {
        while !client.free.is_empty() {
            let Some(header) = pacer.next() else { break };
            if header.is_end() && client.free.len() < case.depth {
                // The server leaves when it hears of the end: nothing may need it any more.
                break;
            }
            if !client.post(header)? {
                break;
            }
            pacer.sent();
        }
        let found = client.poll()?;
        pacer.on_poll(found)?;
        if pacer.is_over() && client.free.len() == case.depth {
            return pacer.finish_with(arrived()?);
        }
    }
}

struct Client {
    endpoint: Endpoint,
    window: fcast_remote_window,
    base: *const c_void,
    size: usize,
    stride: usize,
    /// Where the bytes of marks are.
    mark: *const c_void,
    /// Places in the window, and in the memory here, that nothing is under way for.
    free: Vec<u64>,
    connected: bool,
}

impl Client {
    fn connect(case: &Case, to: &str) -> Result<Self, Failure> {
        let domain = open(case)?;
        let stride = stride(case);
        let len = case.depth * stride;
        let (region, base) = memory(len + MARK)?;
        let settings = fcast_settings {
            // The marks come on top of the operations.
            depth: case.depth as u32 + 2,
            header_mode: FCAST_HEADER_FIXED,
            header_fixed: HEADER as u32,
            region,
            ..settings()
        };
        let mut endpoint = Endpoint::connect(domain, to, &settings)?;
        endpoint.domain = Some(domain);
        check(fcast_region_release(region))?;
        let mut client = Self {
            endpoint,
            window: fcast_remote_window { id: 0 },
            base,
            size: case.size,
            stride,
            mark: base.wrapping_byte_add(len),
            free: (0..case.depth as u64).collect(),
            connected: false,
        };
        let deadline = Deadline::after(CONNECT);
        while !client.connected {
            client.poll()?;
            deadline.check("a connection")?;
        }
        Ok(client)
    }

    fn open(&mut self, descriptor: &[u8]) -> Result<(), Failure> {
        let (at, len) = (descriptor.as_ptr().cast::<c_void>(), descriptor.len());
        let (sender, window) = (self.endpoint.handle, &raw mut self.window);
        // SAFETY: the descriptor is read in the call, and the result is writable.
        check(unsafe { fcast_remote_window_open(sender, 0, at, len, window) })
    }

    /// Posts a write, or sends a mark; false when the endpoint takes none now.
    #[inline]
    fn post(&mut self, header: Header) -> Result<bool, Failure> {
        let none = fcast_region { id: 0 };
        let sender = self.endpoint.handle;
        if header.is_mark() {
            let bytes = header.to_bytes();
            let (at, len) = (bytes.as_ptr().cast::<c_void>(), bytes.len());
            // SAFETY: the header is read in the call, the mark is in the region.
            let status = unsafe { fcast_send(sender, none, self.mark, MARK, at, len, u64::MAX) };
            return taken(status);
        }
        let Some(place) = self.free.pop() else {
            return Ok(false);
        };
        let offset = place * self.stride as u64;
        let data = self.base.wrapping_byte_add(offset as usize);
        let status = fcast_window_write(sender, self.window, offset, none, data, self.size, place);
        if !taken(status)? {
            self.free.push(place);
            return Ok(false);
        }
        Ok(true)
    }

    #[inline]
    fn poll(&mut self) -> Result<usize, Failure> {
        let Self {
            endpoint,
            free,
            connected,
            ..
        } = self;
        endpoint.poll(|event| {
            match event.kind {
                FCAST_EVENT_WRITTEN => free.push(event.key),
                FCAST_EVENT_WRITE_FAILED => return fail("a write failed"),
                FCAST_EVENT_CONNECTED => *connected = true,
                _ => {}
            }
            Ok(())
        })
    }
}

fn taken(status: i32) -> Result<bool, Failure> {
    match status {
        FCAST_AGAIN => Ok(false),
        _ => check(status).map(|()| true),
    }
}
