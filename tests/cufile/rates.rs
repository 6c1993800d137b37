//! How fast bytes get from a file to GPU memory: a plain cuFile program, ours by cuFile, and ours staged; in turns, in one process.
//! Run by hand on a machine with a GPU that nobody else uses; it asserts that the bytes are right, and prints rates.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Instant;

use fabricast::storage::cufile::CuFile;
use fabricast::storage::{BackEndChoice, DeviceMemory, DirectIo, IoOptions, OpenOptions};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::gpu::Gpu;
use crate::suite::{KIB, folder, open, pattern};

const MIB: usize = 1024 * KIB;
const FILE_BYTES: usize = 512 * MIB;
const ROUNDS: usize = 11;

type Read = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, i64, i64) -> isize;

#[repr(C)]
struct Descr {
    kind: c_int,
    fd: i64,
    ops: *const c_void,
}

/// cuFile as a C program calls it.
struct Plain {
    library: Library,
    read: Read,
    handle: *mut c_void,
}

impl Drop for Plain {
    fn drop(&mut self) {
        type Deregister = unsafe extern "C" fn(*mut c_void);
        // SAFETY: the type is that of the function.
        let deregister = unsafe { self.library.get::<Deregister>(b"cuFileHandleDeregister") };
        // SAFETY: registered once, deregistered here alone.
        unsafe { deregister.expect("there")(self.handle) };
    }
}

impl Plain {
    fn register(fd: c_int) -> Self {
        type Register = unsafe extern "C" fn(*mut *mut c_void, *mut Descr) -> u64;
        let path = std::env::var_os("FABRICAST_CUFILE").unwrap_or_else(|| "libcufile.so.0".into());
        // SAFETY: the library that this process uses already.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.expect("loads");
        // SAFETY: the type is that of the function.
        let read = *unsafe { library.get::<Read>(b"cuFileRead") }.expect("there");
        // SAFETY: the type is that of the function, but for two numbers that come as one.
        let register = *unsafe { library.get::<Register>(b"cuFileHandleRegister") }.expect("there");
        let mut descr = Descr {
            kind: 1,
            fd: fd.into(),
            ops: std::ptr::null(),
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: both are ours.
        let answer = unsafe { register(&raw mut handle, &raw mut descr) };
        assert_eq!(answer & 0xFFFF_FFFF, 0, "cuFileHandleRegister");
        Self {
            library,
            read,
            handle,
        }
    }
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[test]
#[ignore = "measures; for a quiet machine with a GPU"]
fn rates_to_gpu_memory() {
    let cufile = match CuFile::get() {
        Ok(cufile) => cufile,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let gpu: &'static Gpu = Box::leak(Box::new(Gpu::load()));
    cufile.ensure_context(0).expect("a context");
    let (_dir, path) = folder();
    let path = path.join("file");
    let content = pattern(FILE_BYTES, 1);
    std::fs::write(&path, &content).unwrap();
    let _driver = cufile.driver().unwrap();
    for (direct, flags) in [(DirectIo::On, libc::O_DIRECT), (DirectIo::Off, 0)] {
        let fd = open(&path, flags);
        let plain = Plain::register(fd.as_raw_fd());
        let file = OpenOptions::new()
            .flags("r")
            .direct(direct)
            .open(&path)
            .unwrap();
        for call in [64 * KIB, MIB, 16 * MIB, FILE_BYTES] {
            measure(gpu, &plain, &file, &content, direct, call);
        }
    }
}

fn measure(
    gpu: &'static Gpu,
    plain: &Plain,
    file: &fabricast::storage::FileHandle,
    content: &[u8],
    direct: DirectIo,
    call: usize,
) {
    let memory = gpu.alloc(call);
    let base = memory.base();
    // SAFETY: the memory outlives it, and nobody else uses it meanwhile.
    let mut ours = unsafe { DeviceMemory::new(base.addr() as u64, 0, call, ()) };
    let options = |choice| IoOptions {
        back_end: Some(choice),
        task_size: Some(FILE_BYTES),
        ..IoOptions::default()
    };
    let (by_cufile, staged) = (
        options(BackEndChoice::CuFile),
        options(BackEndChoice::Posix),
    );
    let bytes = FILE_BYTES.min(call * 256);
    let offsets = || (0..bytes).step_by(call);
    let last = bytes - call;
    let mut rates = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (which, rates) in rates.iter_mut().enumerate() {
            let began = Instant::now();
            for at in offsets() {
                let done = match which {
                    // SAFETY: the memory is that long, and the handle is registered.
                    0 => unsafe { (plain.read)(plain.handle, base, call, at as i64, 0) as usize },
                    1 => {
                        file.read_into(&mut ours, .., at as u64, &by_cufile)
                            .unwrap()
                            .bytes
                    }
                    _ => {
                        file.read_into(&mut ours, .., at as u64, &staged)
                            .unwrap()
                            .bytes
                    }
                };
                assert_eq!(done, call);
            }
            rates.push(bytes as f64 / began.elapsed().as_secs_f64() / 1e9);
            assert!(memory.bytes() == content[last..last + call], "{which}");
        }
    }
    let ratio = |rates: &[Vec<f64>; 3], which: usize| {
        let pairs = rates[which].iter().zip(&rates[0]);
        median(&mut pairs.map(|(ours, plain)| ours / plain).collect::<Vec<_>>())
    };
    let (cufile_ratio, staged_ratio) = (ratio(&rates, 1), ratio(&rates, 2));
    let [one, two, three] = &mut rates;
    println!(
        "{direct:?} {:>7} KiB a call: plain cuFile {:.2} GB/s, ours by cuFile {:.2} ({cufile_ratio:.3}), staged {:.2} ({staged_ratio:.3})",
        call / KIB,
        median(one),
        median(two),
        median(three),
    );
}
