//! Whether the process may open the file descriptors that an endpoint will need (`RLIMIT_NOFILE`,
//! getrlimit(2)).
//!
//! A provider that can't accept a socket for want of a descriptor leaves the peer waiting, and
//! tells nobody. So a listener asks before it listens.

use rustix::process::{Resource, getrlimit};

use crate::Error;

/// What a listener's connection takes at most: its socket, and one that some providers signal with.
const PER_CONNECTION: u64 = 2;

/// What a listener takes for itself, with its queues, and what an accept needs for a moment.
const LISTENER: u64 = 16;

/// What a connecting endpoint takes, with its queues.
const CONNECTING: u64 = 16;

/// Checks that a listener can have so many connections.
pub(crate) fn check_listener(max_connections: u32) -> Result<(), Error> {
    check(
        LISTENER + PER_CONNECTION * u64::from(max_connections),
        open(),
        limit(),
    )
}

/// The limit instead of the provider's words, where a connection could not be begun because of it.
pub(crate) fn explain(error: Error) -> Error {
    match error {
        Error::Fabric { .. } | Error::Os { .. } => {
            check(CONNECTING, open(), limit()).err().unwrap_or(error)
        }
        other => other,
    }
}

fn check(needed: u64, open: u64, limit: Option<u64>) -> Result<(), Error> {
    match limit {
        Some(limit) if open.saturating_add(needed) > limit => Err(Error::TooFewDescriptors {
            limit,
            open,
            needed,
        }),
        _ => Ok(()),
    }
}

/// The soft limit; `None` when there is none.
fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Descriptors of this process that are open; 0 where `/proc` is not there, which checks the need
/// alone.
fn open() -> u64 {
    // The one that reads the directory is in it.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64 - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_reached_exactly() {
        assert!(check(10, 90, Some(100)).is_ok());
        assert!(check(10, 91, Some(100)).is_err());
        assert!(check(u64::MAX, u64::MAX, None).is_ok(), "no limit");
        assert!(check(u64::MAX, 1, Some(100)).is_err(), "no overflow");
    }

    #[test]
    fn the_error_names_every_number_and_a_way_out() {
        let text = check(2_016, 12, Some(1024)).unwrap_err().to_string();
        for word in [
            "1024",
            "2016",
            "12",
            "RLIMIT_NOFILE",
            "ulimit -n",
            "LimitNOFILE",
        ] {
            assert!(text.contains(word), "{word} in {text}");
        }
    }

    #[test]
    fn what_is_open_is_counted() {
        // Other tests open and close theirs meanwhile.
        let held: Vec<_> = (0..100)
            .map(|_| std::fs::File::open("/dev/null").unwrap())
            .collect();
        assert!(open() >= held.len() as u64);
        assert!(limit().is_none_or(|limit| limit >= open()));
    }

    #[test]
    fn only_what_the_limit_can_have_caused_is_explained() {
        let closed = Error::Config {
            field: "depth",
            value: "0".into(),
            reason: "none",
        };
        assert!(matches!(explain(closed), Error::Config { .. }));
        let error = explain(Error::fabric("fi_endpoint", libc::EINVAL));
        assert!(
            matches!(error, Error::Fabric { .. }),
            "there is room: {error}"
        );
    }
}
