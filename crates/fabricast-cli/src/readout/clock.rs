//! The clock that all processes of one machine share.

use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the machine's monotonic clock: the same in every process.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Which clock that is: a hash of the kernel's number for this boot. Two processes may compare
/// times if it is equal; 0 is no clock.
pub(crate) fn clock_id() -> u64 {
    static ID: OnceLock<u64> = OnceLock::new();
    *ID.get_or_init(|| {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        if boot.is_empty() {
            return 0;
        }
        // FNV-1a.
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        boot.iter().fold(0xcbf2_9ce4_8422_2325, hash)
    })
}
