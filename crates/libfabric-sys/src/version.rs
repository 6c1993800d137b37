//! Version numbers of the libfabric API: major number in the high half, minor number in the low
//! half.

/// Builds a version number, as the macro `FI_VERSION` does.
#[must_use]
pub const fn fi_version_make(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// The major number of a version, as the macro `FI_MAJOR` does.
#[must_use]
pub const fn fi_major(version: u32) -> u32 {
    version >> 16
}

/// The minor number of a version, as the macro `FI_MINOR` does.
#[must_use]
pub const fn fi_minor(version: u32) -> u32 {
    version & 0xFFFF
}

/// The version as people write it, such as "1.17".
#[must_use]
pub fn version_text(version: u32) -> String {
    format!("{}.{}", fi_major(version), fi_minor(version))
}

/// The oldest library that is accepted.
pub const OLDEST: u32 = fi_version_make(1, 17);

/// The newest version that is asked for: the newest whose structs the ABI test has compared with
/// the C headers.
pub const NEWEST: u32 = fi_version_make(2, 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_come_back() {
        let version = fi_version_make(2, 5);
        assert_eq!(version, 0x2_0005);
        assert_eq!((fi_major(version), fi_minor(version)), (2, 5));
        assert_eq!(version_text(version), "2.5");
    }

    #[test]
    fn order_is_by_major_then_minor() {
        assert!(fi_version_make(1, 22) < fi_version_make(2, 0));
        const { assert!(OLDEST < NEWEST) };
    }
}
