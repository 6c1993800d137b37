//! The sending side: one transfer to all receivers.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use fabricast::storage::DirectIo;
use fabricast::stream::{
    BlockSource, FileSource, Peer, PeerOutcome, PresharedKey, SendOptions, SenderConfig, SlowPeer,
    SourceError, StreamSender, ThroughGpu, Transport,
};

use crate::failure::{End, Failure, describe};
use crate::parent::end_with_parent;
use crate::say::say;
use crate::stream::args::{By, SendArgs, Slow};
use crate::stream::report::{Progress, Summary};
use crate::stream::{common_settings, device_buffers, open_domain};

/// How often progress is shown.
const TICK: Duration = Duration::from_millis(100);
/// How long goodbyes may take, when everything has been answered for.
const GOODBYE: Duration = Duration::from_secs(5);

/// Sends everything, and returns when every receiver has it.
pub(crate) fn run(args: &SendArgs) -> Result<(), Failure> {
    end_with_parent(args.child)?;
    let mut source = FileSource::builder();
    for path in &args.paths {
        source = source.path(path);
    }
    if args.direct {
        source = source.direct(DirectIo::On);
    }
    // Before the first byte is sent: a mistyped name costs nothing.
    let source = source.build().map_err(source_failed)?;
    tell_skipped(args, &source)?;
    let entries = source.manifest().len();
    let gpu = device_buffers(&args.common, args.readers)?;
    let mut domains = Vec::new();
    for addr in &args.to[0].0 {
        let local = addr.socket_addr().map(local_address).transpose()?;
        domains.push(open_domain(&args.common, local)?);
    }
    let sender = StreamSender::over(&domains, config(args)?).map_err(Failure::of)?;
    let peers = args.to.iter().map(|to| Peer::new(to.0.iter().copied()));
    let transfer = match gpu {
        None => sender.send(source, peers, options(args)),
        Some(gpu) => sender.send(ThroughGpu::new(source, gpu), peers, options(args)),
    };
    let transfer = transfer.map_err(Failure::of)?;
    let progress = transfer.progress();
    let mut shown = Progress::new(progress.iter().map(|peer| peer.total), &args.to);
    let outcomes = loop {
        if let Some(outcomes) = transfer.wait(Instant::now() + TICK) {
            break outcomes;
        }
        shown.show(&transfer.progress());
    };
    drop(shown);
    sender.close(Instant::now() + GOODBYE);
    tell(args, &outcomes, entries, &domains[0].report())
}

fn source_failed(error: SourceError) -> Failure {
    Failure::of(error).ends(End::Source)
}

/// Lines of what is skipped that are printed.
const SKIPPED_SHOWN: usize = 20;

/// Says what is not sent, on stderr; an error if it must be nothing.
fn tell_skipped(args: &SendArgs, source: &FileSource) -> Result<(), Failure> {
    let all = source.skipped();
    if all == 0 {
        return Ok(());
    }
    for skipped in source.skipped_paths().iter().take(SKIPPED_SHOWN) {
        eprintln!("skipped {}: {}", skipped.path.display(), skipped.what);
    }
    let more = all.saturating_sub(SKIPPED_SHOWN as u64);
    if more > 0 {
        eprintln!("skipped {more} more");
    }
    match args.strict {
        true => Err(Failure::new(format!(
            "--strict: {all} of what is to be sent are neither files nor directories"
        ))),
        false => Ok(()),
    }
}

/// What became of it, receiver by receiver; an error if one does not have it.
fn tell(
    args: &SendArgs,
    outcomes: &[PeerOutcome],
    entries: usize,
    fabric: &fabricast::fabric::Report,
) -> Result<(), Failure> {
    let mut failures = Vec::new();
    for outcome in outcomes {
        let PeerOutcome {
            peer,
            result,
            report,
            ..
        } = outcome;
        if args.common.json {
            say(report.to_json());
        } else if result.is_ok() {
            say(Summary {
                entries,
                block: args.common.block,
                peer,
                report,
                fabric,
            });
        }
        if let Err(error) = result {
            failures.push((format!("{peer}: {error}"), End::of(error)));
        }
    }
    let Some(&(_, first)) = failures.first() else {
        return Ok(());
    };
    let end = match failures.iter().all(|(_, end)| *end == first) {
        true => first,
        false => End::Failed,
    };
    let texts: Vec<_> = failures.into_iter().map(|(text, _)| text).collect();
    Err(Failure::new(texts.join("; ")).ends(end))
}

fn config(args: &SendArgs) -> Result<SenderConfig, Failure> {
    let mut config = SenderConfig::default().stream(|s| {
        let s = common_settings(&args.common, args.readers, s);
        match args.common.buffers {
            Some(buffers) => s.buffers(buffers),
            None => s,
        }
    });
    if let Some(path) = &args.common.key {
        let key = PresharedKey::from_file(path).map_err(Failure::of)?;
        config = config.stream(|s| s.key(key));
    }
    Ok(config)
}

fn options(args: &SendArgs) -> SendOptions {
    let patience = args.common.patience();
    let options = SendOptions::default()
        .crc32c(!args.no_crc)
        .blake3(args.blake3)
        .transport(match args.by {
            By::Auto => Transport::Auto,
            By::Message => Transport::Message,
            By::Write => Transport::Write,
        })
        .sync(args.sync)
        .read_back(args.read_back)
        .restart(args.restart)
        .rate(args.rate)
        .reconnects(args.retries)
        .stalled_after(patience)
        .slow(match args.slow {
            Slow::Wait => SlowPeer::Wait(patience),
            Slow::CatchUp => SlowPeer::CatchUp,
            Slow::Drop => SlowPeer::Drop(patience),
        });
    match args.rails {
        Some(rails) => options.rails(rails),
        None => options,
    }
}

/// The address that this machine has towards a peer. No packet is sent: a datagram socket only
/// looks up the route.
fn local_address(peer: SocketAddr) -> Result<IpAddr, Failure> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0; 16].into(),
    };
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(peer)?;
        socket.local_addr()
    });
    found
        .map(|address| address.ip())
        .map_err(|error| Failure::new(format!("{peer}: {}", describe(&error))))
}
