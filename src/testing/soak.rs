//! How much of what tests could do they do: all of it with FABRICAST_SOAK=1.

use proptest::test_runner::Config;

pub(crate) fn is_soak() -> bool {
    std::env::var_os("FABRICAST_SOAK").is_some_and(|value| value == "1")
}

/// `few` cases, or `all` of them.
pub(crate) fn cases(few: u32, all: u32) -> Config {
    Config::with_cases(if is_soak() { all } else { few })
}
