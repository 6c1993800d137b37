//! Without CUDA: what is missing is said, and all else works.

use fabricast::Region;
use fabricast::cuda::{CudaError, CudaUnavailable, Device, MemoryKind, Stream};
use fabricast::memory::MemoryError;

use crate::c_library::compiled;
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
        let refused = Region::device(4096).build().unwrap_err();
        assert!(matches!(refused, MemoryError::Cuda { .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.starts_with("a region of device memory: "), "{text}");
        assert!(text.contains(nowhere), "{text}");
        let refused = Region::pinned(4096).build().unwrap_err();
        assert!(refused.to_string().contains(nowhere), "{refused}");
        assert!(MemoryKind::of(4096).is_err());
        // All else is as ever.
        Region::host(4096).build().expect("host memory");
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
        let why = Region::device(1).device(2).build().unwrap_err();
        assert!(why.to_string().contains("this process sees 2"), "{why}");
        assert_eq!(Device::all().map(|all| all.len()), Ok(2));
        Stream::new(Device::new(1).expect("the second")).expect("a stream of it");
    });
}

/// Who has loaded a fake by one name and loads it by another has one fake, not two: the file that
/// was there first stays. Before, each process that had found none put its own in the place of the
/// last one's, and memory of one fake was unknown to the other.
#[test]
fn a_fake_that_several_build_at_once_is_the_first_ones() {
    use std::os::unix::fs::MetadataExt;
    if std::env::var_os("FABRICAST_TEST_FAKES").is_some() {
        return println!("SKIPPED: the fakes are prebuilt");
    }
    let unique = tempfile::tempdir().expect("a folder");
    let source = format!("/* {} */ int a_fake;", unique.path().display());
    let build = || {
        let path = compiled("libfake_of_many.so", &source, &[])?;
        let file = std::fs::metadata(&path).expect("there");
        Ok::<_, String>((file.ino(), path))
    };
    let built: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..6).map(|_| scope.spawn(build)).collect();
        let all = all.into_iter();
        all.map(|one| one.join().expect("no panic")).collect()
    });
    let (last, path) = match build() {
        Ok(last) => last,
        Err(why) => return println!("SKIPPED: no fake can be built: {why}"),
    };
    let folder = path.parent().expect("in a folder");
    std::fs::remove_dir_all(folder).expect("removed");
    let is_last = |one: &Result<_, _>| matches!(one, Ok((file, _)) if *file == last);
    assert!(built.iter().all(is_last), "{built:?}, {last}");
}
