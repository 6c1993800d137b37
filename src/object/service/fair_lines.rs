//! `FairLines`: what waits, taken in turns: origin by origin, and of each connection by connection.
//! Pure.

use std::collections::VecDeque;

use crate::endpoint::ConnectionId;
use crate::endpoint::origin::Origin;

/// What waits, in a line for each connection.
#[derive(Debug)]
pub(super) struct FairLines<T> {
    /// None of them is empty; the first one is next.
    origins: VecDeque<OriginLines<T>>,
}

#[derive(Debug)]
struct OriginLines<T> {
    origin: Origin,
    connections: VecDeque<(ConnectionId, VecDeque<T>)>,
}

impl<T> Default for FairLines<T> {
    fn default() -> Self {
        let origins = VecDeque::new();
        Self { origins }
    }
}

impl<T> FairLines<T> {
    pub(super) fn push(&mut self, origin: Origin, connection: ConnectionId, thing: T) {
        let mut origins = self.origins.iter_mut();
        let Some(lines) = origins.find(|lines| lines.origin == origin) else {
            let connections = VecDeque::from([(connection, VecDeque::from([thing]))]);
            self.origins.push_back(OriginLines {
                origin,
                connections,
            });
            return;
        };
        let mut connections = lines.connections.iter_mut();
        match connections.find(|(id, _)| *id == connection) {
            Some((_, line)) => line.push_back(thing),
            None => {
                let line = VecDeque::from([thing]);
                lines.connections.push_back((connection, line));
            }
        }
    }

    /// What is next.
    pub(super) fn take(&mut self) -> Option<T> {
        let mut lines = self.origins.pop_front()?;
        let (connection, mut line) = lines.connections.pop_front()?;
        let thing = line.pop_front();
        if !line.is_empty() {
            lines.connections.push_back((connection, line));
        }
        if !lines.connections.is_empty() {
            self.origins.push_back(lines);
        }
        thing
    }

    /// Takes out what is a connection's.
    pub(super) fn take_out(&mut self, connection: ConnectionId) -> VecDeque<T> {
        for at in 0..self.origins.len() {
            let connections = &mut self.origins[at].connections;
            let found = connections.iter().position(|(id, _)| *id == connection);
            if let Some((_, line)) = found.and_then(|index| connections.remove(index)) {
                if connections.is_empty() {
                    self.origins.remove(at);
                }
                return line;
            }
        }
        VecDeque::new()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.origins.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::object::service::account::Account;
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    #[test]
    fn each_host_has_its_turn_and_each_connection_of_it() {
        let host = |last| {
            Account::new(
                Origin::Host(Ipv4Addr::new(10, 0, 0, last).into()),
                &Arc::default(),
            )
            .origin
        };
        let id = ConnectionId::from_u64;
        let mut lines = FairLines::default();
        for index in 0..3 {
            lines.push(host(1), id(1), ("a", index));
            lines.push(host(1), id(2), ("b", index));
        }
        lines.push(host(2), id(3), ("c", 0));
        lines.push(host(2), id(3), ("c", 1));
        let taken: Vec<_> = (0..5).map_while(|_| lines.take()).collect();
        assert_eq!(taken, [("a", 0), ("c", 0), ("b", 0), ("c", 1), ("a", 1)]);
        assert_eq!(lines.take_out(id(2)), [("b", 1), ("b", 2)]);
        assert!(lines.take_out(id(2)).is_empty());
        assert_eq!(lines.take(), Some(("a", 2)));
        assert!(lines.is_empty() && lines.take().is_none());
    }
}
