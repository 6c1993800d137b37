//! The full names of the tests of this program, which a process that is to run one of them asks
//! for.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The full name, modules in front, of the test that ends with this. Panics unless there is exactly
/// one: else a child would run nothing, or several.
pub(crate) fn full_name(test: &str) -> &'static str {
    static ALL: OnceLock<Vec<String>> = OnceLock::new();
    let fits = |name: &str| {
        name.strip_suffix(test)
            .is_some_and(|modules| modules.is_empty() || modules.ends_with("::"))
    };
    let mut found = ALL.get_or_init(all).iter().filter(|name| fits(name));
    match (found.next(), found.next()) {
        (Some(name), None) => name,
        (None, _) => panic!("this program has no test {test}"),
        (Some(one), Some(other)) => panic!("{test} is {one} and {other}: name its module, too"),
    }
}

/// Asks this very program.
fn all() -> Vec<String> {
    let program = std::env::current_exe().expect("this program");
    let listed = Command::new(program)
        .args(["--list", "--format=terse"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("starts");
    assert!(listed.status.success(), "{}", listed.status);
    String::from_utf8_lossy(&listed.stdout)
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(str::to_owned)
        .collect()
}
