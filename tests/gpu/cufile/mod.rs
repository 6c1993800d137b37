//! Files and GPU memory through cuFile: over the fakes of the crate `fabricast-cufile`, whose own
//! tests are of cuFile alone, and over the real library where there is a GPU.
//!
//! libcufile is loaded once in a process and never again, so each test that needs one runs in a
//! child process.
//!
//! * `FABRICAST_TEST_DIR`: where the files of the real library are put.
//! * `FABRICAST_TEST_FAKES`: a folder with the fakes, for a machine without a C compiler.

mod costs;
#[path = "../../../crates/fabricast-cufile/tests/cufile/fake.rs"]
#[allow(
    dead_code,
    reason = "shared with the crate's own tests, which use more of it"
)]
mod fake;
mod files;
#[path = "../../../crates/fabricast-cufile/tests/cufile/gpu.rs"]
mod gpu;
mod streams;
#[path = "../../../crates/fabricast-cufile/tests/cufile/suite.rs"]
#[allow(
    dead_code,
    reason = "shared with the crate's own tests, which use more of it"
)]
mod suite;

use fabricast::storage::cufile::CuFile;
use fake::{child, finish, is_child};

/// On a machine with a GPU. cuFile needs a file system that the udev database knows; its advice for
/// 5027 says how.
#[test]
fn files_over_the_real_library() {
    let test = "files_over_the_real_library";
    if is_child(test) {
        let (_dir, path) = suite::folder();
        match CuFile::get() {
            Ok(cufile) => match suite::refused(cufile, &path) {
                None => {
                    cufile.ensure_context(0).expect("a context");
                    files::all(&path);
                }
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
