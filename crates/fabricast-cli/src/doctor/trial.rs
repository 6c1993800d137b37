//! A transfer over loopback by one provider, in a process of its own.

use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::error::Error;
use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    BufferSource, DiscardSink, ReceiverConfig, SendOptions, SenderConfig, StreamReceiver,
    StreamSender,
};
use fabricast::{Fabric, PeerAddr};

use super::child::End;
use super::{Finding, State};
use crate::failure::Failure;
use crate::say::say;

const CHECK: &str = "provider";

/// What a trial says first where the provider is not there.
const NOT_HERE: &str = "not here: ";

/// What it says first where this library does not use the provider as it is.
const NOT_TRIED: &str = "not tried: ";

/// Bytes that are moved.
const BYTES: usize = 4 << 20;

/// What came of a trial; `None`: the provider is not here.
pub(super) fn of(provider: &str, patience: Duration) -> Option<Finding> {
    let failed = |what: String| {
        let what = format!("{provider}: {what}");
        Some(Finding::new(CHECK, State::Warn, what).todo("use another one: --provider"))
    };
    let end = match End::of(&["--trial", provider], patience) {
        Ok(end) => end,
        Err(why) => return failed(why),
    };
    if let Some(why) = end.failure() {
        return failed(why);
    }
    let said = end.out;
    let state = match said.starts_with(NOT_TRIED) {
        true => State::Note,
        false => State::Ok,
    };
    let found = || Finding::new(CHECK, state, format!("{provider}: {said}"));
    (!said.starts_with(NOT_HERE)).then(found)
}

/// The trial itself, in its process.
pub(super) fn run(provider: &str) -> Result<(), Failure> {
    let open = |kind, node: Option<&str>| {
        let builder = Fabric::builder().provider(provider).endpoint_kind(kind);
        match node {
            Some(node) => builder.node(node).open(),
            None => builder.open(),
        }
    };
    let over_ip = fabricast::fabric::provider(provider).is_some_and(|row| row.over_tcp);
    let node = over_ip.then_some("127.0.0.1");
    let fabric = match open(EndpointKind::Msg, node) {
        Ok(fabric) => fabric,
        Err(first) => match (first, open(EndpointKind::Rdm, node)) {
            (_, Ok(fabric)) => fabric,
            (Error::NoProvider(why), _) | (_, Err(Error::NoProvider(why))) => {
                say(format_args!("{NOT_HERE}{why}"));
                return Ok(());
            }
            // What the library knows of it.
            (_, Err(why)) => {
                say(format_args!("{NOT_TRIED}{why}"));
                return Ok(());
            }
        },
    };
    if provider == "shm" {
        let how = "fabricast demo --provider shm --rdm";
        say(format_args!(
            "{NOT_TRIED}it is here, and its peers are other processes: try {how}"
        ));
        return Ok(());
    }
    let domain = fabric.open_domain()?;
    let report = domain.report();
    let at: PeerAddr = match node {
        Some(_) => "127.0.0.1:0".parse().expect("an address"),
        None => "any".parse().expect("an address"),
    };
    let config = ReceiverConfig::new(DiscardSink).stream(|s| s.rail_threads(1));
    let receiver = StreamReceiver::listen(&domain, at, config).map_err(Failure::of)?;
    let config = SenderConfig::default().stream(|s| s.rail_threads(1));
    let sender = StreamSender::open(&domain, config).map_err(Failure::of)?;
    let pool = SharedBufferManager::allocate(1, BYTES)?;
    sender.register(&pool).map_err(Failure::of)?;
    let buffer = pool.try_acquire().expect("one is free").freeze(BYTES);
    let source = BufferSource::new("doctor", buffer, [0; 16]).map_err(Failure::of)?;
    let to = receiver.local_addr();
    let options = SendOptions::default().reconnects(0);
    let transfer = sender.send(source, [to], options).map_err(Failure::of)?;
    let outcome = transfer.wait(Instant::now() + Duration::from_secs(20));
    let outcome = outcome.and_then(|mut outcomes| outcomes.pop());
    let outcome = outcome.ok_or_else(|| Failure::new("nothing moved in 20 s"))?;
    outcome.result.map_err(Failure::of)?;
    let soon = Instant::now() + Duration::from_secs(2);
    sender.close(soon);
    receiver.close(soon);
    say(format_args!(
        "{} MiB moved over loopback, libfabric {} at {}",
        BYTES >> 20,
        report.library,
        report.interface,
    ));
    Ok(())
}
