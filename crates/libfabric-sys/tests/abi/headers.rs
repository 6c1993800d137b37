//! Finds sets of C headers, and lets the C compiler speak about them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Further sets to check: directories that hold `rdma/fabric.h`, with colons between.
const FABRICAST_ABI_HEADERS: &str = "FABRICAST_ABI_HEADERS";

/// A set of headers: those of the system, or of a directory.
#[derive(Debug)]
pub(crate) struct HeaderSet(Option<PathBuf>);

impl HeaderSet {
    pub(crate) fn name(&self) -> String {
        self.0
            .as_ref()
            .map_or_else(|| "system".to_owned(), |dir| dir.display().to_string())
    }
}

/// The C compiler: `CC`, else `cc`; none where it does not run.
pub(crate) fn compiler() -> Option<OsString> {
    let name = env::var_os("CC")
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "cc".into());
    let status = Command::new(&name)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success()).then_some(name)
}

/// Every set: that of the system where it is installed, and the ones that the environment names,
/// which must exist.
pub(crate) fn find(compiler: &OsString) -> Vec<HeaderSet> {
    let mut sets = Vec::new();
    let system = HeaderSet(None);
    if run_c(
        compiler,
        &system,
        "#include <rdma/fabric.h>\nint main(void) { return 0; }\n",
    )
    .is_ok()
    {
        sets.push(system);
    }
    let named = env::var_os(FABRICAST_ABI_HEADERS).unwrap_or_default();
    for dir in env::split_paths(&named).filter(|dir| !dir.as_os_str().is_empty()) {
        assert!(
            dir.join("rdma/fabric.h").is_file(),
            "{FABRICAST_ABI_HEADERS}: no rdma/fabric.h in {}",
            dir.display()
        );
        sets.push(HeaderSet(Some(dir)));
    }
    sets
}

/// Compiles a program against a set and gives what it prints, or what the compiler said.
pub(crate) fn run_c(compiler: &OsString, set: &HeaderSet, source: &str) -> Result<String, String> {
    let dir = Scratch::new();
    let [program, c_file] = ["probe", "probe.c"].map(|name| dir.0.join(name));
    fs::write(&c_file, source).expect("the scratch directory is writable");
    let mut command = Command::new(compiler);
    // Deprecated names warn; a set of our own hides the system's.
    command.args(["-std=gnu11", "-w"]);
    if let Some(include) = &set.0 {
        command.arg("-I").arg(include);
    }
    let compiled = command
        .arg("-o")
        .arg(&program)
        .arg(&c_file)
        .output()
        .expect("the compiler runs");
    if !compiled.status.success() {
        return Err(String::from_utf8_lossy(&compiled.stderr).into_owned());
    }
    let output = Command::new(&program).output().expect("the program runs");
    assert!(
        output.status.success(),
        "the program failed: {:?}",
        output.status
    );
    Ok(String::from_utf8(output.stdout).expect("the program prints text"))
}

/// A directory that goes away.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("abi-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left-overs do no harm: the directory belongs to the build.
        let _ = fs::remove_dir_all(&self.0);
    }
}
