//! Fake libraries, built from C sources of our own.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A folder with the libraries that another machine has built, for one without a compiler.
const PREBUILT: &str = "FABRICAST_TEST_FAKES";

/// The library of that name: the prebuilt one, or made by `cc` once for each state of its source.
pub(crate) fn compiled(name: &str, source: &str, flags: &[String]) -> Result<PathBuf, String> {
    if let Some(dir) = std::env::var_os(PREBUILT) {
        let path = Path::new(&dir).join(name);
        return match path.exists() {
            true => Ok(path),
            false => Err(format!("{} is not there", path.display())),
        };
    }
    let mut hasher = DefaultHasher::new();
    (source, flags).hash(&mut hasher);
    let dir = cache().join(format!("fakes-{:016x}", hasher.finish()));
    let path = dir.join(name);
    if path.exists() {
        return Ok(path);
    }
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let unfinished = tempfile::NamedTempFile::new_in(&dir).map_err(|error| error.to_string())?;
    compile(source, flags, unfinished.path())?;
    // Others may do the same at the same time: whoever comes first wins. The file stays from then
    // on, for who has loaded it and loads it by another name would else have two libraries.
    match std::fs::hard_link(unfinished.path(), &path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error.to_string()),
        _ => Ok(path),
    }
}

/// Where they are kept: cargo's folder for that, which unit tests do not have, or beside this
/// program.
fn cache() -> PathBuf {
    let beside = || {
        let program = std::env::current_exe().expect("this program");
        program.with_file_name("")
    };
    option_env!("CARGO_TARGET_TMPDIR").map_or_else(beside, PathBuf::from)
}

fn compile(source: &str, flags: &[String], into: &Path) -> Result<(), String> {
    let mut cc = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-x", "c", "-", "-o"])
        .arg(into)
        .args(flags)
        .args(["-lpthread", "-ldl"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cc: {error}"))?;
    let mut input = cc.stdin.take().expect("piped");
    input
        .write_all(source.as_bytes())
        .map_err(|error| error.to_string())?;
    drop(input);
    let output = cc.wait_with_output().map_err(|error| error.to_string())?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
