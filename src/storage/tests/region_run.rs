#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};

use super::*;
use crate::buffer::{RingConfig, RingRegion};
use crate::storage::{FileHandle, IoOptions};

const SIZE: usize = 3 * 4096;

fn file(bytes: &[u8]) -> (tempfile::NamedTempFile, FileHandle) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let handle = FileHandle::open(file.path(), "r+").unwrap();
    (file, handle)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

/// Memory that somebody else owns, and the region over it.
fn external() -> Arc<Region> {
    let mut bytes = vec![0u8; SIZE];
    let base = NonNull::new(bytes.as_mut_ptr()).unwrap();
    // SAFETY: the vector's own allocation, which it keeps when it moves, and which nobody else
    // touches.
    unsafe { Region::external(base, SIZE, Box::new(bytes)) }.unwrap()
}

#[test]
fn a_file_goes_through_a_ring_without_a_copy() {
    let content = pattern(10_000);
    let (_keep, from) = file(&content);
    let (kept, to) = file(b"");
    let mut ring =
        RingRegion::new(Region::host(SIZE).build().unwrap(), RingConfig::default()).unwrap();
    let options = IoOptions::default();
    let mut offset = 0;
    for len in [4000, 3000, 2999, 1] {
        let run = RegionRun::new(ring.reserve(len).unwrap()).unwrap();
        assert_eq!((run.len(), run.get().len()), (len, len));
        let (run, moved) = from
            .pread(run, .., offset, &options)
            .wait()
            .into_result()
            .unwrap();
        let fragment = run.into_inner().commit(moved.bytes);
        let run = RegionRun::of_fragment(fragment).unwrap();
        let outcome = to.pwrite(run, .., offset, &options).wait();
        assert_eq!(outcome.result.unwrap().bytes, len);
        assert_eq!(ring.outstanding(), 1, "the outcome has it");
        drop(outcome.buffer);
        assert_eq!(ring.outstanding(), 0);
        offset += len as u64;
    }
    assert!(std::fs::read(kept.path()).unwrap() == content);
}

#[test]
fn a_piece_that_wraps_comes_back_and_goes_as_two() {
    let content = pattern(5000);
    let (_keep, from) = file(&content);
    let (kept, to) = file(b"");
    let mut ring =
        RingRegion::new(Region::host(SIZE).build().unwrap(), RingConfig::default()).unwrap();
    drop(ring.reserve(10_000).unwrap());
    let wraps = ring.reserve(5000).unwrap();
    let mut wraps = RegionRun::new(wraps).expect_err("two runs");
    let (first, second) = wraps.segments_mut().unwrap();
    let mut pieces = [IoSliceMut::new(first), IoSliceMut::new(second)];
    assert_eq!(from.readv(&mut pieces, 0).unwrap().bytes, 5000);
    let wraps = RegionRun::of_fragment(wraps.commit(5000)).expect_err("two runs");
    let (first, second) = wraps.as_slices().unwrap();
    assert!(!second.is_empty());
    let pieces = [IoSlice::new(first), IoSlice::new(second)];
    assert_eq!(to.writev(&pieces, 0).unwrap().bytes, 5000);
    assert!(std::fs::read(kept.path()).unwrap() == content);
}

#[test]
fn memory_of_others_needs_a_promise() {
    let content = pattern(6000);
    let (_keep, from) = file(&content);
    let (kept, to) = file(b"");
    let options = IoOptions::default();
    let mut ring = RingRegion::new(external(), RingConfig::default()).unwrap();
    let reservation = RegionRun::new(ring.reserve(6000).unwrap()).expect_err("who writes there?");
    // SAFETY: nobody else uses the memory.
    let run = unsafe { RegionRun::external(reservation) }.unwrap();
    let outcome = from.pread(run, .., 0, &options).wait();
    assert_eq!(outcome.result.unwrap().bytes, 6000);
    let fragment = outcome.buffer.into_inner().commit(6000);
    let fragment = RegionRun::of_fragment(fragment).expect_err("who writes there?");
    // SAFETY: as above.
    let run = unsafe { RegionRun::of_external_fragment(fragment) }.unwrap();
    let outcome = to.pwrite(run, 1000.., 1000, &options).wait();
    assert_eq!(outcome.result.unwrap().bytes, 5000);
    let there = std::fs::read(kept.path()).unwrap();
    assert!(there[1000..] == content[1000..]);
    drop(outcome.buffer);
    assert_eq!(ring.outstanding(), 0);
    let wraps = ring.reserve(SIZE).unwrap();
    // SAFETY: as above.
    let wraps = unsafe { RegionRun::external(wraps) };
    assert_eq!(wraps.expect_err("two runs").len(), SIZE);
}

#[test]
fn a_slice_is_read_into_and_sent_on() {
    let content = pattern(SIZE);
    let (_keep, from) = file(&content);
    let (kept, to) = file(b"");
    let options = IoOptions::default();
    for region in [external(), Region::host(SIZE).build().unwrap()] {
        let slice = region.slice(100..9000).unwrap();
        // SAFETY: the other clones of the slice are not used meanwhile.
        let mut run = unsafe { RegionRun::of_slice(slice.clone()) };
        let moved = from.read_into(&mut run, 50.., 7, &options).unwrap();
        assert_eq!(moved.bytes, 8850);
        let slice = run.into_inner();
        assert_eq!(slice.as_ptr(), region.as_ptr().wrapping_add(100));
        // SAFETY: as above.
        let run = unsafe { RegionRun::of_slice(slice) };
        to.write_from(&run, 50.., 0, &options).unwrap();
        assert!(std::fs::read(kept.path()).unwrap() == content[7..7 + 8850]);
    }
}
