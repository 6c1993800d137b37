//! What the client's provider refuses: keys that are not, or no more, and rights that were not
//! given.

use super::*;
use crate::endpoint::Access;
use crate::object::RdmaToken;

/// A get and a put with this token; whether each went well. What is expected to has its time.
fn try_both(
    rig: &mut Rig,
    client: &mut WindowClient,
    token: &RdmaToken,
    expected: [bool; 2],
) -> [bool; 2] {
    let time = expected.map(|works| if works { SOON } else { SHORT });
    let payload = rig.filled(1000, 1).freeze(1000);
    let deadline = rig.now() + time[0];
    let get = rig.channel.handle_get(token, 0, payload, 1, deadline);
    get.expect("accepted");
    let got = outcome(rig, client);
    // A refusal ends the client's connection: what follows at once may be lost with it.
    let (until, mut put) = (rig.now() + time[1], false);
    while !put && rig.now() + SHORT <= until {
        let into = rig.pool.try_acquire().expect("a free buffer");
        let into = crate::endpoint::Destination::buffer(into, 1000);
        let accepted = rig.channel.handle_put(token, 0, into, 2, until);
        accepted.expect("accepted");
        put = outcome(rig, client);
    }
    [got, put]
}

fn outcome(rig: &mut Rig, client: &mut WindowClient) -> bool {
    loop {
        let event = rig.next(&mut [client]);
        if event.is_outcome() {
            return matches!(
                event,
                ChannelEvent::Written { .. } | ChannelEvent::Read { .. }
            );
        }
    }
}

/// Nothing lands, nothing is read, and others go on.
#[test]
fn keys_and_rights_are_what_counts() {
    for fabric in fabrics() {
        let provider = fabric.provider().name;
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        let mut good = rig.client(4096);
        rig.get_and_put(&mut good, 0, 4096);
        for (access, works) in [
            (Access::all(), [true, true]),
            (Access::WRITE, [true, false]),
            (Access::READ, [false, true]),
        ] {
            let mut client = WindowClient::open(&rig.fabric, 4096, access);
            let token = client.token();
            let went = try_both(&mut rig, &mut client, &token, works);
            assert_eq!(went, works, "{provider} {access}");
            let touched = client.copy().iter().any(|byte| *byte != 0);
            assert_eq!(touched, works[0], "{provider} {access}");
            client.fill(0);
            let with = |base, key| {
                let (provider, name) = (token.provider(), token.name());
                RdmaToken::new(base, token.len(), provider, name, key).expect("a token")
            };
            // A key that was guessed, and a window that says more than it has.
            let (guessed, wide) = (token.key() ^ 1, token.base() + 4000);
            for forged in [with(token.base(), guessed), with(wide, token.key())] {
                let went = try_both(&mut rig, &mut client, &forged, [false; 2]);
                assert_eq!(went, [false; 2], "{provider} {access}");
            }
            drop(client.window.take());
            let went = try_both(&mut rig, &mut client, &token, [false; 2]);
            assert_eq!(went, [false; 2], "{provider} {access}");
            let untouched = client.copy().iter().all(|byte| *byte == 0);
            assert!(untouched, "{provider} {access}");
            rig.get_and_put(&mut good, 7, 1000);
        }
        rig.events.clear();
        while rig.channel.stats().late > 0 {
            rig.channel.poll(&mut rig.events).expect("it polls");
            rig.events.clear();
        }
        assert_eq!(rig.pool.free_count(), 8);
    }
}

/// Where a refusal ends the connection for good, what follows for that client goes by another
/// endpoint, and the others keep theirs.
#[test]
fn a_client_whose_connection_ended_is_reached_by_another_endpoint() {
    for fabric in fabrics() {
        let provider = fabric.provider().name;
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        rig.channel.core.engine.breaks = true;
        let (mut good, mut bad) = (rig.client(4096), rig.client(4096));
        rig.get_and_put(&mut good, 0, 4096);
        let main = rig.channel.core.lanes.of(false);
        let mut theirs = Vec::new();
        for round in 0..3 {
            let token = bad.token();
            let (base, len, key) = (token.base(), token.len(), token.key() ^ 1);
            let forged = RdmaToken::new(base, len, token.provider(), token.name(), key);
            let forged = forged.expect("a token");
            let went = try_both(&mut rig, &mut bad, &forged, [false; 2]);
            assert_eq!(went, [false; 2], "{provider}");
            rig.get_and_put(&mut bad, round, 1000);
            rig.get_and_put(&mut good, 7, 1000);
            assert_eq!(rig.channel.core.lanes.of(false), main, "{provider}");
            theirs.push(rig.channel.core.lanes.of(true).expect("one of their own"));
        }
        theirs.dedup();
        assert_eq!(theirs.len(), 3, "{provider}: a new one each time");
        rig.events.clear();
        while rig.channel.stats().late > 0 {
            rig.channel.poll(&mut rig.events).expect("it polls");
            rig.events.clear();
        }
        assert_eq!(
            rig.channel.core.engine.generations().count(),
            2,
            "{provider}"
        );
        assert_eq!(rig.pool.free_count(), 8);
    }
}
