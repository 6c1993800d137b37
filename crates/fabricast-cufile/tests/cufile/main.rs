//! cuFile: the same suite over the real libcufile where there is a GPU, and over a fake one; and
//! everything that only the fake does on demand.
//!
//! libcufile is loaded once in a process and never again, so each test that needs one runs in a
//! child process.
//!
//! * `FABRICAST_TEST_DIR`: where the suite over the real library puts its files.
//! * `FABRICAST_TEST_FAKES`: a folder with the fakes, for a machine without a C compiler.

#[path = "../../../../tests/common/alone.rs"]
mod alone;
#[path = "../../../../tests/common/c_library.rs"]
mod c_library;
#[allow(
    dead_code,
    reason = "shared with fabricast's tests, which use more of it"
)]
mod fake;
mod faults;
mod gpu;
mod in_flight;
mod loading;
#[path = "../../../../tests/common/pattern.rs"]
mod pattern;
mod settings;
mod suite;

use fabricast_cufile::CuFile;
use fake::{Build, Fake, NEWEST, child, finish, in_child, is_child};

/// Streams of the fake get on by themselves.
const RUNNING: &[(&str, &str)] = &[("FAKE_STREAMS_RUN", "1")];

#[test]
fn the_suite_over_the_fake() {
    in_child("the_suite_over_the_fake", NEWEST, RUNNING, || {
        let (_dir, path) = suite::folder();
        suite::all(CuFile::get().expect("the fake"), &path);
        Fake::load().assert_clean();
    });
}

/// Without readv and writev, and with the shorter statistics.
#[test]
fn the_suite_over_a_fake_of_1_15() {
    in_child(
        "the_suite_over_a_fake_of_1_15",
        Build::Version(1150),
        RUNNING,
        || {
            let (_dir, path) = suite::folder();
            suite::all(CuFile::get().expect("the fake"), &path);
            Fake::load().assert_clean();
        },
    );
}

/// Whose statistics nobody has seen yet: longer than all known ones.
#[test]
fn the_suite_over_a_fake_of_a_version_to_come() {
    let test = "the_suite_over_a_fake_of_a_version_to_come";
    in_child(test, Build::Version(1300), RUNNING, || {
        let (_dir, path) = suite::folder();
        suite::all(CuFile::get().expect("the fake"), &path);
        Fake::load().assert_clean();
    });
}

/// On a machine with a GPU. cuFile needs a file system that the udev database knows; its advice for
/// 5027 says how.
#[test]
fn the_suite_over_the_real_library() {
    let test = "the_suite_over_the_real_library";
    if is_child(test) {
        let (_dir, path) = suite::folder();
        match CuFile::get() {
            Ok(cufile) => match suite::refused(cufile, &path) {
                None => suite::all(cufile, &path),
                Some(why) => println!("SKIPPED: {why}"),
            },
            Err(why) => println!("SKIPPED: {why}"),
        }
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (passed, output) = finish(child(test, dir.path()));
    println!("{output}");
    assert!(passed, "the child failed");
}
