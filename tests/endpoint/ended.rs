//! Whoever sleeps on an endpoint that is over, or that has another one of the provider's in its
//! place: the queue that is asked is then one of an endpoint that is no more, and a provider may
//! look into that (`ProviderQueues::waits_on_closed`).

use std::sync::Arc;
use std::time::Instant;

use fabricast::endpoint::ReconnectPolicy;
use fabricast::event_loop::Waitable;
use fabricast::fabric::{EndpointKind, PROVIDERS};
use fabricast::{Domain, Fabric, PeerAddr, ReceiveEndpoint, SendEndpointZeroCopy, SendEvent};

use crate::common::child::{self, Child};
use crate::common::{SOON, Watchdog, after, drive, millis, node, sending, small_receiver};

/// What the rows of `ofi_rxm` ask for.
const ENVIRONMENT: [(&str, &str); 2] = [("FI_OFI_RXM_SAR_LIMIT", "0"), ("FI_OFI_RXM_USE_SRX", "1")];

/// As a loop of the user's does, and as ours: asks, and sleeps.
fn sleep_on(endpoint: &impl Waitable, wait: impl Fn()) {
    let handle = endpoint.wait_handle();
    for _ in 0..20 {
        handle.prepare_wait().expect("answers");
        wait();
    }
}

/// A sender to an address where nobody listens: it ends, or tries again and again over another
/// endpoint each time, and is slept on meanwhile and afterwards.
fn sleep_on_a_sender(domain: &Arc<Domain>, to: PeerAddr, tries: bool) {
    let mut config = sending().connection(|c| c.connect_timeout(millis(20)));
    if tries {
        let again = ReconnectPolicy::fixed(millis(1)).max_attempts(5);
        config = config.connection(|c| c.reconnect(again));
    }
    let mut sender = SendEndpointZeroCopy::connect(domain, to, config).expect("begins");
    let mut events: Vec<SendEvent> = Vec::new();
    drive("its end", SOON, || {
        sender.poll(&mut events).expect("polls");
        sleep_on(&sender, || sender.wait(millis(1)).expect("sleeps"));
        sender.close_reason().is_some()
    });
    sleep_on(&sender, || sender.wait(millis(1)).expect("sleeps"));
}

/// Over one provider, in a process of its own: what is wrong here ends it by a signal.
fn sleep_on_what_is_over(provider: &str) {
    let opened = Fabric::builder().provider(provider).node(node());
    let domain = opened.endpoint_kind(EndpointKind::Rdm).open();
    let domain = match domain.and_then(|fabric| fabric.open_domain()) {
        Ok(domain) => domain,
        Err(why) => return child::tell(format!("SKIPPED: {provider}: {why}")),
    };
    let at = crate::common::anywhere(&domain);
    let mut receiver = ReceiveEndpoint::listen(&domain, at, small_receiver()).expect("listens");
    let nobody = receiver.local_addr();
    receiver.begin_close(after(millis(50)));
    let mut events = Vec::new();
    let until = Instant::now() + millis(200);
    drive("a while", SOON, || {
        receiver.poll(&mut events).expect("polls");
        sleep_on(&receiver, || receiver.wait(millis(1)).expect("sleeps"));
        Instant::now() >= until
    });
    drop(receiver);
    sleep_on_a_sender(&domain, nobody, false);
    sleep_on_a_sender(&domain, nobody, true);
    child::tell("done");
}

#[test]
fn an_endpoint_that_is_over_may_be_slept_on() {
    const TEST: &str = "an_endpoint_that_is_over_may_be_slept_on";
    let _dog = Watchdog::new(TEST);
    if child::role().is_some() {
        return sleep_on_what_is_over(&child::argument());
    }
    let rows = PROVIDERS
        .iter()
        .filter(|row| row.endpoints.contains(&EndpointKind::Rdm))
        .filter(|row| row.names.is_none() && row.refused.is_none());
    let mut ran = 0;
    for row in rows {
        let mut process = Child::with_env(TEST, "sleeps", row.name, &ENVIRONMENT);
        let told = process.expect("", SOON);
        process.finish(SOON);
        match told.as_str() {
            "done" => ran += 1,
            why => println!("{why}"),
        }
    }
    println!("{ran} providers");
}
