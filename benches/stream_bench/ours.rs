//! The library's side: `StreamSender`, `StreamReceiver`. Both are opened once, as a service does;
//! each run is a stream, with connections of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    BlockSource, Limits, ReceiverConfig, SendOptions, SenderConfig, SinkFactory, StreamEvent,
    StreamReceiver, StreamSender,
};
use fabricast::{Domain, Fabric, PeerAddr};

use crate::case::{Case, Waits};
use crate::error::{Failure, fail};
use crate::host::cpu_seconds;
use crate::peer::answer;
use crate::sending::{Sent, timed};

/// How long a stream may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

fn fabric(case: &Case) -> Result<Arc<Fabric>, Failure> {
    let builder = Fabric::builder().provider(&case.provider);
    let kind = match case.rdm {
        true => EndpointKind::Rdm,
        false => EndpointKind::Msg,
    };
    let builder = builder.endpoint_kind(kind).node(&case.node);
    Ok(builder.open()?)
}

fn domain(case: &Case) -> Result<Arc<Domain>, Failure> {
    Ok(fabric(case)?.open_domain()?)
}

/// Provider and library, as they say what they are.
pub(crate) fn describe(case: &Case) -> Result<(String, String), Failure> {
    let report = fabric(case)?.report();
    Ok((report.provider, report.library))
}

/// How long goodbyes may take.
pub(crate) fn goodbye() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

pub(crate) fn sender(case: &Case, pinned: bool) -> Result<StreamSender, Failure> {
    let (block, buffers) = (u32::try_from(case.block)?, u32::try_from(case.buffers)?);
    let config = SenderConfig::default()
        .stream(|s| s.block_bytes(block).buffers(buffers))
        .stream(|s| s.threads(case.readers).pinned(pinned))
        .depth(u32::try_from(case.depth)?);
    Ok(StreamSender::open(&domain(case)?, config)?)
}

/// Sends what `source` opens.
pub(crate) fn send<S: BlockSource>(
    sender: &StreamSender,
    to: &str,
    options: SendOptions,
    source: impl FnOnce() -> Result<S, Failure>,
) -> Result<Sent, Failure> {
    let to: PeerAddr = to.parse()?;
    let (mut sent, outcomes) = timed(|| {
        let transfer = sender.send(source()?, [to], options)?;
        let outcomes = transfer.wait(Instant::now() + LIMIT);
        outcomes.ok_or_else(|| Failure::of("a stream was not done in time"))
    })?;
    for outcome in outcomes {
        outcome.result?;
        let (stalls, took) = (outcome.report.stalls, outcome.report.took);
        let share = |time: Duration| time.as_secs_f64() / took.as_secs_f64();
        let waits = [stalls.disk, stalls.wire, stalls.credits, stalls.sink];
        sent.waits = Waits(waits.map(share));
        sent.path = outcome.report.path;
    }
    Ok(sent)
}

/// Takes streams, and gives them to sinks of this kind. `windows`: blocks that senders may write by
/// themselves.
pub(crate) fn receiver(
    case: &Case,
    sink: impl SinkFactory,
    (pinned, windows): (bool, usize),
) -> Result<StreamReceiver, Failure> {
    let (receives, block) = (u32::try_from(case.receives)?, u32::try_from(case.block)?);
    let limits = Limits::default()
        .bytes(2 * case.size as u64)
        .block_bytes(1 << 28);
    let config = ReceiverConfig::new(sink)
        .stream(|s| s.pinned(pinned).block_bytes(block))
        .stream(|s| s.buffers(2 * receives).threads(case.writers).connections(1))
        .credits(receives)
        .rma_slots(u32::try_from(windows)?)
        .limits(limits);
    let addr = format!("{}:0", case.node).parse()?;
    Ok(StreamReceiver::listen(&domain(case)?, addr, config)?)
}

/// Says where the receiver is, and waits for one stream; processor seconds.
pub(crate) fn receive(receiver: &StreamReceiver) -> Result<f64, Failure> {
    answer(&format!("at {}", receiver.local_addr()))?;
    let cpu = cpu_seconds();
    loop {
        match receiver.next(LIMIT) {
            Some(StreamEvent::Complete(..)) => return Ok(cpu_seconds() - cpu),
            Some(StreamEvent::Cut(_, error, _)) => return Err(error.into()),
            Some(StreamEvent::Refused { code, reason, .. }) => {
                return fail(format!("refused: {code}: {reason}"));
            }
            Some(_) => {}
            None => return fail("no stream came"),
        }
    }
}
