//! `CallerSinks`: where streams go, by a table of functions of the program's.

#![allow(unsafe_code)] // Functions and memory of the program's.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fabricast::buffer::RegionSlice;
use fabricast::stream::{
    Block, BlockSink, DeviceSink, Kept, ReadBack, SinkError, SinkFactory, Stop, StreamOffer,
};

use crate::inside::inside;
use crate::pointer::{self, Sized0};
use crate::region::{KeepAlive, fcast_region, fcast_release_fn};
use crate::send::slice_in;
use crate::status::{
    FCAST_AGAIN, FCAST_BUSY, FCAST_DATA, FCAST_NO_RESOURCES, FCAST_OK, Failure, fcast_status,
    name_of,
};
use crate::stream_offer::{
    fcast_stream_block, fcast_stream_kept, fcast_stream_offer, gathered, shown, starts,
};

/// Memory that a stream goes into: all of its files, one behind the other. Its layout does not
/// change.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_place {
    /// The region that it is in, of the host or of a GPU. {0}: none, blocks are written by the
    /// function `write`.
    pub region: fcast_region,
    /// Its first byte.
    pub data: *mut c_void,
    /// Its bytes: at least those of the stream.
    pub len: usize,
    /// 0.
    pub reserved: u64,
}

/// Where streams go: functions of the program's. Each gets `context` first, and answers a status:
///
/// FCAST_OK: it is done. FCAST_BUSY: another stream of the same names is under way. FCAST_DATA:
/// what is kept of an earlier stream is of another content. FCAST_NO_RESOURCES: no space is left.
/// All others: the sink failed. The sender is told which function answered what.
///
/// They are called by threads of the receiver, several at once, with nothing locked; for one stream
/// `begin`, `resume`, `write` for each block that is missing (several at once, in any order, each
/// once), `finish`, `close`. They may call this interface, but for fcast_stream_receiver_close and
/// what ends a service of objects (FCAST_BUSY), and must not throw. What they get is good during
/// the call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_sink_calls {
    /// sizeof(fcast_stream_sink_calls).
    pub size: usize,
    /// What the functions get first.
    pub context: *mut c_void,
    /// Called once, when the sink is needed no more: nothing else is called afterwards. It is
    /// called where the receiver could not be opened, too. May be NULL.
    pub release: fcast_release_fn,
    /// A stream is offered: FCAST_OK takes it. `*sink` is what the other functions get. `place`:
    /// where memory is filled in, blocks are put there, and `write` is not called for them; nobody
    /// else uses the memory until `close`. It should not take long: other streams wait. Must not be
    /// NULL.
    pub begin: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            offer: *const fcast_stream_offer,
            sink: *mut *mut c_void,
            place: *mut fcast_stream_place,
        ) -> fcast_status,
    >,
    /// Calls fcast_stream_kept_add for each block that is there from an earlier stream of the same
    /// key and stamp. It is not called where blocks carry no CRC32C, or all is to begin anew. NULL:
    /// there are none.
    pub resume: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            sink: *mut c_void,
            kept: fcast_stream_kept,
        ) -> fcast_status,
    >,
    /// Takes the bytes of a block, whose CRC32C was found right. May be NULL where each stream has
    /// a place.
    pub write: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            sink: *mut c_void,
            block: *const fcast_stream_block,
            data: *const c_void,
        ) -> fcast_status,
    >,
    /// All blocks are there: the stream is complete when this answers FCAST_OK. May be NULL.
    pub finish:
        Option<unsafe extern "C" fn(context: *mut c_void, sink: *mut c_void) -> fcast_status>,
    /// The stream is over: called once for each that was taken, last. `is_complete`: all is there,
    /// and `finish` has answered FCAST_OK; else it was cut or has failed. May be NULL.
    pub close:
        Option<unsafe extern "C" fn(context: *mut c_void, sink: *mut c_void, is_complete: bool)>,
}

// SAFETY: C's layout, a `usize` first; 0 and null are values of all its fields.
unsafe impl Sized0 for fcast_stream_sink_calls {}

/// The table of a program, and what tells it that the table is needed no more.
struct SinkCaller {
    calls: fcast_stream_sink_calls,
    _release: KeepAlive,
}

// SAFETY: the pointer is not followed here, and the interface says that the functions are called on
// any thread, by several at once.
unsafe impl Send for SinkCaller {}
// SAFETY: as above.
unsafe impl Sync for SinkCaller {}

/// Asks the program for a sink of each stream.
pub(crate) struct CallerSinks(Arc<SinkCaller>);

impl fmt::Debug for CallerSinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerSinks").finish_non_exhaustive()
    }
}

impl CallerSinks {
    /// Takes the table; `release` is called in any case but that its size is wrong.
    ///
    /// # Safety
    ///
    /// Null, or a struct whose size field is right, and its functions may be called as it says.
    pub(crate) unsafe fn new(calls: *const fcast_stream_sink_calls) -> Result<Self, Failure> {
        if calls.is_null() {
            return Err(pointer::null("sink"));
        }
        // SAFETY: the caller's promise.
        let calls: fcast_stream_sink_calls = unsafe { pointer::sized(calls, "sink") }?;
        let caller = SinkCaller {
            calls,
            _release: KeepAlive {
                release: calls.release,
                context: calls.context,
            },
        };
        match calls.begin {
            Some(_) => Ok(Self(Arc::new(caller))),
            None => Err(pointer::null("sink: begin")),
        }
    }
}

/// What the status of a function means, but for FCAST_OK.
#[cold]
fn sink_error(function: &str, status: fcast_status) -> SinkError {
    match status {
        FCAST_AGAIN | FCAST_BUSY => SinkError::Busy,
        FCAST_DATA => SinkError::SourceChanged,
        FCAST_NO_RESOURCES => SinkError::Os {
            what: format!("{function} of the sink"),
            errno: libc::ENOSPC,
        },
        status => {
            let name = name_of(status).to_string_lossy();
            SinkError::Other(format!("{function} of the sink answered {status} ({name})"))
        }
    }
}

fn answer(function: &str, status: fcast_status) -> Result<(), SinkError> {
    match status {
        FCAST_OK => Ok(()),
        status => Err(sink_error(function, status)),
    }
}

#[cold]
fn other(failure: &Failure) -> SinkError {
    SinkError::Other(failure.text.clone().into_owned())
}

/// Where the blocks of a stream go.
enum BlockPlace {
    /// The program's function.
    Function,
    /// Memory of the host, which nobody else uses.
    Host(RegionSlice),
    /// Memory of a GPU.
    Device(Box<dyn BlockSink>),
}

/// The program's sink of one stream.
struct CallerSink {
    caller: Arc<SinkCaller>,
    sink: *mut c_void,
    place: BlockPlace,
    starts: Vec<u64>,
    is_complete: AtomicBool,
}

// SAFETY: the pointer is not followed here, and the interface says that any thread uses it.
unsafe impl Send for CallerSink {}
// SAFETY: as above, and that several do at once.
unsafe impl Sync for CallerSink {}

impl fmt::Debug for CallerSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerSink").finish_non_exhaustive()
    }
}

impl Drop for CallerSink {
    fn drop(&mut self) {
        if let Some(close) = self.caller.calls.close {
            let (context, sink) = (self.caller.calls.context, self.sink);
            let is_complete = *self.is_complete.get_mut();
            // SAFETY: `begin` gave the sink, which nobody uses any more; the program has promised
            // that the function may be called so.
            inside(|| unsafe { close(context, sink, is_complete) });
        }
    }
}

impl SinkFactory for CallerSinks {
    fn make(&self, offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        let calls = &self.0.calls;
        let Some(begin) = calls.begin else {
            return Err(SinkError::Other("the sink takes nothing".to_owned()));
        };
        let starts = starts(offer);
        let mut given = fcast_stream_place {
            region: fcast_region { id: 0 },
            data: std::ptr::null_mut(),
            len: 0,
            reserved: 0,
        };
        let mut sink = std::ptr::null_mut();
        let status = shown(offer, &starts, |told| {
            let places = (&raw mut sink, &raw mut given);
            // SAFETY: the program has promised that it may be called so; what it gets is there
            // during the call.
            inside(|| unsafe { begin(calls.context, told, places.0, places.1) })
        });
        answer("begin", status.map_err(|failure| other(&failure))?)?;
        // From here on it is closed whatever comes.
        let mut made = CallerSink {
            caller: Arc::clone(&self.0),
            sink,
            place: BlockPlace::Function,
            starts,
            is_complete: AtomicBool::new(false),
        };
        made.place = place_of(&given, offer, calls.write.is_some())?;
        Ok(Box::new(made))
    }
}

/// Where blocks go that the program has said this of.
fn place_of(
    given: &fcast_stream_place,
    offer: &StreamOffer,
    writes: bool,
) -> Result<BlockPlace, SinkError> {
    let bytes = offer.manifest.bytes();
    if given.region.id == 0 {
        let text = "the sink gave no place, and has no function write";
        return match writes || bytes == 0 {
            true => Ok(BlockPlace::Function),
            false => Err(SinkError::Other(text.to_owned())),
        };
    }
    let room = given.len as u64;
    let Some(len) = usize::try_from(bytes).ok().filter(|_| bytes <= room) else {
        return Err(SinkError::TooLarge { bytes, room });
    };
    let slice = slice_in(given.region, given.data.addr(), len);
    let slice = slice.map_err(|failure| other(&failure))?;
    if !slice.region().is_device() {
        return Ok(BlockPlace::Host(slice));
    }
    // One of its own for each stream: what has arrived is told by `close`.
    let sinks = DeviceSink::new(move |_| Ok(slice.clone()));
    Ok(BlockPlace::Device(sinks.make(offer)?))
}

/// Puts bytes into memory of the program's, from a byte of it on.
fn put(slice: &RegionSlice, at: u64, bytes: &[u8]) -> Result<(), SinkError> {
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    if at > slice.len() || bytes.len() > slice.len() - at {
        return Err(SinkError::Other("a block out of its place".to_owned()));
    }
    let place = slice.as_ptr().wrapping_add(at);
    // SAFETY: both have so many bytes, by the check above, and the slice keeps its region. The
    // program has promised that nobody else uses them until the sink is closed
    // (`fcast_stream_sink_calls`), and each block is written once, so that no other thread does.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    Ok(())
}

impl BlockSink for CallerSink {
    fn open(&self, offer: &StreamOffer, stop: &Stop) -> Result<Kept, SinkError> {
        if let BlockPlace::Device(device) = &self.place {
            device.open(offer, stop)?;
        }
        let calls = &self.caller.calls;
        let resume = calls.resume.filter(|_| offer.crc32c && !offer.restart);
        let Some(resume) = resume else {
            return Ok(Kept::default());
        };
        let gathered = gathered(offer, |kept| {
            // SAFETY: as in `begin`, which gave the sink.
            inside(|| unsafe { resume(calls.context, self.sink, kept) })
        });
        let (status, kept) = gathered.map_err(|failure| other(&failure))?;
        answer("resume", status)?;
        Ok(kept)
    }

    fn write(&self, block: Block, crc: u32, bytes: &[u8]) -> Result<(), SinkError> {
        let start = self.starts.get(block.entry).copied().unwrap_or(u64::MAX);
        let start = start.saturating_add(block.offset);
        match &self.place {
            BlockPlace::Device(device) => device.write(block, crc, bytes),
            BlockPlace::Host(slice) => put(slice, start, bytes),
            BlockPlace::Function => {
                let calls = &self.caller.calls;
                let Some(write) = calls.write else {
                    return Err(SinkError::Other("the sink writes nothing".to_owned()));
                };
                let told = fcast_stream_block::new(&block, crc, start);
                let data = bytes.as_ptr().cast::<c_void>();
                let status = inside(|| {
                    // SAFETY: as in `begin`, which gave the sink; the block has as many bytes as it
                    // says.
                    unsafe { write(calls.context, self.sink, &raw const told, data) }
                });
                answer("write", status)
            }
        }
    }

    fn path(&self) -> Option<String> {
        match &self.place {
            BlockPlace::Device(device) => device.path(),
            _ => None,
        }
    }

    fn finish(&self, stop: &Stop) -> Result<ReadBack, SinkError> {
        if let BlockPlace::Device(device) = &self.place {
            device.finish(stop)?;
        }
        let calls = &self.caller.calls;
        if let Some(finish) = calls.finish {
            // SAFETY: as in `begin`, which gave the sink.
            let status = inside(|| unsafe { finish(calls.context, self.sink) });
            answer("finish", status)?;
        }
        self.is_complete.store(true, Ordering::Relaxed);
        Ok(ReadBack::default())
    }

    fn abandon(&self) {}
}
