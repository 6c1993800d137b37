//! The table of clients by itself.

use super::*;

fn addr(port: u16) -> PeerAddr {
    std::net::SocketAddr::from(([10, 0, 0, 1], port)).into()
}

#[test]
fn those_with_transfers_stay_and_the_oldest_of_the_others_leaves() {
    let begin = Instant::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let mut peers = ServerPeers::new(2);
    let (one, _) = peers.enter(addr(1), at(0));
    let (two, _) = peers.enter(addr(2), at(0));
    assert_eq!(peers.enter(addr(1), at(0)).0, one, "it is known");
    assert!(!peers.has_room(&addr(3)) && peers.has_room(&addr(2)));
    peers.leave(one, at(1));
    assert!(!peers.has_room(&addr(3)), "it has one more");
    peers.leave(two, at(2));
    peers.leave(one, at(3));
    assert!(peers.has_room(&addr(3)));
    let (three, left) = peers.enter(addr(3), at(4));
    assert_eq!((left.map(|it| it.addr), three), (Some(addr(2)), two));
    assert!(peers.find(&addr(2)).is_none() && peers.len() == 2);
    assert!(peers.expire(at(2)).is_none(), "not yet");
    // Idle no more.
    peers.enter(addr(1), at(5));
    assert!(peers.expire(at(9)).is_none());
    peers.leave(one, at(6));
    let (gone, it) = peers.expire(at(6)).expect("it is old enough");
    assert_eq!((gone, it.addr, peers.len()), (one, addr(1), 1));
}

#[test]
fn tries_come_less_often_until_something_went() {
    let mut peers = ServerPeers::new(1);
    let (peer, _) = peers.enter(addr(1), Instant::now());
    let it = peers.get_mut(peer).expect("it is there");
    let waits: Vec<_> = (0..20).map(|_| it.back_off()).collect();
    assert!(waits.is_sorted() && waits[0] == RETRY_FIRST && waits[19] == RETRY_MAX);
    it.went();
    assert_eq!(it.back_off(), RETRY_FIRST);
}
