//! What is known of each provider, as data: one row a provider.
//!
//! Facts come from the provider's man page (`fi_tcp.7`, `fi_verbs.7`, …) and, for the rows marked
//! [`Evidence::Tested`], from running it. Code asks the row; it never compares provider names.

use std::fmt;

/// The kind of libfabric endpoint that connections are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointKind {
    /// `FI_EP_MSG`: connected by the provider.
    Msg,
    /// `FI_EP_RDM`: connections are ours, over one endpoint and an address vector.
    Rdm,
}

/// How a header and a payload become one message; chosen once at open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// One vectored send: header slot first, payload segments after it.
    Iov,
    /// Header room in front of the payload: one contiguous run.
    Headroom,
    /// Header and payload as two messages.
    TwoMessages,
}

impl Shape {
    /// The shape that a provider's limit on segments allows.
    pub(crate) fn for_iov_limit(iov_limit: usize) -> Self {
        if iov_limit >= 2 {
            Self::Iov
        } else {
            Self::Headroom
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iov => "Iov",
            Self::Headroom => "Headroom",
            Self::TwoMessages => "TwoMessages",
        })
    }
}

/// Where a row's facts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Run by our tests, on machines that have it.
    Tested,
    /// From documentation only.
    Documented,
}

/// One provider's row.
#[derive(Debug, Clone, Copy)]
pub struct Provider {
    /// The name as `fi_getinfo` spells it.
    pub name: &'static str,
    /// What its connections are made of.
    pub endpoint: EndpointKind,
    /// Segments in one send as documented, header included; the opened provider's own answer wins.
    pub iov_limit: usize,
    /// Registrations are bound to endpoints (`FI_MR_ENDPOINT`).
    pub endpoint_scope: bool,
    /// It has a file descriptor to wait on (`FI_WAIT_FD`).
    pub wait_fd: bool,
    /// After `fi_close(ep)` it reports what was in flight; where it does not, we fail those operations ourselves.
    pub reports_after_close: bool,
    /// `FI_MORE` batches posts.
    pub uses_more: bool,
    /// Bytes that it copies by itself, in words.
    pub copies: &'static str,
    /// Where the facts come from.
    pub evidence: Evidence,
    /// Why connections can't be made over it yet, if so.
    pub refused: Option<&'static str>,
}

const RDM_LATER: Option<&str> =
    Some("has FI_EP_RDM endpoints only, and connections over those are not built yet; use `tcp`");

/// Every provider that this library knows.
pub const PROVIDERS: &[Provider] = &[
    Provider {
        name: "tcp",
        endpoint: EndpointKind::Msg,
        iov_limit: 4,
        endpoint_scope: false,
        wait_fd: true,
        reports_after_close: true,
        uses_more: false,
        copies: "sends up to 128 B always, receives up to 9,000 B sometimes",
        evidence: Evidence::Tested,
        refused: None,
    },
    Provider {
        name: "verbs",
        endpoint: EndpointKind::Msg,
        iov_limit: 4,
        endpoint_scope: false,
        wait_fd: true,
        reports_after_close: true,
        uses_more: true,
        copies: "none",
        evidence: Evidence::Documented,
        refused: None,
    },
    rdm(
        "tcp;ofi_rxm",
        4,
        true,
        false,
        "as tcp, and messages up to 16 KiB",
        Evidence::Tested,
    ),
    rdm(
        "verbs;ofi_rxm",
        4,
        true,
        false,
        "messages up to 16 KiB",
        Evidence::Documented,
    ),
    Provider {
        refused: Some(
            "its wait descriptor is always ready on libfabric 1.17, which spins a core; use `tcp`",
        ),
        ..rdm("net", 4, true, true, "as tcp", Evidence::Tested)
    },
    rdm(
        "shm",
        4,
        false,
        false,
        "messages up to 4 KiB twice, larger ones once",
        Evidence::Tested,
    ),
    rdm(
        "sockets",
        8,
        true,
        false,
        "sends up to 255 B",
        Evidence::Tested,
    ),
    rdm(
        "udp;ofi_rxd",
        4,
        true,
        false,
        "every message",
        Evidence::Tested,
    ),
    rdm("efa", 2, true, true, "small messages", Evidence::Documented),
    Provider {
        endpoint_scope: true,
        ..rdm("cxi", 1, true, true, "small messages", Evidence::Documented)
    },
    rdm(
        "psm3",
        1,
        true,
        true,
        "small messages",
        Evidence::Documented,
    ),
    rdm(
        "opx",
        1,
        false,
        true,
        "small messages",
        Evidence::Documented,
    ),
];

const fn rdm(
    name: &'static str,
    iov_limit: usize,
    wait_fd: bool,
    reports_after_close: bool,
    copies: &'static str,
    evidence: Evidence,
) -> Provider {
    Provider {
        name,
        endpoint: EndpointKind::Rdm,
        iov_limit,
        endpoint_scope: false,
        wait_fd,
        reports_after_close,
        uses_more: false,
        copies,
        evidence,
        refused: RDM_LATER,
    }
}

/// The row of a provider, by the name that `fi_getinfo` gives.
pub fn provider(name: &str) -> Option<&'static Provider> {
    PROVIDERS.iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (i, row) in PROVIDERS.iter().enumerate() {
            assert_eq!(
                PROVIDERS.iter().position(|r| r.name == row.name),
                Some(i),
                "{}",
                row.name
            );
            assert_eq!(provider(row.name).map(|r| r.name), Some(row.name));
        }
        assert!(provider("no such provider").is_none());
    }

    #[test]
    fn a_row_with_one_segment_takes_headroom() {
        for row in PROVIDERS {
            let shape = Shape::for_iov_limit(row.iov_limit);
            assert_eq!(shape == Shape::Iov, row.iov_limit >= 2, "{}", row.name);
        }
        assert_eq!(
            Shape::for_iov_limit(provider("cxi").unwrap().iov_limit),
            Shape::Headroom
        );
    }

    #[test]
    fn only_connected_endpoints_are_offered_yet() {
        for row in PROVIDERS {
            assert_eq!(
                row.refused.is_none(),
                row.endpoint == EndpointKind::Msg,
                "{}",
                row.name
            );
        }
    }
}
