use std::ffi::{CString, c_void};

use fabricast::Region;

use super::*;
use crate::file::{
    FCAST_BACK_END_CUFILE, FCAST_BACK_END_STAGED, fcast_file, fcast_file_moved, fcast_file_open,
};
use crate::file_transfer::{
    fcast_file_begin_read, fcast_file_read, fcast_file_transfer, fcast_file_transfer_release,
    fcast_file_transfer_wait, fcast_file_write,
};
use crate::status::FCAST_OK;

const LEN: usize = 3 << 20;
const HOST: fcast_region = fcast_region { id: 0 };

/// A region of a GPU's memory; `None`, and said: there is no GPU.
fn device_region() -> Option<(fcast_region, *mut c_void)> {
    match Region::device(LEN).build() {
        Ok(region) => {
            let start = region.as_ptr().cast::<c_void>();
            let id = REGIONS.insert(region).expect("a place");
            Some((fcast_region { id }, start))
        }
        Err(error) => {
            println!("SKIPPED: no memory of a GPU: {error}");
            None
        }
    }
}

fn open(dir: &std::path::Path) -> fcast_file {
    let path = CString::new(dir.join("run.dat").to_str().unwrap()).unwrap();
    let mut file = fcast_file { id: 0 };
    // SAFETY: texts that end with a zero, no settings, and a place for the handle.
    let opened = unsafe {
        fcast_file_open(
            path.as_ptr(),
            c"w+".as_ptr(),
            std::ptr::null(),
            &raw mut file,
        )
    };
    assert_eq!(opened, FCAST_OK);
    file
}

fn write(file: fcast_file, region: fcast_region, data: *const c_void, at: u64) -> fcast_file_moved {
    let mut moved = fcast_file_moved::default();
    let none = std::ptr::null();
    // SAFETY: `data` has `LEN` bytes, which nobody writes to.
    let status = unsafe { fcast_file_write(file, region, data, LEN, at, none, &raw mut moved) };
    assert_eq!((status, moved.bytes), (FCAST_OK, LEN as u64));
    moved
}

#[test]
fn a_file_goes_into_a_gpus_memory_and_out_of_it() {
    let Some((region, start)) = device_region() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path());
    let content: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    write(file, HOST, content.as_ptr().cast(), 0);

    let mut transfer = fcast_file_transfer { id: 0 };
    let none = std::ptr::null();
    // SAFETY: the region has `LEN` bytes, which nobody else uses.
    let begun =
        unsafe { fcast_file_begin_read(file, region, start, LEN, 0, none, &raw mut transfer) };
    assert_eq!(begun, FCAST_OK);
    let mut moved = fcast_file_moved::default();
    // SAFETY: a place for what was moved.
    let status = unsafe { fcast_file_transfer_wait(transfer, 60_000, &raw mut moved) };
    assert_eq!((status, moved.bytes), (FCAST_OK, LEN as u64));
    let by_gpu = [FCAST_BACK_END_STAGED, FCAST_BACK_END_CUFILE];
    assert!(by_gpu.contains(&moved.back_end), "{moved:?}");
    println!("read: {moved:?}");
    assert_eq!(fcast_file_transfer_release(transfer), FCAST_OK);

    let moved = write(file, region, start, LEN as u64);
    assert!(by_gpu.contains(&moved.back_end), "{moved:?}");
    println!("written: {moved:?}");
    let mut back = vec![0; LEN];
    let data = back.as_mut_ptr().cast::<c_void>();
    let mut moved = fcast_file_moved::default();
    // SAFETY: `back` has `LEN` bytes, which nobody else uses.
    let status =
        unsafe { fcast_file_read(file, HOST, data, LEN, LEN as u64, none, &raw mut moved) };
    assert_eq!((status, moved.bytes), (FCAST_OK, LEN as u64));
    assert!(
        back == content,
        "what went through the GPU is what was written"
    );
    REGIONS.release(region.id).unwrap();
}

#[test]
fn bytes_outside_of_a_region_are_refused() {
    let region = Region::host(4096).build().unwrap();
    let start = region.as_ptr().cast::<c_void>();
    let id = REGIONS.insert(region).unwrap();
    // SAFETY: nothing is done with the bytes.
    let made = unsafe { FileMemory::new(fcast_region { id }, start, 4096) };
    assert_eq!(made.expect("all of it").place.len(), 4096);
    // SAFETY: as above.
    let made = unsafe { FileMemory::new(fcast_region { id }, start.wrapping_byte_add(1), 4096) };
    assert!(made.is_err());
    // SAFETY: as above.
    assert!(unsafe { FileMemory::new(HOST, std::ptr::null_mut(), 1) }.is_err());
    // SAFETY: as above.
    assert!(unsafe { FileMemory::new(HOST, std::ptr::null_mut(), 0) }.is_ok());
    REGIONS.release(id).unwrap();
}
