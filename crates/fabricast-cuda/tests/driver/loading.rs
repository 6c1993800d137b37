//! Without CUDA: what is missing is said.

use fabricast_cuda::{CudaError, CudaUnavailable, Device, MemoryKind, Stream};

use crate::fake_cuda::{in_child, over_the_fake};

#[test]
fn without_a_driver_it_is_said_what_is_missing() {
    let nowhere = "/nowhere/libcuda.so.1";
    let test = "loading::without_a_driver_it_is_said_what_is_missing";
    in_child(test, &[("FABRICAST_CUDA", nowhere)], || {
        let why = Device::all().unwrap_err();
        assert!(
            matches!(&why, CudaError::Unavailable(CudaUnavailable::Library { tried })
                if tried.len() == 1)
        );
        assert!(why.to_string().contains(nowhere), "{why}");
        assert!(MemoryKind::of(4096).is_err());
    });
}

#[test]
fn a_driver_without_a_device_is_none() {
    let test = "loading::a_driver_without_a_device_is_none";
    over_the_fake(test, &[("FAKE_CUDA_DEVICES", "0")], || {
        let none = CudaError::Unavailable(CudaUnavailable::NoDevice);
        assert_eq!(Device::all(), Err(none.clone()));
        assert_eq!(Device::new(0), Err(none));
    });
}

#[test]
fn a_driver_that_does_not_start_says_its_code() {
    let test = "loading::a_driver_that_does_not_start_says_its_code";
    over_the_fake(test, &[("FAKE_CUDA_INIT", "700")], || {
        let why = Device::all().unwrap_err().to_string();
        assert!(why.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{why}");
    });
}

#[test]
fn a_library_that_is_no_driver_is_refused() {
    let test = "loading::a_library_that_is_no_driver_is_refused";
    in_child(test, &[("FABRICAST_CUDA", "libc.so.6")], || {
        let why = Device::all().unwrap_err();
        assert!(
            matches!(&why, CudaError::Unavailable(CudaUnavailable::Broken { symbol, .. })
                if *symbol == "cuInit"),
            "{why}"
        );
    });
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let test = "loading::a_device_that_is_not_there_is_named";
    over_the_fake(test, &[("FAKE_CUDA_DEVICES", "2")], || {
        let why = Device::new(2).unwrap_err();
        assert!(why.to_string().contains("this process sees 2"), "{why}");
        assert_eq!(Device::all().map(|all| all.len()), Ok(2));
        Stream::new(Device::new(1).expect("the second")).expect("a stream of it");
    });
}
