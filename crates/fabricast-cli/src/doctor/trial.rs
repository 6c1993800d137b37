//! A transfer over loopback by one provider, in a process of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::error::Error;
use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    BufferSource, DiscardSink, ReceiverConfig, SendOptions, SenderConfig, StreamReceiver,
    StreamSender,
};
use fabricast::{Domain, Fabric, PeerAddr};

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

/// How long they may take.
const IN_TIME: Duration = Duration::from_secs(20);

/// How long either side may take to close.
const CLOSE: Duration = Duration::from_secs(2);

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

/// The trial itself, in its process: to `to`, or to a receiver of its own.
pub(super) fn run(provider: &str, to: Option<&str>) -> Result<(), Failure> {
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
                let why = why.to_string();
                let why = why.trim_start_matches(&format!("provider {provider}: "));
                say(format_args!("{NOT_TRIED}{why}"));
                return Ok(());
            }
        },
    };
    let domain = fabric.open_domain()?;
    if let Some(to) = to {
        return send(&domain, to.parse().map_err(Failure::of)?);
    }
    let report = domain.report();
    let at: PeerAddr = match node {
        Some(_) => "127.0.0.1:0".parse().expect("an address"),
        None => "any".parse().expect("an address"),
    };
    let config = ReceiverConfig::new(DiscardSink).stream(|s| s.rail_threads(1));
    let receiver = StreamReceiver::listen(&domain, at, config).map_err(Failure::of)?;
    let to = receiver.local_addr();
    // Its peers are other processes.
    if provider == "shm" {
        let to = to.to_string();
        let words = ["--trial", provider, "--trial-to", &to];
        let end = End::of(&words, IN_TIME + CLOSE * 2).map_err(Failure::new)?;
        if let Some(why) = end.failure() {
            return Err(Failure::new(why));
        }
    } else {
        send(&domain, to)?;
    }
    receiver.close(Instant::now() + CLOSE);
    say(format_args!(
        "{} MiB moved over loopback, libfabric {} at {}",
        BYTES >> 20,
        report.library,
        report.interface,
    ));
    Ok(())
}

/// Sends to a receiver.
fn send(domain: &Arc<Domain>, to: PeerAddr) -> Result<(), Failure> {
    let config = SenderConfig::default().stream(|s| s.rail_threads(1));
    let sender = StreamSender::open(domain, config).map_err(Failure::of)?;
    let pool = SharedBufferManager::allocate(1, BYTES)?;
    sender.register(&pool).map_err(Failure::of)?;
    let buffer = pool.try_acquire().expect("one is free").freeze(BYTES);
    let source = BufferSource::new("doctor", buffer, [0; 16]).map_err(Failure::of)?;
    let options = SendOptions::default().reconnects(0);
    let transfer = sender.send(source, [to], options).map_err(Failure::of)?;
    let outcome = transfer.wait(Instant::now() + IN_TIME);
    let outcome = outcome.and_then(|mut outcomes| outcomes.pop());
    let nothing = || Failure::new(format!("nothing moved in {IN_TIME:?}"));
    outcome.ok_or_else(nothing)?.result.map_err(Failure::of)?;
    sender.close(Instant::now() + CLOSE);
    Ok(())
}
