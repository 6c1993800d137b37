//! `Connections`: who is connected, and who has to go when there is no place left.
//!
//! One address never has all places. When it has its share, or when all places are taken, a
//! connection that waits for its client is given up for a new one, the one that has waited longest.
//! So clients that stall take no place from those that do not, and accepting never stops.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::pace::Pace;

/// Connections at once.
const PLACES: usize = 256;

/// Those of one address.
const EACH: usize = 192;

/// New ones that wait for a place, and those of one address.
const ARRIVING: usize = 256;
const ARRIVING_EACH: usize = 128;

/// How long they wait.
const ARRIVAL: Duration = Duration::from_secs(2);

/// How often they look for one.
const TICK: Duration = Duration::from_millis(20);

/// Within a request, a client that is a little late is not given up for another one.
const GRACE: Duration = Duration::from_millis(100);

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    served: HashMap<u64, Entry>,
    arriving: HashMap<IpAddr, usize>,
    last: u64,
}

#[derive(Debug)]
struct Entry {
    client: IpAddr,
    pace: Arc<Pace>,
    given_up: Arc<Notify>,
}

impl Connections {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection; waits a little for one. `None`: there is none.
    pub(crate) async fn place(self: &Arc<Self>, address: IpAddr) -> Option<Connection> {
        let client = network(address);
        if let Some(connection) = self.take(address) {
            return Some(connection);
        }
        let _arriving = Arrival::new(self, client)?;
        let end = Instant::now() + ARRIVAL;
        while Instant::now() < end {
            tokio::time::sleep(TICK).await;
            if let Some(connection) = self.take(address) {
                return Some(connection);
            }
        }
        None
    }

    fn take(self: &Arc<Self>, address: IpAddr) -> Option<Connection> {
        let client = network(address);
        let mut table = self.table();
        let its = table.count(client);
        if its >= EACH {
            table.give_up(|other| other == client)?;
        } else if table.served.len() >= PLACES {
            table.give_up(|_| true)?;
        }
        table.last += 1;
        let (id, pace, given_up) = (table.last, Pace::new(), Arc::default());
        let entry = Entry {
            client,
            pace: Arc::clone(&pace),
            given_up: Arc::clone(&given_up),
        };
        table.served.insert(id, entry);
        Some(Connection {
            address,
            client,
            pace,
            given_up,
            id,
            all: Arc::clone(self),
        })
    }
}

impl Table {
    fn count(&self, client: IpAddr) -> usize {
        let its = self.served.values().filter(|entry| entry.client == client);
        its.count()
    }

    /// Gives up one connection of such a client: of the one that has most, the one that has waited
    /// longest. `None`: nobody is waited for.
    fn give_up(&mut self, may: impl Fn(IpAddr) -> bool) -> Option<()> {
        let mut counts = HashMap::<IpAddr, usize>::new();
        for entry in self.served.values() {
            *counts.entry(entry.client).or_default() += 1;
        }
        let waits = |(id, entry): (&u64, &Entry)| {
            let (waited, is_in_request) = entry.pace.waits()?;
            let is_late = !is_in_request || waited >= GRACE;
            (may(entry.client) && is_late).then(|| (counts[&entry.client], waited, *id))
        };
        let (_, _, id) = self.served.iter().filter_map(waits).max()?;
        let entry = self.served.remove(&id)?;
        entry.given_up.notify_one();
        Some(())
    }
}

/// Who may have many addresses counts as one: over IPv6, whoever has the same first half.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mask = u128::MAX << 64;
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
        address => address,
    }
}

/// A connection's place.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Where the client asks from.
    pub(crate) address: IpAddr,
    /// Whose it is.
    pub(crate) client: IpAddr,
    pub(crate) pace: Arc<Pace>,
    given_up: Arc<Notify>,
    id: u64,
    all: Arc<Connections>,
}

impl Connection {
    /// Ends when the place is wanted for somebody else.
    pub(crate) async fn given_up(&self) {
        self.given_up.notified().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.table().served.remove(&self.id);
    }
}

/// A new connection that waits for a place.
struct Arrival<'a> {
    all: &'a Connections,
    client: IpAddr,
}

impl<'a> Arrival<'a> {
    fn new(all: &'a Connections, client: IpAddr) -> Option<Self> {
        let mut table = all.table();
        let total: usize = table.arriving.values().sum();
        let its = table.arriving.get(&client).copied().unwrap_or(0);
        if total >= ARRIVING || its >= ARRIVING_EACH {
            return None;
        }
        table.arriving.insert(client, its + 1);
        Some(Self { all, client })
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        let mut table = self.all.table();
        if let Some(its) = table.arriving.get_mut(&self.client) {
            *its -= 1;
            if *its == 0 {
                table.arriving.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::{Answering, Wait};

    const HONEST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    /// So many connections whose requests are being answered.
    fn served(
        all: &Arc<Connections>,
        client: IpAddr,
        count: usize,
    ) -> Vec<(Connection, Answering)> {
        let serve = |_| {
            let connection = all.take(client).expect("a place");
            let answering = connection.pace.answering();
            (connection, answering)
        };
        (0..count).map(serve).collect()
    }

    #[test]
    fn one_address_never_has_all_places() {
        let all = Arc::default();
        let its = served(&all, OTHER, EACH);
        assert!(all.take(OTHER).is_none());
        let rest = served(&all, HONEST, PLACES - EACH);
        assert!(all.take(HONEST).is_none());
        drop((its, rest));
        assert_eq!(all.table().served.len(), 0);
    }

    #[test]
    fn who_stalls_is_given_up_for_a_new_one_and_nobody_else_is() {
        let all: Arc<Connections> = Arc::default();
        let count = |client| all.table().count(client);
        let honest = served(&all, HONEST, 10);
        let idle: Vec<_> = (0..PLACES).filter_map(|_| all.take(OTHER)).collect();
        assert_eq!((idle.len(), count(OTHER)), (PLACES, EACH));
        let more = served(&all, HONEST, PLACES - EACH - 10 + 1);
        assert_eq!(count(OTHER), EACH - 1);
        assert_eq!(count(HONEST), PLACES - EACH + 1);
        let is_there = |id| all.table().served.contains_key(id);
        let mut honest = honest.iter().chain(&more);
        assert!(honest.all(|(connection, _)| is_there(&connection.id)));
    }

    #[test]
    fn who_is_a_little_late_within_a_request_keeps_the_place() {
        let all: Arc<Connections> = Arc::default();
        let mut its = served(&all, OTHER, EACH);
        let id = its[0].0.id;
        let set = |waited| {
            let pace = Pace::waiting(Wait::Reader, waited);
            all.table().served.get_mut(&id).expect("it is there").pace = pace;
        };
        set(Duration::ZERO);
        // On a machine that stands still meanwhile, it is late.
        let taken = all.take(OTHER);
        let is_late = all.table().served.get(&id).is_none_or(|entry| {
            entry
                .pace
                .waits()
                .is_some_and(|(waited, _)| waited >= GRACE)
        });
        assert!(taken.is_none() || is_late);
        if taken.is_none() {
            set(GRACE);
            assert!(all.take(OTHER).is_some());
        }
        its.clear();
    }

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), HONEST);
        assert_ne!(HONEST, OTHER);
    }
}
