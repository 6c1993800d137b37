//! The receiving side.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use fabricast::PeerAddr;
use fabricast::buffer::DeviceBufferManager;
use fabricast::stream::{
    Arrival, DirectorySink, DiscardSink, EntryKind, Limits, LinkTargets, PresharedKey,
    ReceiverConfig, RefusalCode, SinkFactory, StreamError, StreamEvent, StreamReceiver, ThroughGpu,
};
use tempfile::TempDir;

use crate::failure::{End, Failure};
use crate::interrupt;
use crate::parent::end_with_parent;
use crate::say::say;
use crate::stream::args::RecvArgs;
use crate::stream::far::LibraryStart;
use crate::stream::name_pattern::NamePattern;
use crate::stream::report::result_to_json;
use crate::stream::slurm::{self, Task};
#[cfg(feature = "charts")]
use crate::stream::timeline;
use crate::stream::{common_settings, device_buffers, open_domain};
use crate::sums;

/// How long goodbyes may take.
pub(crate) const GOODBYE: Duration = Duration::from_secs(5);

/// The port where nobody asks for one.
const PORT: u16 = 7471;

/// How often it is looked whether somebody asked for an end.
const LOOK: Duration = Duration::from_millis(100);

/// Receives streams until the process is ended, or with `--once` until one is over.
pub(crate) fn run(args: &RecvArgs) -> Result<(), Failure> {
    end_with_parent(args.child)?;
    interrupt::watch()?;
    let start = LibraryStart::begin();
    if let Some(shared) = &args.slurm {
        let task = Task::of_environment()?;
        return match task.is_sender() {
            true => {
                let text = "--slurm: task 0 sends: let it run fabricast send";
                Err(Failure::new(text).ends(End::Usage))
            }
            false => slurm::receive(args, shared, &task, start),
        };
    }
    let key = match &args.common.key {
        Some(path) => Some(PresharedKey::from_file(path).map_err(Failure::of)?),
        None => None,
    };
    let spool = match args.output {
        Some(_) => Some(tempfile::tempdir().map_err(spool_failed)?),
        None => None,
    };
    let dir = spool.as_ref().map_or(args.dir.as_path(), TempDir::path);
    let at = match args.listen.is_empty() {
        true => vec![SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)).into()],
        false => args.listen.clone(),
    };
    let receiver = open(args, dir, &at, key, start)?;
    let line = listening_line(&receiver, args.common.json);
    match spool {
        Some(_) => eprintln!("{line}"),
        None => say(line),
    }
    loop {
        if let Some(end) = interrupt::asked() {
            receiver.close(Instant::now());
            let text = "interrupted: what was under way goes on when its sender's command is \
                        given again";
            return Err(Failure::new(text).ends(end));
        }
        let Some(news) = receiver.next(LOOK) else {
            continue;
        };
        let ended = match (&spool, &news) {
            (Some(spool), StreamEvent::Complete(stream, _)) => Some(put_out(spool.path(), stream)),
            _ => tell(args, &news),
        };
        if (args.once || spool.is_some())
            && !is_of_stranger(&news)
            && let Some(result) = ended
        {
            receiver.close(Instant::now() + GOODBYE);
            return result;
        }
        if let Some(Err(failure)) = ended {
            eprintln!("fabricast: {failure}");
        }
    }
}

/// What a receiver says first.
fn listening_line(receiver: &StreamReceiver, json: bool) -> String {
    let addrs = receiver.local_addrs().iter().map(ToString::to_string);
    let addrs: Vec<_> = addrs.collect();
    match json {
        true => serde_json::json!({"type": "listening", "addresses": addrs}).to_string(),
        false => format!("listening on {}", addrs.join(",")),
    }
}

/// Its addresses, as they stand in that line, with commas between them.
pub(super) fn addresses_in(line: &str) -> Option<String> {
    if let Some(addresses) = line.trim_end().strip_prefix("listening on ") {
        return Some(addresses.to_owned());
    }
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    let listening = value["addresses"]
        .as_array()
        .filter(|_| value["type"] == "listening")?;
    let addresses: Option<Vec<_>> = listening.iter().map(serde_json::Value::as_str).collect();
    addresses.map(|all| all.join(","))
}

/// Whether this is only that somebody without the key was refused.
fn is_of_stranger(news: &StreamEvent) -> bool {
    matches!(news, StreamEvent::Refused { code, .. } if *code == RefusalCode::KEY)
}

fn spool_failed(error: io::Error) -> Failure {
    Failure::os("temporary directory", &error).ends(End::Sink)
}

/// Writes the hashes of what has arrived beside it, where that is asked for.
pub(crate) fn write_sums(args: &RecvArgs, news: &StreamEvent) -> Result<(), Failure> {
    let StreamEvent::Complete(stream, report) = news else {
        return Ok(());
    };
    match (&stream.manifest, &report.entry_hashes) {
        (Some(manifest), Some(hashes)) if args.sums => sums::write(&args.dir, manifest, hashes),
        _ => Ok(()),
    }
}

/// Draws where the time of a stream went that is over, where that is asked for.
#[cfg_attr(not(feature = "charts"), allow(unused_variables))]
pub(crate) fn write_timeline(args: &RecvArgs, news: &StreamEvent) -> Result<(), Failure> {
    #[cfg(feature = "charts")]
    if let Some(path) = args.timeline()
        && let StreamEvent::Complete(stream, report) | StreamEvent::Cut(stream, _, report) = news
    {
        let error = match news {
            StreamEvent::Cut(_, error, _) => Some(error.to_string()),
            _ => None,
        };
        let (peer, addresses) = (name_of(stream.peer), Vec::new());
        let drawn = timeline::Drawn {
            peer,
            report,
            addresses,
            error,
        };
        return timeline::write(path, timeline::Side::Receiver, &[drawn]);
    }
    Ok(())
}

/// Writes the files of a stream that lie in this directory to standard output.
fn put_out(dir: &Path, stream: &Arrival) -> Result<(), Failure> {
    let Some(manifest) = &stream.manifest else {
        return Err(Failure::new(
            "the list of files is gone: there was no memory for it",
        ));
    };
    let mut out = io::stdout().lock();
    for entry in manifest.iter() {
        if entry.kind != EntryKind::File {
            continue;
        }
        let path = dir.join(entry.name.as_path());
        let failed = |error| Failure::os("standard output", &error).ends(End::Sink);
        let mut file = File::open(&path).map_err(|error| Failure::file(&path, &error))?;
        io::copy(&mut file, &mut out).map_err(failed)?;
    }
    io::Write::flush(&mut out).map_err(|error| Failure::os("standard output", &error))
}

/// Listens at these addresses, for what is written below this directory.
pub(crate) fn open(
    args: &RecvArgs,
    dir: &Path,
    at: &[PeerAddr],
    key: Option<PresharedKey>,
    start: LibraryStart,
) -> Result<StreamReceiver, Failure> {
    #[cfg(feature = "charts")]
    args.timeline().map_or(Ok(()), timeline::check)?;
    let config = config(args, dir, key)?;
    start.wait();
    let mut places = Vec::new();
    for addr in at {
        let local = addr.socket_addr().map(|local| local.ip());
        let domain = open_domain(&args.common, local)?;
        places.push((domain, *addr));
    }
    StreamReceiver::listen_at(&places, config).map_err(Failure::of)
}

/// What happened, for people; and if a stream is over, how it ended.
pub(crate) fn tell(args: &RecvArgs, news: &StreamEvent) -> Option<Result<(), Failure>> {
    match news {
        StreamEvent::Complete(stream, report) => {
            // Whoever reads that it has arrived finds them.
            let written = write_sums(args, news).and(write_timeline(args, news));
            match args.common.json {
                true => say(result_to_json(&name_of(stream.peer), &Ok(()), report)),
                false => {
                    let first = stream.manifest.as_ref().and_then(|all| all.get(0));
                    let first = first.map_or_else(String::new, |it| it.name.to_string());
                    let files = stream.entries;
                    say(format_args!(
                        "received {first:?} and {} more: {report}",
                        files.saturating_sub(1)
                    ));
                }
            }
            Some(written)
        }
        StreamEvent::Cut(stream, error, report) => {
            if args.common.json {
                let result = Err(error.clone());
                say(result_to_json(&name_of(stream.peer), &result, report));
            }
            if let Err(failure) = write_timeline(args, news) {
                eprintln!("fabricast: {failure}");
            }
            let text = format!("a stream ended after {} bytes: {error}", report.bytes);
            let end = match error {
                // Files are what it writes.
                StreamError::File(_) => End::Sink,
                error => End::of(error),
            };
            Some(Err(Failure::new(text).ends(end)))
        }
        StreamEvent::Refused { code, reason, .. } => {
            let code = code.to_string();
            let text = match reason.contains(&code) {
                true => reason.clone(),
                false if reason.is_empty() => format!("refused: {code}"),
                false => format!("refused: {code}: {reason}"),
            };
            Some(Err(Failure::new(text).ends(End::Refused)))
        }
        _ => None,
    }
}

fn name_of(peer: Option<PeerAddr>) -> String {
    peer.map_or_else(|| "a sender".to_owned(), |peer| peer.to_string())
}

fn config(
    args: &RecvArgs,
    dir: &Path,
    key: Option<PresharedKey>,
) -> Result<ReceiverConfig, Failure> {
    let gpu = device_buffers(&args.common, args.writers)?;
    let base = match args.discard {
        true => taking(DiscardSink, gpu),
        false => {
            let failed = |error| Failure::file(dir, &error).ends(End::Sink);
            let sink = DirectorySink::new(dir).map_err(failed)?;
            let sink = sink.links(match args.any_links {
                true => LinkTargets::Any,
                false => LinkTargets::Within,
            });
            let (protected, removed) = (args.protect.clone(), args.unprotect.clone());
            let sink = sink
                .allow_delete(args.allow_delete)
                .owners(args.owners)
                .attributes(args.xattrs)
                .protect(move |below, kind| {
                    NamePattern::are_for(&protected, &removed, below, kind)
                });
            if let Some(days) = args.forget_after {
                let age = Duration::from_secs(u64::from(days) * 86_400);
                sink.forget_partials(age).map_err(failed)?;
            }
            taking(sink, gpu)
        }
    };
    let limits = Limits::default()
        .bytes(args.max_size)
        .entries(args.max_files)
        .block_bytes(1 << 28);
    let mut config = base
        .stream(|s| {
            let s = common_settings(&args.common, args.writers, s).connections(args.peers);
            match args.common.buffers {
                Some(buffers) => s.buffers(2 * buffers),
                None => s,
            }
        })
        .stalled_after(args.common.patience())
        .timeline(args.timeline().is_some())
        .limits(limits);
    if let Some(buffers) = args.common.buffers {
        config = config.credits(buffers);
    }
    if let Some(windows) = args.windows {
        config = config.rma_slots(windows);
    }
    if let Some(key) = key {
        config = config.stream(|s| s.key(key));
    }
    Ok(config)
}

/// Streams go to sinks of this kind, through a GPU's memory where there are buffers in it.
fn taking(sink: impl SinkFactory, gpu: Option<DeviceBufferManager>) -> ReceiverConfig {
    match gpu {
        None => ReceiverConfig::new(sink),
        Some(gpu) => ReceiverConfig::new(ThroughGpu::new(sink, gpu)),
    }
}
