//! Small messages in buffers, through the C interface.

#![allow(unsafe_code)] // Functions of C's.

use std::ffi::{CString, c_void};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::Instant;

use fabricast_capi::buffered::{fcast_buffered_open, fcast_push_batch};
use fabricast_capi::coalesced::{
    FCAST_FORMAT_COMPACT, fcast_coalesced_next, fcast_small_cursor, fcast_small_message,
};
use fabricast_capi::endpoint::fcast_endpoint;
use fabricast_capi::event::{
    FCAST_EVENT_CONNECTED, FCAST_EVENT_MESSAGE, FCAST_EVENT_PUSHED, fcast_event,
};
use fabricast_capi::send::fcast_flush;
use fabricast_capi::settings::fcast_settings;
use fabricast_capi::status::FCAST_AGAIN;

use super::{Endpoint, check, open, settings};
use fabricast_bench::case::{Arrived, Case, Header, Pacer, Sent};
use fabricast_bench::clock::{Deadline, Sampler};
use fabricast_bench::error::Failure;
use fabricast_bench::{CONNECT, LONE, POLL_EVERY, per_buffer};

/// Messages that one call gives, or takes, at most.
const MESSAGES: usize = 64;

/// A listener for buffers of small messages.
pub(crate) fn listen(case: &Case) -> Result<Endpoint, Failure> {
    let domain = open(case)?;
    let network = case.of_buffers();
    let settings = fcast_settings {
        max_message: case.buffer as u32,
        credits: network.window() as u32,
        slots: (network.receive_depth() + 32) as u32,
        max_connections: 1,
        ..settings()
    };
    let mut endpoint = Endpoint::listen(domain, case, &settings)?;
    endpoint.domain = Some(domain);
    Ok(endpoint)
}

/// Takes buffers apart until the end mark.
pub(crate) fn receive(endpoint: &mut Endpoint, case: &Case) -> Result<Arrived, Failure> {
    let mut sampler = Sampler::new(case.limit());
    while !sampler.done() {
        let found = endpoint.poll(|event| match event.kind {
            FCAST_EVENT_MESSAGE => take_apart(event, &mut sampler),
            _ => Ok(()),
        })?;
        sampler.on_poll(found)?;
    }
    sampler.arrived()
}

fn take_apart(event: &fcast_event, sampler: &mut Sampler) -> Result<(), Failure> {
    let mut cursor = fcast_small_cursor {
        at: 0,
        tag: 0,
        found: 0,
        over: 0,
    };
    let mut messages = [const { MaybeUninit::<fcast_small_message>::uninit() }; MESSAGES];
    loop {
        let mut count = 0;
        let room = messages.as_mut_ptr().cast::<fcast_small_message>();
        // SAFETY: the data is valid until the next poll, and there is room for the messages.
        let status = unsafe {
            fcast_coalesced_next(
                FCAST_FORMAT_COMPACT,
                event.data,
                event.data_len,
                &raw mut cursor,
                room,
                MESSAGES,
                &raw mut count,
            )
        };
        check(status)?;
        if count == 0 {
            return Ok(());
        }
        for message in &messages[..count] {
            // SAFETY: the call wrote the first `count`.
            let message = unsafe { message.assume_init_ref() };
            black_box((message.status, message.len));
            sampler.on_message(Header::from_tag(message.tag));
        }
    }
}

struct Sender {
    endpoint: Endpoint,
    connected: bool,
    pushed: u64,
    confirmed: u64,
}

impl Sender {
    fn connect(case: &Case, to: &str) -> Result<Self, Failure> {
        let domain = open(case)?;
        let settings = fcast_settings {
            buffer_size: case.buffer as u32,
            buffers: case.depth as u32 + 16,
            flush_interval_us: case.flush_us as u32,
            depth: case.depth as u32,
            ..settings()
        };
        let to = CString::new(to).unwrap_or_default();
        let mut handle = fcast_endpoint { id: 0 };
        // SAFETY: text and settings live until the call is over, and the result is writable.
        let status = unsafe {
            fcast_buffered_open(domain, to.as_ptr(), &raw const settings, &raw mut handle)
        };
        check(status)?;
        let mut endpoint = Endpoint::new(handle);
        endpoint.domain = Some(domain);
        Ok(Self {
            endpoint,
            connected: false,
            pushed: 0,
            confirmed: 0,
        })
    }

    #[inline]
    fn poll(&mut self) -> Result<usize, Failure> {
        let Self {
            endpoint,
            connected,
            confirmed,
            ..
        } = self;
        endpoint.poll(|event| {
            match event.kind {
                FCAST_EVENT_PUSHED => *confirmed += event.value,
                FCAST_EVENT_CONNECTED => *connected = true,
                _ => {}
            }
            Ok(())
        })
    }

    /// Pushes so many messages of one tag; polls while none is taken.
    #[inline]
    fn push(
        &mut self,
        tag: u64,
        bytes: &[u8],
        mut count: usize,
        pacer: &mut Pacer,
    ) -> Result<(), Failure> {
        let message = fcast_small_message {
            tag,
            data: bytes.as_ptr().cast::<c_void>(),
            len: bytes.len(),
            status: 0,
            reserved: 0,
        };
        let messages = [message; MESSAGES];
        while count > 0 {
            let mut pushed = 0;
            let many = count.min(MESSAGES);
            // SAFETY: there are as many messages, and their bytes are here.
            let status = unsafe {
                fcast_push_batch(
                    self.endpoint.handle,
                    messages.as_ptr(),
                    many,
                    &raw mut pushed,
                )
            };
            if status == FCAST_AGAIN {
                let found = self.poll()?;
                pacer.on_poll(found)?;
                continue;
            }
            check(status)?;
            count -= pushed;
            self.pushed += pushed as u64;
        }
        Ok(())
    }

    fn settle(&mut self, pacer: &mut Pacer) -> Result<(), Failure> {
        while self.confirmed < self.pushed {
            let found = self.poll()?;
            pacer.on_poll(found)?;
        }
        Ok(())
    }
}

/// Lone messages first, then buffers full of them for the time of the case.
pub(crate) fn send<T>(
    case: &Case,
    to: &str,
    arrived: impl FnOnce() -> Result<T, Failure>,
) -> Result<(Sent, T), Failure> {
    let mut sender = Sender::connect(case, to)?;
    let deadline = Deadline::after(CONNECT);
    while !sender.connected {
        sender.poll()?;
        deadline.check("a connection")?;
    }
    let (bytes, batch) = (vec![7; case.size], per_buffer(case));
    let mut pacer = Pacer::new(case);
    let mut lone = Vec::with_capacity(LONE);
    for _ in 0..LONE {
        let pushed = Instant::now();
        sender.push(0, &bytes, 1, &mut pacer)?;
        sender.settle(&mut pacer)?;
        lone.push(u32::try_from(pushed.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    let mut buffers = 0;
    while let Some(header) = pacer.next() {
        if header.is_mark() {
            sender.push(header.to_tag(), &bytes, 1, &mut pacer)?;
            check(fcast_flush(sender.endpoint.handle))?;
        } else {
            sender.push(header.to_tag(), &bytes, batch, &mut pacer)?;
        }
        pacer.sent();
        buffers += 1;
        if buffers % POLL_EVERY == 0 {
            let found = sender.poll()?;
            pacer.on_poll(found)?;
        }
    }
    sender.settle(&mut pacer)?;
    let mut sent = pacer.finish();
    sent.half_ns = lone;
    Ok((sent, arrived()?))
}
