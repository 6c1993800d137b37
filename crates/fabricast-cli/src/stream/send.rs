//! The sending side: one transfer to all receivers.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fabricast::storage::DirectIo;
use fabricast::stream::{
    BlockSource, Deletion, FileSource, PeerOutcome, PresharedKey, SendOptions, SenderConfig,
    SlowPeer, SourceError, SourceLinks, StreamSender, ThroughGpu, Transport,
};

use crate::failure::{End, Failure};
use crate::interrupt;
use crate::parent::end_with_parent;
use crate::say::say;
use crate::stream::args::{Addresses, By, Links, SendArgs, Slow, Unchanged};
use crate::stream::dry_run;
use crate::stream::far::place::FarPlace;
use crate::stream::far::{self, FarEnd, Hello, LibraryStart, Request, Role};
use crate::stream::name_pattern::NamePattern;
use crate::stream::progress::{Meters, Progress};
use crate::stream::report::{Summary, Voice, result_to_json};
use crate::stream::route::{Route, Target};
use crate::stream::slurm::{self, Task};
#[cfg(feature = "charts")]
use crate::stream::timeline;
use crate::stream::ways::{Ways, rails_to_json};
use crate::stream::{common_settings, device_buffers};

/// How often progress is shown.
const TICK: Duration = Duration::from_millis(100);
/// How long goodbyes may take, when everything has been answered for.
const GOODBYE: Duration = Duration::from_secs(5);

/// Sends everything, and returns when every receiver has it.
pub(crate) fn run(args: &SendArgs) -> Result<(), Failure> {
    end_with_parent(args.child)?;
    interrupt::watch()?;
    if let Some(shared) = &args.slurm.slurm {
        if args.delete && !args.exclude.is_empty() {
            return Err(excluded_is_unknown("--slurm"));
        }
        let task = Task::of_environment()?;
        if !task.is_sender() {
            return slurm::receive_of_send(args, shared, &task);
        }
        args.far.check()?;
        return slurm::send(args, shared, &task);
    }
    args.far.check()?;
    let route = Route::of(args)?;
    if args.delete && !args.exclude.is_empty() {
        let meets_others = match &route {
            Route::Push(_, targets) => targets.iter().any(|it| matches!(it, Target::At(_))),
            Route::Pull(..) => false,
        };
        if meets_others {
            return Err(excluded_is_unknown("addresses (--to, --hosts)"));
        }
    }
    if args.dry_run && args.delete {
        eprintln!("--delete: what receivers would remove is not shown");
    }
    match route {
        Route::Push(paths, _) if args.dry_run => {
            let source = Source::of(args, &paths)?;
            source.list(Voice::of(args.common.json, args.quiet));
            Ok(())
        }
        Route::Push(paths, targets) => push(args, &paths, &targets),
        Route::Pull(from, _) if args.dry_run => far::pull::list(args, &from),
        Route::Pull(from, into) => far::pull::run(args, &from, &into),
    }
}

/// A receiver that this command does not start would remove what is left out.
fn excluded_is_unknown(option: &str) -> Failure {
    let text = format!(
        "--delete with --exclude and {option}: a receiver that this command does not start does \
         not know what is left out, and would remove it; send to HOST:DIR, or leave one of them out"
    );
    Failure::new(text).ends(End::Usage)
}

/// A receiver before it is known where it listens.
enum Starting<'a> {
    At(&'a Addresses),
    Far(&'a FarPlace, FarEnd),
}

fn push(args: &SendArgs, paths: &[PathBuf], targets: &[Target]) -> Result<(), Failure> {
    let is_far = |target: &Target| matches!(target, Target::Far(_));
    let any_far = targets.iter().any(is_far);
    if any_far && !targets.iter().all(is_far) && args.common.key.is_none() {
        let text = "--to beside HOST:DIR: name the key of the one that listens by --key, which the \
                    others are given, too";
        return Err(Failure::new(text).ends(End::Usage));
    }
    let key = match (any_far, &args.common.key) {
        (false, None) => None,
        _ => Some(far::key_bytes(&args.common)?),
    };
    // Side by side: the far ends' shells, libfabric, and the survey of what is sent.
    let mut starting = Vec::new();
    for target in targets {
        starting.push(match target {
            Target::At(to) => Starting::At(to),
            Target::Far(place) => Starting::Far(place, FarEnd::start(place, &args.far)?),
        });
    }
    let start = LibraryStart::begin();
    let source = Source::of(args, paths)?;
    for receiver in &mut starting {
        if let Starting::Far(place, end) = receiver {
            let hello = end.hello()?;
            end.ask(&Request {
                role: Role::Receive,
                args: far_recv_args(args, &place.path),
                key: key.clone().unwrap_or_default(),
                meet: meet(args, &hello),
                paths: Vec::new(),
                to: Vec::new(),
            })?;
        }
    }
    start.wait();
    let mut peers = Vec::new();
    for receiver in &mut starting {
        peers.push(match receiver {
            Starting::At(to) => Named::at(to),
            Starting::Far(place, end) => {
                let name = place.to_string();
                let to = far::addresses(&name, &end.listening()?)?;
                Named { name, to }
            }
        });
    }
    let sending = Sending {
        args,
        source,
        peers,
        key: key.as_deref().map(far::key).transpose()?,
        voice: Voice::of(args.common.json, args.quiet),
    };
    let result = sending.run(interrupt::asked);
    for receiver in starting {
        if let Starting::Far(_, end) = receiver {
            end.close();
        }
    }
    result
}

/// The addresses of this machine that a far end is to be reached from; none: where it was reached
/// from by the shell.
fn meet(args: &SendArgs, hello: &Hello) -> Vec<IpAddr> {
    let rails = far::rails(args, &hello.devices, hello.came_from);
    match hello.came_in {
        _ if !rails.is_empty() => rails,
        Some(_) => Vec::new(),
        None => vec![far::way_out(&hello.devices)],
    }
}

/// The arguments of a far end's `recv`.
fn far_recv_args(args: &SendArgs, dir: &str) -> Vec<String> {
    let mut words = far::far_recv(&args.common, dir);
    if args.sums {
        words.push("--sums".to_owned());
    }
    if args.owners {
        words.push("--owners".to_owned());
    }
    if args.xattrs {
        words.push("--xattrs".to_owned());
    }
    if args.delete {
        words.push("--allow-delete".to_owned());
        let protected = args.exclude.iter().map(|it| format!("--protect={it}"));
        words.extend(protected);
        let sent = args.include.iter().map(|it| format!("--unprotect={it}"));
        words.extend(sent);
    }
    if args.by == By::Write {
        words.push(format!("--windows={}", args.common.buffers.unwrap_or(16)));
    }
    words
}

/// What is sent.
pub(crate) struct Source {
    files: FileSource,
    /// What standard input gave.
    _spool: Option<File>,
}

impl Source {
    /// Looks at everything before the first byte is sent: a mistyped name costs nothing.
    pub(crate) fn of(args: &SendArgs, paths: &[PathBuf]) -> Result<Self, Failure> {
        let mut builder = FileSource::builder()
            .owners(args.owners)
            .attributes(args.xattrs);
        if !args.exclude.is_empty() {
            let (left_out, kept) = (args.exclude.clone(), args.include.clone());
            builder = builder
                .filter(move |below, kind| !NamePattern::are_for(&left_out, &kept, below, kind));
        }
        builder = builder.links(match args.links {
            Links::Keep => SourceLinks::Keep,
            Links::Follow => SourceLinks::Follow,
            Links::Skip => SourceLinks::Skip,
        });
        let mut spool = None;
        for path in paths {
            if path.as_os_str() != "-" {
                builder = builder.path(path);
                continue;
            }
            if spool.is_some() {
                return Err(Failure::new("-: standard input can be sent once").ends(End::Usage));
            }
            let file = spool_stdin()?;
            builder = builder.file_as(format!("/proc/self/fd/{}", file.as_raw_fd()), &args.name);
            spool = Some(file);
        }
        if args.direct {
            builder = builder.direct(DirectIo::On);
        }
        let files = builder.build().map_err(source_failed)?;
        tell_skipped(args, &files)?;
        Ok(Self {
            files,
            _spool: spool,
        })
    }

    /// Says what would be sent.
    pub(crate) fn list(&self, voice: Voice) {
        dry_run::list(self.files.manifest(), voice);
    }
}

/// All that standard input gives, in a file without a name: a stream's length is known when it
/// begins.
fn spool_stdin() -> Result<File, Failure> {
    let failed = |error| Failure::os("standard input, or the temporary file for it", &error);
    let mut file = tempfile::tempfile().map_err(failed)?;
    io::copy(&mut io::stdin().lock(), &mut file)
        .map_err(|error| failed(error).ends(End::Source))?;
    Ok(file)
}

/// A receiver, as people know it.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) to: Addresses,
}

impl Named {
    fn at(to: &Addresses) -> Self {
        let name = to.0.first().map(ToString::to_string).unwrap_or_default();
        Self {
            name,
            to: to.clone(),
        }
    }
}

/// One transfer to all receivers.
pub(crate) struct Sending<'a> {
    pub(crate) args: &'a SendArgs,
    pub(crate) source: Source,
    pub(crate) peers: Vec<Named>,
    pub(crate) key: Option<PresharedKey>,
    pub(crate) voice: Voice,
}

impl Sending<'_> {
    /// Sends it, until it is done or somebody asks for an end.
    pub(crate) fn run(self, asked: impl Fn() -> Option<End>) -> Result<(), Failure> {
        let Self {
            args,
            source,
            peers,
            key,
            voice,
        } = self;
        #[cfg(feature = "charts")]
        args.timeline().map_or(Ok(()), timeline::check)?;
        let names: Vec<_> = peers.iter().map(|peer| peer.name.clone()).collect();
        let entries = source.files.manifest().len();
        let mut meters = Meters::new(names.clone(), source.files.manifest());
        let gpu = device_buffers(&args.common, args.readers)?;
        let ways = Ways::open(&args.common, &args.far.rails(), &peers)?;
        let sender = StreamSender::over(ways.domains(), config(args, key)).map_err(Failure::of)?;
        let to = ways.peers();
        let options = options(args).delete(deletion(args, &source.files));
        let transfer = match gpu {
            None => sender.send(source.files, to, options),
            Some(gpu) => sender.send(ThroughGpu::new(source.files, gpu), to, options),
        };
        let transfer = transfer.map_err(Failure::of)?;
        let mut progress = Progress::new(voice);
        let mut end = None;
        let outcomes = loop {
            if let Some(outcomes) = transfer.wait(Instant::now() + TICK) {
                break outcomes;
            }
            if end.is_none() {
                end = asked();
                if end.is_some() {
                    transfer.cancel();
                }
            }
            progress.show(&meters.measure(&transfer.progress()));
        };
        drop(progress);
        sender.close(Instant::now() + GOODBYE);
        let told = Told {
            args,
            names: &names,
            ways: &ways,
            entries,
            voice,
        };
        let result = told.tell(&outcomes);
        #[cfg(feature = "charts")]
        let result = {
            // What failed is drawn, too, and is said before that it could not be.
            let drawn = told.draw(&peers, &outcomes);
            result.and(drawn)
        };
        match end {
            // It may have been done at the same moment.
            Some(end) if result.is_err() => Err(Failure::interrupted(end)),
            _ => result,
        }
    }
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
        true => {
            let text = format!("--strict: {all} of what is to be sent would be skipped");
            Err(Failure::new(text).ends(End::Skipped))
        }
        false => Ok(()),
    }
}

/// What receivers remove. Of what is skipped here nobody knows whether it is theirs to remove.
fn deletion(args: &SendArgs, source: &FileSource) -> Deletion {
    match source.skipped() {
        _ if !args.delete => Deletion::None,
        0 if args.exclude.is_empty() => Deletion::Extra,
        0 => Deletion::ExtraUnlessProtected,
        skipped => {
            eprintln!(
                "--delete: nothing is removed, since {skipped} of what is to be sent is skipped: \
                 leave it out by --exclude, or remove it"
            );
            Deletion::None
        }
    }
}

/// How what became of it is told.
struct Told<'a> {
    args: &'a SendArgs,
    names: &'a [String],
    ways: &'a Ways,
    entries: usize,
    voice: Voice,
}

impl Told<'_> {
    /// What became of it, receiver by receiver; an error if one does not have it.
    fn tell(&self, outcomes: &[PeerOutcome]) -> Result<(), Failure> {
        let mut failures = Vec::new();
        for (number, (name, outcome)) in self.names.iter().zip(outcomes).enumerate() {
            let PeerOutcome { result, report, .. } = outcome;
            let rails = rails_to_json(self.ways.of(number), report);
            let mut value = result_to_json(name, result, report);
            value["rails"] = rails.clone();
            self.voice.say_json(&value);
            if self.voice == Voice::People && result.is_ok() {
                say(Summary {
                    entries: self.entries,
                    block: self.args.common.block,
                    peer: name,
                    report,
                    rails: &rails,
                    fabric: &self.ways.fabric(number),
                });
            }
            if let Err(error) = result {
                failures.push((format!("{name}: {error}"), End::of(error)));
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
}

#[cfg(feature = "charts")]
impl Told<'_> {
    /// Draws where the time went, where that is asked for.
    fn draw(&self, peers: &[Named], outcomes: &[PeerOutcome]) -> Result<(), Failure> {
        let Some(path) = self.args.timeline() else {
            return Ok(());
        };
        let drawn = peers
            .iter()
            .zip(outcomes)
            .map(|(peer, outcome)| timeline::Drawn {
                peer: peer.name.clone(),
                report: &outcome.report,
                addresses: peer.to.0.iter().map(ToString::to_string).collect(),
                error: outcome.result.as_ref().err().map(ToString::to_string),
            });
        timeline::write(path, timeline::Side::Sender, &drawn.collect::<Vec<_>>())
    }
}

fn config(args: &SendArgs, key: Option<PresharedKey>) -> SenderConfig {
    let config = SenderConfig::default().stream(|s| {
        let s = common_settings(&args.common, args.readers, s);
        let s = s.connect_timeout(args.connect_timeout);
        match args.common.buffers {
            Some(buffers) => s.buffers(buffers),
            None => s,
        }
    });
    match key {
        Some(key) => config.stream(|s| s.key(key)),
        None => config,
    }
}

fn options(args: &SendArgs) -> SendOptions {
    let patience = args.common.patience();
    let options = SendOptions::default()
        .crc32c(!args.no_crc)
        .blake3(args.blake3 || args.sums)
        .transport(match args.by {
            By::Auto => Transport::Auto,
            By::Message => Transport::Message,
            By::Write => Transport::Write,
        })
        .sync(args.sync)
        .read_back(args.read_back)
        .skip_unchanged(args.skip_unchanged.is_some())
        .compare_content(args.skip_unchanged == Some(Unchanged::Content))
        // Standard input is never the same again.
        .restart(args.restart || args.paths.iter().any(|path| path.as_os_str() == "-"))
        .rate(args.limit_rate)
        .reconnects(if args.retry_for.is_zero() {
            0
        } else {
            u32::MAX
        })
        .retry_for(Some(args.retry_for).filter(|time| !time.is_zero()))
        .stalled_after(patience)
        .timeline(args.timeline().is_some())
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
