//! Misuse that does not compile: one file of `tests/ui` each, with what the compiler says.
//!
//! The compiler is given the library as it was built for this test: nothing is built again.
//! `FABRICAST_WRITE_UI=1` writes what it says anew.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fabricast::{ReceiveEndpoint, SendEndpointZeroCopy};

/// What the compiler says of a program with this library: nothing where it compiles.
fn compile(library: &Path, source: &Path, into: &Path) -> String {
    let rustc = option_env!("RUSTC").unwrap_or("rustc");
    let dependencies = library.parent().expect("a file in a folder");
    let output = Command::new(rustc)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["--edition=2024", "--crate-type=bin", "--emit=metadata"])
        .args([OsStr::new("--out-dir"), into.as_os_str()])
        .arg(format!("-Ldependency={}", dependencies.display()))
        .arg(format!("--extern=fabricast={}", library.display()))
        .arg(source)
        .output()
        .expect("the compiler starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), !said.contains("error"), "{said}");
    if output.status.success() {
        String::new()
    } else {
        said
    }
}

/// The library that was built last and that this compiler can use; others may lie beside it, with
/// other features.
fn library(into: &Path) -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let folder = program.parent().expect("a file in a folder");
    let is_library = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("libfabricast-") && name.ends_with(".rlib")
    };
    let entries = fs::read_dir(folder).expect("a folder");
    let mut found: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(is_library);
    found.sort_by_key(|path| fs::metadata(path).and_then(|it| it.modified()).ok());
    let control = into.join("control.rs");
    fs::write(
        &control,
        "fn main() { let _ = fabricast::Fabric::builder(); }",
    )
    .expect("room for it");
    let usable = |path: &PathBuf| compile(path, &control, into).is_empty();
    found.into_iter().rev().find(usable).expect("the library")
}

/// The errors and where they are; explanations around them change with the compiler.
fn errors(said: &str) -> Vec<&str> {
    let is_error = |line: &&str| {
        (line.starts_with("error") && !line.starts_with("error: aborting"))
            || line.trim_start().starts_with("--> tests/ui/")
    };
    said.lines().filter(is_error).map(str::trim).collect()
}

#[test]
fn misuse_does_not_compile() {
    let into = tempfile::tempdir().expect("a folder");
    let library = library(into.path());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for entry in fs::read_dir(root.join("tests/ui")).expect("it is there") {
        let path = entry.expect("an entry").path();
        if path.extension() != Some(OsStr::new("rs")) {
            continue;
        }
        count += 1;
        let source = path.strip_prefix(root).expect("below it");
        let said = compile(&library, source, into.path());
        let wanted = path.with_extension("stderr");
        if std::env::var_os("FABRICAST_WRITE_UI").is_some() {
            fs::write(&wanted, &said).expect("room for it");
        }
        let wanted = fs::read_to_string(&wanted).expect("what the compiler says");
        assert!(!errors(&wanted).is_empty(), "{}", source.display());
        assert_eq!(
            errors(&said),
            errors(&wanted),
            "{}: {said}",
            source.display()
        );
    }
    assert_eq!(count, 7, "files of tests/ui");
}

/// Has one implementation for every type, and a second for those that are `Sync`.
trait OneUnlessSync<Which> {
    const NAMED: bool = true;
}

impl<T: ?Sized> OneUnlessSync<()> for T {}
impl<T: ?Sized + Sync> OneUnlessSync<u8> for T {}

/// Not a file of `tests/ui`, because the compiler's answer would name every private field on the
/// way.
#[test]
fn endpoints_move_between_threads_and_are_not_shared() {
    fn is_send(_: Option<impl Send>) -> bool {
        true
    }
    assert!(is_send(None::<SendEndpointZeroCopy>) && is_send(None::<ReceiveEndpoint>));
    // The compiler could not tell which `_` is meant, and would refuse, if these were Sync.
    let named = [
        <SendEndpointZeroCopy as OneUnlessSync<_>>::NAMED,
        <ReceiveEndpoint as OneUnlessSync<_>>::NAMED,
    ];
    assert_eq!(named, [true, true]);
}
