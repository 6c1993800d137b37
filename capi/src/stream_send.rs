//! Senders of streams.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::stream::{
    BlockSource, BufferSource, DeviceSource, FileSource, Peer, SendOptions, SenderConfig, SlowPeer,
    StreamSender, Transport,
};
use fabricast::{Domain, PeerAddr};

use crate::call::call;
use crate::fabric::fcast_domain;
use crate::handle::DOMAINS;
use crate::payload::fcast_payload;
use crate::pointer::{self, Out, Sized0};
use crate::region::{KeepAlive, fcast_release_fn};
use crate::send::using;
use crate::settings::{FCAST_NEVER, FCAST_OFF};
use crate::status::{Failure, fcast_status};
use crate::stream::{fcast_stream_settings, milliseconds};
use crate::stream_source::{CallerBytes, Lent};
use crate::stream_transfer::{fcast_stream_transfer, insert};
use crate::table::Table;

pub(crate) static SENDERS: Table<StreamSender> = Table::new(37, "stream sender");

/// A sender of streams, which reads and sends with threads of its own. Any thread may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_sender {
    /// Its number; 0: none.
    pub id: u64,
}

/// Blocks carry no CRC32C.
pub const FCAST_STREAM_NO_CRC32C: u32 = 1;
/// Both sides compute the BLAKE3 of the content, and compare.
pub const FCAST_STREAM_BLAKE3: u32 = 2;
/// The content is on the receiver's device before it says that it is complete.
pub const FCAST_STREAM_SYNC: u32 = 4;
/// The receiver reads what it wrote, and checks it.
pub const FCAST_STREAM_READ_BACK: u32 = 8;
/// What the receiver has of an earlier stream that was cut is thrown away.
pub const FCAST_STREAM_RESTART: u32 = 16;

/// Blocks go by what is better over the provider.
pub const FCAST_STREAM_AUTO: u32 = 0;
/// Blocks go as messages.
pub const FCAST_STREAM_MESSAGES: u32 = 1;
/// Blocks are written into the receiver's memory (RMA).
pub const FCAST_STREAM_WRITES: u32 = 2;

/// Other peers wait for a slow one, but one that takes nothing for `slow_ms` is given up.
pub const FCAST_STREAM_SLOW_WAIT: u32 = 0;
/// Other peers go on without a slow one, which gets later what it missed.
pub const FCAST_STREAM_SLOW_CATCH_UP: u32 = 1;
/// Other peers go on, and one that has held them up for `slow_ms` is given up.
pub const FCAST_STREAM_SLOW_DROP: u32 = 2;

/// What one transfer asks for. All zeros but the size are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_options {
    /// sizeof(fcast_stream_options).
    pub size: usize,
    /// The sum of some of FCAST_STREAM_NO_CRC32C, _BLAKE3, _SYNC, _READ_BACK and _RESTART.
    pub flags: u32,
    /// FCAST_STREAM_AUTO or another.
    pub transport: u32,
    /// FCAST_STREAM_SLOW_WAIT or another.
    pub slow: u32,
    /// Of FCAST_STREAM_SLOW_WAIT and _DROP. Default 30,000.
    pub slow_ms: u32,
    /// Attempts to connect to a peer again, in a row without progress. Default 8; FCAST_OFF: none.
    pub reconnects: u32,
    /// Time without progress that ends an attempt. Default 60,000.
    pub stalled_after_ms: u32,
    /// All of it must be done within this time. Default: no limit; FCAST_NEVER: none, too.
    pub deadline_ms: u32,
    /// Of two transfers that could send, the one with the higher number does, 0 to 255.
    pub priority: u32,
    /// Bytes a second, all peers together; 0: no limit.
    pub rate: u64,
    /// Connections to each address of a peer, 1 to 64. Default: one, and twice as many as long as
    /// that makes it faster, up to one for each of both sides' `rail_threads`.
    pub rails: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Of bytes that are sent: what tells them from others of the same name, so that a stream that
    /// was cut is not gone on with by other bytes.
    pub stamp: [u8; 16],
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_stream_options {}

impl fcast_stream_options {
    fn options(&self) -> Result<SendOptions, Failure> {
        let known = FCAST_STREAM_RESTART * 2 - 1;
        if self.flags & !known != 0 {
            return Err(wrong("flags", self.flags, "the sum of known ones"));
        }
        let has = |flag: u32| self.flags & flag != 0;
        let patience = milliseconds(self.slow_ms).unwrap_or(Duration::from_secs(30));
        let mut options = SendOptions::default()
            .crc32c(!has(FCAST_STREAM_NO_CRC32C))
            .blake3(has(FCAST_STREAM_BLAKE3))
            .sync(has(FCAST_STREAM_SYNC))
            .read_back(has(FCAST_STREAM_READ_BACK))
            .restart(has(FCAST_STREAM_RESTART))
            .transport(match self.transport {
                FCAST_STREAM_AUTO => Transport::Auto,
                FCAST_STREAM_MESSAGES => Transport::Message,
                FCAST_STREAM_WRITES => Transport::Write,
                other => return Err(wrong("transport", other, "0 to 2")),
            })
            .slow(match self.slow {
                FCAST_STREAM_SLOW_WAIT => SlowPeer::Wait(patience),
                FCAST_STREAM_SLOW_CATCH_UP => SlowPeer::CatchUp,
                FCAST_STREAM_SLOW_DROP => SlowPeer::Drop(patience),
                other => return Err(wrong("slow", other, "0 to 2")),
            })
            .rate((self.rate != 0).then_some(self.rate));
        match self.reconnects {
            0 => {}
            FCAST_OFF => options = options.reconnects(0),
            attempts => options = options.reconnects(attempts),
        }
        if let Some(silence) = milliseconds(self.stalled_after_ms) {
            options = options.stalled_after(silence);
        }
        if self.deadline_ms != FCAST_NEVER {
            options = options.deadline(milliseconds(self.deadline_ms));
        }
        let priority = u8::try_from(self.priority);
        options =
            options.priority(priority.map_err(|_| wrong("priority", self.priority, "0 to 255"))?);
        if self.rails == 0 {
            return Ok(options);
        }
        let rails = u16::try_from(self.rails);
        Ok(options.rails(rails.map_err(|_| wrong("rails", self.rails, "1 to 64"))?))
    }
}

#[cold]
fn wrong(field: &str, value: u32, range: &str) -> Failure {
    Failure::invalid(format!("option {field} = {value}: must be {range}"))
}

/// # Safety
///
/// `domains`: null, or `count` of them.
pub(crate) unsafe fn domains(
    domains: *const fcast_domain,
    count: usize,
) -> Result<Vec<Arc<Domain>>, Failure> {
    // SAFETY: the caller's promise.
    let domains = unsafe { pointer::array(domains, count, "domains") }?;
    let open = domains
        .iter()
        .map(|domain| Ok(DOMAINS.share(domain.id)?.clone()));
    open.collect()
}

/// Opens a sender of streams over one domain, or over several: then a peer's n-th address is
/// reached by the n-th of them. FCAST_INVALID: a setting. Any thread.
///
/// # Safety
///
/// `domains`: NULL, or `count` of them; `settings`: NULL, or a struct whose size field is right and
/// whose key has its length; `sender`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_sender_open(
    domains: *const fcast_domain,
    count: usize,
    settings: *const fcast_stream_settings,
    sender: *mut fcast_stream_sender,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(sender, "sender") }?;
        // SAFETY: the caller's promise.
        let given: fcast_stream_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let domains = unsafe { self::domains(domains, count) }?;
        // SAFETY: the caller's promise.
        let config = unsafe { sender_config(&given) }?;
        let id = SENDERS.insert(StreamSender::over(&domains, config)?)?;
        out.set(fcast_stream_sender { id });
        Ok(())
    })
}

/// # Safety
///
/// The key has its length.
unsafe fn sender_config(given: &fcast_stream_settings) -> Result<SenderConfig, Failure> {
    let of_receiver = [
        ("credits", given.credits != 0),
        ("stalled_after_ms", given.stalled_after_ms != 0),
        ("streams", given.streams != 0),
        ("max_bytes", given.max_bytes != 0),
    ];
    if let Some((field, _)) = of_receiver.iter().find(|(_, is_set)| *is_set) {
        let text = format!("setting {field}: a sender of streams has none, leave it 0");
        return Err(Failure::invalid(text));
    }
    let mut config = SenderConfig::default();
    let mut failed = None;
    // SAFETY: the caller's promise.
    config = config.stream(|of| match unsafe { given.both(of.clone()) } {
        Ok(of) => of,
        Err(failure) => {
            failed = Some(failure);
            of
        }
    });
    match failed {
        Some(failure) => Err(failure),
        None if given.depth != 0 => Ok(config.depth(given.depth)),
        None => Ok(config),
    }
}

/// Begins to send files, and directories with all that is in them, to some peers. Returns at once;
/// the transfer goes on by itself. Each peer is a text of one address of a receiver, or of several
/// of the same one, with commas between them. Any thread.
///
/// FCAST_NOT_FOUND: there is no such file. FCAST_INVALID: an option, an address, or a name that
/// can't be sent.
///
/// # Safety
///
/// `paths` and `peers`: NULL, or as many texts that end with a zero; `options`: NULL, or a struct
/// whose size field is right; `transfer`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_send_files(
    sender: fcast_stream_sender,
    paths: *const *const c_char,
    path_count: usize,
    peers: *const *const c_char,
    peer_count: usize,
    options: *const fcast_stream_options,
    transfer: *mut fcast_stream_transfer,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(transfer, "transfer") }?;
        // SAFETY: the caller's promise.
        let given: fcast_stream_options = unsafe { pointer::sized(options, "options") }?;
        // SAFETY: the caller's promise.
        let peers = unsafe { self::peers(peers, peer_count) }?;
        // SAFETY: the caller's promise.
        let paths = unsafe { pointer::array(paths, path_count, "paths") }?;
        let mut source = FileSource::builder();
        for path in paths {
            // SAFETY: the caller's promise.
            source = source.path(unsafe { pointer::path(*path, "path") }?);
        }
        send(sender, source.build()?, peers, &given, out)
    })
}

/// Begins to send bytes under a name, as fcast_stream_send_files. They are copied as they are sent,
/// and are the library's until `release` is called with `context`, which is done also where this
/// fails; NULL: until the sender was closed. Any thread.
///
/// # Safety
///
/// `data`: NULL, or `len` bytes that stay mapped and that nobody writes to until then; `name`:
/// NULL, or a text that ends with a zero; else as fcast_stream_send_files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_send_bytes(
    sender: fcast_stream_sender,
    name: *const c_char,
    data: *const c_void,
    len: usize,
    release: fcast_release_fn,
    context: *mut c_void,
    peers: *const *const c_char,
    peer_count: usize,
    options: *const fcast_stream_options,
    transfer: *mut fcast_stream_transfer,
) -> fcast_status {
    call(|| {
        let keep = KeepAlive { release, context };
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(transfer, "transfer") }?;
        // SAFETY: the caller's promise.
        let given: fcast_stream_options = unsafe { pointer::sized(options, "options") }?;
        // SAFETY: the caller's promise.
        let peers = unsafe { self::peers(peers, peer_count) }?;
        // SAFETY: the caller's promise.
        let name = unsafe { pointer::needed_text(name, "name") }?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { pointer::bytes(data.cast::<u8>(), len, "data") }?;
        // SAFETY: the caller's promise, until `release`, which `keep` calls in its drop.
        let source = unsafe { CallerBytes::new(name, bytes, given.stamp, keep) }?;
        send(sender, source, peers, &given, out)
    })
}

/// Begins to send a payload under a name: a frozen buffer of a pool, from where it lies, without a
/// copy, whose pool's region is registered with the sender's domains (fcast_region_register); or a
/// part of a region of a GPU's memory (fcast_payload_of_region), which must not change before the
/// transfer is over, each block of which is copied once. The payload's handle is used up, unless
/// this fails. FCAST_UNSUPPORTED: it is neither, or waits for work of a GPU. Any thread.
///
/// # Safety
///
/// As fcast_stream_send_bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_send_payload(
    sender: fcast_stream_sender,
    name: *const c_char,
    payload: fcast_payload,
    peers: *const *const c_char,
    peer_count: usize,
    options: *const fcast_stream_options,
    transfer: *mut fcast_stream_transfer,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(transfer, "transfer") }?;
        // SAFETY: the caller's promise.
        let given: fcast_stream_options = unsafe { pointer::sized(options, "options") }?;
        // SAFETY: the caller's promise.
        let peers = unsafe { self::peers(peers, peer_count) }?;
        // SAFETY: the caller's promise.
        let name = unsafe { pointer::needed_text(name, "name") }?;
        using(payload, |taken| {
            let lent = Lent::of(taken)?;
            // A handle more: it comes back where a later step fails.
            let sent = match lent.clone() {
                Lent::Buffer(buffer) => BufferSource::new(name, buffer, given.stamp)
                    .map_err(Failure::from)
                    .and_then(|source| send(sender, source, peers, &given, out)),
                Lent::Device(slice) => DeviceSource::new(name, slice, given.stamp)
                    .map_err(Failure::from)
                    .and_then(|source| send(sender, source, peers, &given, out)),
            };
            sent.map_err(|failure| (failure, lent.into()))
        })
    })
}

fn send(
    sender: fcast_stream_sender,
    source: impl BlockSource,
    peers: Vec<Peer>,
    given: &fcast_stream_options,
    out: Out<fcast_stream_transfer>,
) -> Result<(), Failure> {
    let options = given.options()?;
    let transfer = SENDERS.share(sender.id)?.send(source, peers, options)?;
    insert(transfer, out)
}

/// # Safety
///
/// `peers`: null, or `count` texts that end with a zero, or are null.
unsafe fn peers(peers: *const *const c_char, count: usize) -> Result<Vec<Peer>, Failure> {
    // SAFETY: the caller's promise.
    let peers = unsafe { pointer::array(peers, count, "peers") }?;
    let of = |peer: &*const c_char| {
        // SAFETY: the caller's promise.
        let text = unsafe { pointer::needed_text(*peer, "peer") }?;
        let addresses = text.split(',').map(|text| text.trim().parse::<PeerAddr>());
        let addresses: Vec<_> = addresses.collect::<Result<_, _>>()?;
        Ok(Peer::new(addresses))
    };
    peers.iter().map(of).collect()
}

/// Ends a sender: transfers go on for at most `timeout_ms`, what is left then fails. Its handle is
/// used up. FCAST_BUSY: another call uses it. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_stream_sender_close(
    sender: fcast_stream_sender,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        SENDERS.take(sender.id)?.close(deadline);
        Ok(())
    })
}

/// Gives a sender back that was not closed: transfers that are not over fail. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_stream_sender_release(sender: fcast_stream_sender) -> fcast_status {
    call(|| SENDERS.release(sender.id))
}
