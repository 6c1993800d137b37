use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A producer's tensor over bytes of the host.
struct Producer {
    managed: DlManagedTensor,
    versioned: DlManagedTensorVersioned,
    bytes: Vec<u8>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    deleted: AtomicUsize,
}

unsafe extern "C" fn delete(tensor: *mut DlManagedTensor) {
    // SAFETY: the test's own tensor, whose context is its producer.
    let producer = unsafe { (*tensor).manager_ctx }.cast::<Producer>();
    // SAFETY: the producer lives until the end of its test.
    let deleted = unsafe { &(*producer).deleted };
    deleted.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn delete_versioned(tensor: *mut DlManagedTensorVersioned) {
    // SAFETY: as above.
    let producer = unsafe { (*tensor).manager_ctx }.cast::<Producer>();
    // SAFETY: as above.
    let deleted = unsafe { &(*producer).deleted };
    deleted.fetch_add(1, Ordering::SeqCst);
}

fn producer(shape: &[i64], strides: Option<&[i64]>, device_type: i32) -> &'static mut Producer {
    let tensor = DlTensor {
        data: std::ptr::null_mut(),
        device: DlDevice {
            device_type,
            device_id: 0,
        },
        ndim: shape.len() as i32,
        dtype: DlDataType {
            code: 2,
            bits: 32,
            lanes: 1,
        },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 4,
    };
    let made = Box::leak(Box::new(Producer {
        managed: DlManagedTensor {
            dl_tensor: tensor,
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        versioned: DlManagedTensorVersioned {
            version: [1, 1],
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete_versioned),
            flags: 0,
            dl_tensor: tensor,
        },
        bytes: vec![0; 4096],
        shape: shape.to_vec(),
        strides: strides.unwrap_or_default().to_vec(),
        deleted: AtomicUsize::new(0),
    }));
    let context: *mut Producer = made;
    for tensor in [&mut made.managed.dl_tensor, &mut made.versioned.dl_tensor] {
        tensor.data = made.bytes.as_mut_ptr().cast();
        tensor.shape = made.shape.as_mut_ptr();
        if strides.is_some() {
            tensor.strides = made.strides.as_mut_ptr();
        }
    }
    made.managed.manager_ctx = context.cast();
    made.versioned.manager_ctx = context.cast();
    made
}

/// The region, and how often the deleter was called by then.
fn import(made: &'static Producer) -> (Result<Arc<Region>, MemoryError>, usize) {
    let tensor: *const DlManagedTensor = &raw const made.managed;
    // SAFETY: the test's own, never freed, and nobody looks at its bytes.
    let region = unsafe { Region::from_dlpack(tensor.cast_mut()) };
    (region, made.deleted.load(Ordering::SeqCst))
}

#[test]
fn a_tensor_of_the_host_is_given_back_with_the_last_slice() {
    let made = producer(&[3, 5], None, HOST);
    let (region, deleted) = import(made);
    let region = region.unwrap();
    assert_eq!((region.len(), deleted), (60, 0));
    assert_eq!(region.as_ptr().addr(), made.bytes.as_ptr().addr() + 4);
    assert_eq!(region.kind(), RegionKind::External);
    let slice = region.slice(0..60).unwrap();
    drop(region);
    assert_eq!(made.deleted.load(Ordering::SeqCst), 0);
    drop(slice);
    assert_eq!(made.deleted.load(Ordering::SeqCst), 1);
}

#[test]
fn what_does_not_lie_in_one_run_is_refused_and_given_back() {
    for (shape, strides, fits) in [
        (&[3_i64, 5][..], Some(&[5_i64, 1][..]), true),
        (&[3, 5], Some(&[1, 3]), false),
        (&[3, 5], Some(&[10, 1]), false),
        (&[1, 5], Some(&[77, 1]), true),
        (&[3, 1], Some(&[1, 9]), true),
        (&[-1], None, false),
        (&[], None, true),
        (&[i64::MAX, i64::MAX], None, false),
        (&[0, 3], None, false),
    ] {
        let (region, deleted) = import(producer(shape, strides, HOST));
        assert_eq!(region.is_ok(), fits, "{shape:?} {strides:?}: {region:?}");
        assert_eq!(deleted, usize::from(!fits), "{shape:?} {strides:?}");
    }
    let (region, _) = import(producer(&[4], Some(&[2]), HOST));
    assert!(region.unwrap_err().to_string().contains("one run"));
}

#[test]
fn other_devices_are_refused() {
    let (region, deleted) = import(producer(&[4], None, 10));
    assert_eq!(
        region.unwrap_err().to_string(),
        "tensor: it lies on a device of type 10"
    );
    assert_eq!(deleted, 1);
    // SAFETY: null is looked at.
    let none = unsafe { Region::from_dlpack(std::ptr::null_mut()) };
    assert!(matches!(none, Err(MemoryError::Tensor { .. })));
}

#[test]
fn the_newer_struct_says_its_version_and_whether_it_may_be_written() {
    let import = |made: &'static mut Producer| {
        // SAFETY: the test's own, never freed, and nobody looks at its bytes.
        let region = unsafe { Region::from_dlpack_versioned(&raw mut made.versioned) };
        region
            .map(|region| region.len())
            .map_err(|error| error.to_string())
    };
    assert_eq!(import(producer(&[2, 2], None, HOST)), Ok(16));
    let made = producer(&[2], None, HOST);
    made.versioned.flags = READ_ONLY;
    assert!(import(made).unwrap_err().contains("nobody may write"));
    let made = producer(&[2], None, HOST);
    made.versioned.version = [2, 0];
    assert!(import(made).unwrap_err().contains("DLPack 2"));
}
