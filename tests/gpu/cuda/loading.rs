//! Without CUDA: regions say what is missing, and all else works. What the driver's own types say:
//! the tests of `fabricast-cuda`.

use fabricast::Region;
use fabricast::memory::MemoryError;

use crate::c_library::compiled;
use crate::fake_cuda::{in_child, over_the_fake};

#[test]
fn without_a_driver_regions_say_what_is_missing() {
    let nowhere = "/nowhere/libcuda.so.1";
    let test = "loading::without_a_driver_regions_say_what_is_missing";
    in_child(test, &[("FABRICAST_CUDA", nowhere)], || {
        let refused = Region::device(4096).build().unwrap_err();
        assert!(matches!(refused, MemoryError::Cuda { .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.starts_with("a region of device memory: "), "{text}");
        assert!(text.contains(nowhere), "{text}");
        let refused = Region::pinned(4096).build().unwrap_err();
        assert!(refused.to_string().contains(nowhere), "{refused}");
        // All else is as ever.
        Region::host(4096).build().expect("host memory");
    });
}

#[test]
fn a_region_of_a_device_that_is_not_there_names_it() {
    let test = "loading::a_region_of_a_device_that_is_not_there_names_it";
    over_the_fake(test, &[("FAKE_CUDA_DEVICES", "2")], || {
        let why = Region::device(1).device(2).build().unwrap_err();
        assert!(why.to_string().contains("this process sees 2"), "{why}");
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
