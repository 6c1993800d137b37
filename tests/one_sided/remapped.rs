//! Memory that comes and goes: mapped, registered, sent from, unmapped, and mapped again at the
//! same address. Whoever keeps the registration of the pages that were there before (libfabric's
//! cache, on verbs) sends what lay in those.
//!
//! On verbs, the second test fails as soon as memory is unmapped by bare system calls.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fabricast::endpoint::Access;
use fabricast::memory::HugePages;
use fabricast::{Domain, Region};

use crate::common;
use crate::common::child::{self, Child};
use crate::common::{Pair, Watchdog, domain, pattern, small_receiver};

/// For 10,000 rounds in a guest that is emulated.
const PATIENCE: Duration = Duration::from_secs(900);

/// One region of so many pages, which are not huge: those lie at addresses of their own.
fn region(len: usize) -> Arc<Region> {
    let builder = Region::host(len).huge_pages(HugePages::Never);
    builder.build().expect("memory")
}

/// FABRICAST_REMAPPED says how often, 10,000 with FABRICAST_SOAK=1.
fn rounds() -> u64 {
    match std::env::var("FABRICAST_REMAPPED") {
        Ok(text) => text.parse().expect("FABRICAST_REMAPPED is a number"),
        Err(_) => u64::from(common::rounds(300, 10_000)),
    }
}

/// Sends a region of a content of its own, and looks at what arrives.
fn send(pair: &mut Pair, domain: &Arc<Domain>, region: &Arc<Region>, round: u64) {
    let content = pattern(round, region.len());
    let slice = region.slice(0..region.len()).expect("all of it");
    // SAFETY: nobody else has the memory yet, and the slice is as long as the content.
    unsafe {
        slice
            .as_ptr()
            .copy_from_nonoverlapping(content.as_ptr(), content.len());
    }
    region.register(domain).expect("registered");
    let got = pair.exchange(slice, b"", round);
    assert!(
        got.payload == content,
        "round {round}: what was sent lay in other pages"
    );
}

/// Sends from so many regions after each other; how many lay where one had been.
fn remap(pair: &mut Pair, domain: &Arc<Domain>, rounds: u64) -> u64 {
    let (mut seen, mut again) = (HashSet::new(), 0);
    for round in 0..rounds {
        // Two lengths, so that a range lies in one that was there before, and the other way round.
        let region = region(if round % 3 == 0 { 16 << 10 } else { 8 << 10 });
        again += u64::from(!seen.insert(region.as_ptr().addr()));
        send(pair, domain, &region, round);
        // In every fourth round it is the region's end that closes the registration.
        if round % 4 != 0 {
            region.deregister(domain);
        }
        assert_eq!(Arc::strong_count(&region), 1, "nobody else has it");
    }
    // The kernel gives the hole that was just made to the next one, unless another thread of this
    // program is quicker.
    assert!(again * 2 > rounds, "{again} of {rounds}");
    again
}

#[test]
fn memory_that_is_mapped_again_at_the_same_address_is_what_is_sent() {
    let _watchdog = Watchdog::with("memory_that_is_mapped_again", PATIENCE);
    let Some(domain) = domain() else { return };
    let mut pair = Pair::with(&domain, common::sending(), small_receiver());
    let rounds = rounds();
    let again = remap(&mut pair, &domain, rounds);
    println!("{again} of {rounds} regions lay where one had been");
}

/// The same in a process that asks for libfabric's cache, which sees what libc's functions unmap.
/// What it would leave to a peer is not given to one.
#[test]
fn a_cache_of_registrations_sees_what_is_unmapped_and_lends_nothing() {
    let name = "a_cache_of_registrations_sees_what_is_unmapped_and_lends_nothing";
    let _watchdog = Watchdog::with(name, PATIENCE);
    if child::role().is_some() {
        return child::tell(cached());
    }
    if domain().is_none() {
        return;
    }
    let env = [
        ("FI_MR_CACHE_MONITOR", "memhooks"),
        ("FI_MR_CACHE_MAX_COUNT", ""),
    ];
    let mut cached = Child::with_env(name, "cached", "", &env);
    println!("{}", cached.expect("sent", PATIENCE));
    assert!(cached.wait(common::SOON).success());
}

fn cached() -> String {
    let domain = domain().expect("the parent has one");
    let receive = small_receiver().connection(|c| c.windows(4));
    let mut pair = Pair::with(&domain, common::sending(), receive);
    let rounds = rounds();
    let again = remap(&mut pair, &domain, rounds);

    let slice = region(4096).slice(0..4096).expect("all of it");
    let window = pair.sender().windows().expose(slice, Access::READ);
    let provider = domain.fabric().provider();
    match window {
        Ok(_) => assert!(!provider.memory.caches_registrations, "{}", provider.name),
        Err(refused) => {
            assert!(provider.memory.caches_registrations, "{refused}");
            let text = refused.to_string();
            assert!(text.contains("FI_MR_CACHE_MONITOR"), "{text}");
        }
    }
    format!("sent from {rounds} regions, {again} of them where one had been")
}
