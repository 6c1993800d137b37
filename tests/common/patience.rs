//! How much slower than usual this machine is: FABRICAST_TEST_PATIENCE, a whole number (1), by
//! which each wait's limit is multiplied. An emulated machine wants 3 or more.

use std::sync::LazyLock;
use std::time::Duration;

static FACTOR: LazyLock<u32> = LazyLock::new(|| {
    let text = std::env::var("FABRICAST_TEST_PATIENCE").unwrap_or_default();
    let factor = if text.is_empty() { Ok(1) } else { text.parse() };
    let factor = factor.unwrap_or(0);
    assert!(factor > 0, "FABRICAST_TEST_PATIENCE is a whole number");
    factor
});

/// A limit of a wait, on this machine.
pub(crate) fn patient(limit: Duration) -> Duration {
    limit.saturating_mul(*FACTOR)
}
