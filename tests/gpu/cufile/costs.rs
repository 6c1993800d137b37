//! What the CUDA driver's calls cost that a transfer of GPU memory takes beside cuFile's own, and
//! what one costs without a byte. Run by hand on a machine with a GPU that nobody else uses; rates
//! are `file_bench`'s.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::hint::black_box;
use std::ptr;
use std::time::{Duration, Instant};

use fabricast::storage::cufile::CuFile;
use fabricast::storage::{BackEndChoice, DeviceMemory, DirectIo, IoOptions, OpenOptions};

use super::gpu::{Gpu, Memory};
use super::suite::{KIB, folder, open, pattern};

const ROUNDS: u32 = 20_000;
/// How long the stream is kept busy.
const BUSY: Duration = Duration::from_millis(100);

/// Nanoseconds of one call.
fn cost(name: &str, mut call: impl FnMut()) {
    for _ in 0..ROUNDS / 10 {
        call();
    }
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        call();
    }
    println!("{:>8} ns {name}", (begun.elapsed() / ROUNDS).as_nanos());
}

#[test]
#[ignore = "measures; for a quiet machine with a GPU"]
fn costs_of_a_call() {
    let cufile = match CuFile::get() {
        Ok(cufile) => cufile,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    cufile.ensure_context(0).expect("a context");
    let gpu = Gpu::load();
    let memory = gpu.alloc(CALL);
    driver_calls(&gpu, memory.base().addr() as c_ulonglong);
    busy_streams(&gpu);
    reads(cufile, &gpu, &memory);
}

/// Bytes of a read.
const CALL: usize = 64 * KIB;
const CALLS: usize = 256;

/// Reads out of the page cache in turns: cuFile alone, with what ours adds to it one by one, and
/// ours.
fn reads(cufile: &'static CuFile, gpu: &Gpu, memory: &Memory<'_>) {
    let (_dir, path) = folder();
    let path = path.join("file");
    std::fs::write(&path, pattern(CALLS * CALL, 1)).unwrap();
    let handle = cufile.register(open(&path, 0)).unwrap();
    let file = OpenOptions::new().flags("r").direct(DirectIo::Off);
    let file = file.open(&path).unwrap();
    let base = memory.base();
    type Call = unsafe extern "C" fn(*mut c_void) -> c_int;
    type Attribute = unsafe extern "C" fn(*mut c_void, c_int, c_ulonglong) -> c_int;
    let query = gpu.function::<Call>("cuStreamQuery");
    let synchronize = gpu.function::<Call>("cuStreamSynchronize");
    let attribute = gpu.function::<Attribute>("cuPointerGetAttribute");
    // SAFETY: null is the default stream.
    let query = || assert_eq!(unsafe { query(ptr::null_mut()) }, 0);
    // SAFETY: null is the default stream.
    let synchronize = || assert_eq!(unsafe { synchronize(ptr::null_mut()) }, 0);
    let attribute = || {
        let mut context: *mut c_void = ptr::null_mut();
        // SAFETY: the first attribute is a pointer, which is ours.
        let code = unsafe { attribute((&raw mut context).cast(), 1, base.addr() as c_ulonglong) };
        assert_eq!(code, 0);
    };
    // SAFETY: the memory is that long, and nobody else uses it meanwhile.
    let bare = |at: u64| assert_eq!(unsafe { handle.read(base, 0, CALL, at) }, Ok(CALL));
    let ours = |choice, sync, at| {
        let options = IoOptions {
            back_end: Some(choice),
            sync_default_stream: Some(sync),
            ..IoOptions::default()
        };
        // SAFETY: the memory outlives it, and nobody else uses it meanwhile.
        let mut into = unsafe { DeviceMemory::new(base.addr() as u64, 0, CALL, ()) };
        let moved = file.read_into(&mut into, .., at, &options).unwrap();
        assert_eq!(moved.bytes, CALL);
    };
    let before = |call: &dyn Fn(), at| {
        call();
        bare(at);
    };
    let ways: [(&str, &dyn Fn(u64)); 8] = [
        ("cuFile", &bare),
        ("cuStreamQuery, then cuFile", &|at| before(&query, at)),
        ("cuStreamSynchronize, then cuFile", &|at| {
            before(&synchronize, at);
        }),
        ("cuPointerGetAttribute, then cuFile", &|at| {
            before(&attribute, at);
        }),
        ("ours", &|at| ours(BackEndChoice::CuFile, true, at)),
        ("ours, the default stream left alone", &|at| {
            ours(BackEndChoice::CuFile, false, at);
        }),
        ("ours, staged", &|at| ours(BackEndChoice::Posix, true, at)),
        ("ours, staged, the default stream left alone", &|at| {
            ours(BackEndChoice::Posix, false, at);
        }),
    ];
    let mut times = [const { Vec::new() }; 8];
    for _ in 0..41 {
        for ((_, way), times) in ways.iter().zip(&mut times) {
            let begun = Instant::now();
            for at in (0..CALLS * CALL).step_by(CALL) {
                way(at as u64);
            }
            times.push(begun.elapsed() / CALLS as u32);
        }
    }
    for ((name, _), times) in ways.iter().zip(&mut times) {
        times.sort();
        println!("{:>8} ns a read of 64 KiB: {name}", times[20].as_nanos());
    }
}

fn driver_calls(gpu: &Gpu, address: c_ulonglong) {
    cost("Instant::now", || {
        black_box(Instant::now());
    });
    let init = gpu.function::<unsafe extern "C" fn(c_uint) -> c_int>("cuInit");
    // SAFETY: takes no memory; any number of calls.
    cost("cuInit", || assert_eq!(unsafe { init(0) }, 0));
    let count = gpu.function::<unsafe extern "C" fn(*mut c_int) -> c_int>("cuDeviceGetCount");
    let mut devices = 0;
    // SAFETY: writes one number, which is ours.
    cost("cuDeviceGetCount", || unsafe {
        assert_eq!(count(&raw mut devices), 0);
    });
    type Attribute = unsafe extern "C" fn(*mut c_void, c_int, c_ulonglong) -> c_int;
    let attribute = gpu.function::<Attribute>("cuPointerGetAttribute");
    let mut context: *mut c_void = ptr::null_mut();
    // SAFETY: the first attribute is a pointer, which is ours.
    cost("cuPointerGetAttribute", || unsafe {
        assert_eq!(attribute((&raw mut context).cast(), 1, address), 0);
    });
    type Get = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
    let current = gpu.function::<Get>("cuCtxGetCurrent");
    // SAFETY: writes one pointer, which is ours.
    cost("cuCtxGetCurrent", || unsafe {
        assert_eq!(current(&raw mut context), 0);
    });
    let push = gpu.function::<unsafe extern "C" fn(*mut c_void) -> c_int>("cuCtxPushCurrent_v2");
    let pop = gpu.function::<Get>("cuCtxPopCurrent_v2");
    cost("cuCtxPushCurrent and cuCtxPopCurrent", || {
        // SAFETY: the current context, which is popped again.
        assert_eq!(unsafe { push(context) }, 0);
        // SAFETY: writes one pointer, which is ours.
        assert_eq!(unsafe { pop(&raw mut context) }, 0);
    });
    for name in ["cuStreamSynchronize", "cuStreamQuery"] {
        let call = gpu.function::<unsafe extern "C" fn(*mut c_void) -> c_int>(name);
        // SAFETY: null is the default stream.
        cost(&format!("{name} of the default stream"), || unsafe {
            assert_eq!(call(ptr::null_mut()), 0);
        });
    }
}

extern "C" fn sleep(_: *mut c_void) {
    std::thread::sleep(BUSY);
}

/// Whether asking the default stream and waiting for it mean the same: work in it, and in a stream
/// that is ordered with it.
fn busy_streams(gpu: &Gpu) {
    type Call = unsafe extern "C" fn(*mut c_void) -> c_int;
    type Launch =
        unsafe extern "C" fn(*mut c_void, extern "C" fn(*mut c_void), *mut c_void) -> c_int;
    type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
    let query = gpu.function::<Call>("cuStreamQuery");
    let synchronize = gpu.function::<Call>("cuStreamSynchronize");
    let launch = gpu.function::<Launch>("cuLaunchHostFunc");
    let create = gpu.function::<Create>("cuStreamCreate");
    for (name, flags) in [("ordered with it", 0), ("of its own", 1)] {
        let mut stream = ptr::null_mut();
        // SAFETY: writes one pointer, which is ours.
        assert_eq!(unsafe { create(&raw mut stream, flags) }, 0);
        // SAFETY: the stream was just made; the function takes nothing.
        assert_eq!(unsafe { launch(stream, sleep, ptr::null_mut()) }, 0);
        // SAFETY: null is the default stream.
        let asked = unsafe { query(ptr::null_mut()) };
        let begun = Instant::now();
        // SAFETY: as above.
        assert_eq!(unsafe { synchronize(ptr::null_mut()) }, 0);
        let waited = begun.elapsed();
        println!(
            "with a busy stream {name}, cuStreamQuery of the default one answers {asked}, \
             cuStreamSynchronize waits {waited:?}"
        );
        // SAFETY: ours, and waited for before it is destroyed.
        assert_eq!(unsafe { synchronize(stream) }, 0);
        gpu.destroy(stream);
    }
    // SAFETY: null is the default stream; the function takes nothing.
    let code = unsafe { launch(ptr::null_mut(), sleep, ptr::null_mut()) };
    assert_eq!(code, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { query(ptr::null_mut()) }, 600, "it is busy");
    let begun = Instant::now();
    // SAFETY: as above.
    assert_eq!(unsafe { synchronize(ptr::null_mut()) }, 0);
    assert!(begun.elapsed() > BUSY / 2, "it was waited for");
}
