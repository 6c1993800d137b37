//! `QueueSizes`: how long the queues of a link are.

use std::sync::Arc;

use crate::Error;
use crate::fabric::{Cq, Domain, EndpointSettings, receives_of};

/// What a link may have in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueSizes {
    /// Sends and receives of all connections together.
    pub(crate) total: (usize, usize),
    /// Those of each connection.
    pub(crate) each: (usize, usize),
    pub(crate) connections: usize,
}

impl QueueSizes {
    /// Of a link with one connection at a time.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn of_one(tx: usize, rx: usize) -> Self {
        Self {
            total: (tx, rx),
            each: (tx, rx),
            connections: 1,
        }
    }

    /// With what was asked for in the place of what is needed.
    pub(super) fn with(self, settings: &EndpointSettings) -> Self {
        Self {
            each: settings.queue_sizes(self.each),
            ..self
        }
    }

    /// Opens the completion queue for all connections, whose endpoints have `default` receives
    /// where they don't need as many.
    ///
    /// No queue overruns that has an entry for each operation that may be in flight, and links have
    /// no more than `total` in flight. Where queues do not grow there is more to it: verbs of
    /// libfabric 1.17 keeps an entry free for each receive that an endpoint was opened with, as
    /// long as there are so many, and sends are taken from the rest; where that is nothing, none is
    /// ever sent. So there is room for what all endpoints were opened with; and where the device
    /// has no queue as long as that, one whose rest is as large as it can be.
    pub(super) fn open_queue(&self, domain: &Arc<Domain>, default: usize) -> Result<Cq, Error> {
        let row = domain.fabric().provider();
        let least = self.total.0 + self.total.1;
        if !row.queues.fixed_queues {
            return Cq::open(domain, least);
        }
        let opened = receives_of(row, default, self.each.1);
        let refused = match Cq::open(domain, self.entries(opened)) {
            Err(Error::Fabric { errno, .. })
                if matches!(errno.get(), libc::EINVAL | libc::ENOMEM) =>
            {
                errno
            }
            answer => return answer,
        };
        let entries = self.fewest_entries(opened);
        tracing::info!(%refused, entries, "a shorter completion queue: sends may wait for room in \
            it");
        Cq::open(domain, entries).map_err(|error| match error {
            Error::Fabric { errno, .. } => Error::CompletionQueue { entries, errno },
            other => other,
        })
    }

    /// Room for all that the endpoints are opened with.
    fn entries(&self, opened: usize) -> usize {
        self.total.0 + self.total.1.max(self.connections.saturating_mul(opened))
    }

    /// Room for all that is in flight at once; what is kept free of it leaves as much as it can.
    fn fewest_entries(&self, opened: usize) -> usize {
        let least = self.total.0 + self.total.1;
        let rest = self.total.0.min(opened - 1);
        let short = (rest + opened - least % opened) % opened;
        least + short
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What is left to sends when so many endpoints have taken their part: `vrb_ep_bind` of
    /// libfabric 1.17.
    fn left(entries: usize, endpoints: usize, opened: usize) -> usize {
        (0..endpoints).fold(entries, |left, _| match left < opened {
            true => left,
            false => left - opened,
        })
    }

    #[test]
    fn sends_have_room_beside_what_is_kept_for_receives() {
        for connections in [1, 2, 3, 8, 50, 1000] {
            for (tx, rx) in [
                (1, 2),
                (20, 19),
                (64, 16),
                (84, 19),
                (1024, 384),
                (384, 384),
            ] {
                for shared in [1, 3, connections] {
                    let sizes = QueueSizes {
                        total: (tx * shared, rx * shared),
                        each: (tx, rx),
                        connections,
                    };
                    let (full, fewest) = (sizes.entries(rx), sizes.fewest_entries(rx));
                    let least = sizes.total.0 + sizes.total.1;
                    assert!(
                        full >= least && fewest >= least && fewest < least + rx,
                        "{sizes:?}"
                    );
                    for endpoints in 1..=connections {
                        assert!(left(full, endpoints, rx) >= sizes.total.0, "{sizes:?}");
                        let rest = left(fewest, endpoints, rx);
                        assert!(rest >= sizes.total.0.min(rx - 1), "{sizes:?}: {rest}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_as_long_as_asked_for_would_leave_nothing() {
        // Today's queue of 384 entries, with an endpoint of 384 receives.
        assert_eq!(left(384, 1, 384), 0);
    }
}
