//! `Version`: of the loaded libcufile, which decides where fields of its statistics lie.

#![allow(unsafe_code)]

use std::fmt;

use super::abi::GetInt;

/// The version of libcufile, as `cuFileGetVersion` counts: 1000 for each major and 10 for each
/// minor one.
///
/// ```
/// use fabricast_cufile::Version;
///
/// let version = Version::from_code(1200);
/// assert_eq!((version.major(), version.minor()), (1, 20));
/// assert_eq!(version.to_string(), "1.20");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(i32);

impl Version {
    /// A library that does not say its version: it is older than 1.7 or answers nonsense.
    pub const UNKNOWN: Self = Self(0);
    /// From this version on, settings are made before the driver is opened, and none after it has
    /// an effect. (1.16 was not looked at.)
    pub(crate) const SETTINGS_BEFORE_OPEN: Self = Self(1160);
    /// From this version on, the counters of readv and writev are in the statistics.
    pub(crate) const VECTOR_COUNTERS: Self = Self(1190);
    /// The newest whose statistics were looked at.
    pub(crate) const NEWEST_KNOWN: Self = Self(1209);

    /// From `1000 * major + 10 * minor + patch`. What is no such number is [`Version::UNKNOWN`].
    pub fn from_code(code: i32) -> Self {
        if (1000..1_000_000).contains(&code) {
            Self(code)
        } else {
            Self::UNKNOWN
        }
    }

    /// Asks the library.
    pub(crate) fn ask(get_version: Option<GetInt>) -> Self {
        let Some(get_version) = get_version else {
            return Self::UNKNOWN;
        };
        let mut code = 0;
        // SAFETY: writes one number, which is ours; it opens nothing.
        let answer = unsafe { get_version(&raw mut code) };
        if answer.err == 0 {
            Self::from_code(code)
        } else {
            Self::UNKNOWN
        }
    }

    /// The number as `cuFileGetVersion` gives it, 0 where it is not known.
    pub fn code(self) -> i32 {
        self.0
    }

    /// The major version, 0 where it is not known.
    pub fn major(self) -> i32 {
        self.0 / 1000
    }

    /// The minor version.
    pub fn minor(self) -> i32 {
        self.0 % 1000 / 10
    }

    /// Whether the library said its version.
    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }

    /// The CUDA toolkit that this version came with, as far as NVIDIA has numbered them alike: 1.7
    /// to 1.14 with 12.2 to 12.9, and from 1.15 on with 13.0 and later.
    pub fn cuda_toolkit(self) -> Option<(i32, i32)> {
        match (self.major(), self.minor()) {
            (1, minor @ 7..=14) => Some((12, minor - 5)),
            (1, minor @ 15..) => Some((13, minor - 15)),
            _ => None,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_known() {
            return f.write_str("of unknown version");
        }
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_as_real_libraries_answer_them() {
        for (code, text, toolkit) in [
            (1070, "1.7", Some((12, 2))),
            (1140, "1.14", Some((12, 9))),
            (1150, "1.15", Some((13, 0))),
            (1200, "1.20", Some((13, 5))),
        ] {
            let version = Version::from_code(code);
            assert_eq!(version.to_string(), text);
            assert_eq!(version.cuda_toolkit(), toolkit);
        }
    }

    #[test]
    fn nonsense_is_unknown() {
        for code in [i32::MIN, -1, 0, 12, i32::MAX] {
            assert_eq!(Version::from_code(code), Version::UNKNOWN);
        }
        assert_eq!(Version::UNKNOWN.to_string(), "of unknown version");
        assert_eq!(Version::UNKNOWN.cuda_toolkit(), None);
    }
}
