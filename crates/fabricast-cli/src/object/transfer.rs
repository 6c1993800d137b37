//! `fabricast get`, and what `put` shares with it: memory of the host or of a GPU.

use std::io::Write;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use fabricast::Region;
use fabricast::buffer::{RegionSlice, SharedBufferManager};
use fabricast::cuda::{Device, Stream};
use fabricast::memory::Access;
use fabricast::object::{ObjectClient, ObjectMemory, RemoteObject};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::args::{GetArgs, MemoryArgs};
use super::client::{Connected, etag, failed};
use super::partial::PartialFile;
use super::url::ObjectUrl;
use super::{listing, report};
use crate::failure::{End, Failure};

/// Bytes that are copied between file and memory at once.
pub(super) const PIECE: usize = 1 << 20;

/// Memory that a file goes through, unless it is said how much.
pub(super) const MEMORY: u64 = 64 << 20;

/// Memory that servers reach, and how this side does.
pub(super) enum Lent {
    Host(ObjectMemory),
    Gpu {
        memory: ObjectMemory,
        slice: RegionSlice,
        stream: Stream,
    },
}

impl Lent {
    pub(super) fn new(
        client: &ObjectClient,
        args: &MemoryArgs,
        bytes: usize,
        access: Access,
    ) -> Result<Self, Failure> {
        let Some(ordinal) = args.gpu else {
            let pool = SharedBufferManager::allocate(1, bytes).map_err(Failure::of)?;
            let buffer = pool.try_acquire().expect("one is free");
            let memory = client.register(buffer, access).map_err(Failure::of)?;
            return Ok(Self::Host(memory));
        };
        let failed =
            |error: fabricast::memory::MemoryError| Failure::new(format!("--gpu: {error}"));
        let region = Region::device(bytes).device(ordinal).build();
        let region = region.map_err(failed)?;
        let slice = || region.slice(0..bytes).map_err(failed);
        let memory = client.register(slice()?, access).map_err(Failure::of)?;
        let device = Device::new(ordinal).map_err(Failure::of)?;
        Ok(Self::Gpu {
            memory,
            slice: slice()?,
            stream: Stream::new(device).map_err(Failure::of)?,
        })
    }

    pub(super) fn memory(&self) -> &ObjectMemory {
        match self {
            Self::Host(memory) | Self::Gpu { memory, .. } => memory,
        }
    }

    pub(super) fn copy_in(&self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Host(memory) => memory.copy_in(at as u64, bytes).map_err(Failure::of),
            Self::Gpu { slice, stream, .. } => {
                let part = slice.slice(at..at + bytes.len()).map_err(Failure::of)?;
                part.copy_from_host(bytes, stream).map_err(Failure::of)
            }
        }
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        match self {
            Self::Host(memory) => memory.copy_out(at as u64, bytes).map_err(Failure::of),
            Self::Gpu { slice, stream, .. } => {
                let part = slice.slice(at..at + bytes.len()).map_err(Failure::of)?;
                part.copy_to_host(bytes, stream).map_err(Failure::of)
            }
        }
    }
}

/// Parts of a length, of at most so many bytes.
pub(super) fn parts(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(most).map(move |at| at..len.min(at + most))
}

pub(crate) fn get(args: &GetArgs) -> Result<(), Failure> {
    let mut connected = Connected::new(&args.client, &args.from.server)?;
    if !args.recursive {
        listing::must_be_one(&args.from)?;
        let to = destination(&args.from, &args.to)?;
        return get_one(args, &mut connected, &args.from.key, &to);
    }
    let prefix = &args.from.key;
    let objects = listing::all(&mut connected, prefix)?;
    if objects.is_empty() {
        return Err(listing::nothing(&args.from));
    }
    // Keys go on behind the last slash of what they begin with.
    let cut = prefix.rfind('/').map_or(0, |slash| slash + 1);
    for object in objects {
        let key = object.name.to_string();
        let below = Path::new(&key[cut..]);
        if !below
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
        {
            let text = format!("{key}: this key can't be a path below a directory");
            return Err(Failure::new(text).ends(End::Sink));
        }
        let to = args.to.join(below);
        if let Some(dir) = to.parent().filter(|_| !args.dryrun) {
            let made = std::fs::create_dir_all(dir);
            made.map_err(|error| Failure::file(dir, &error).ends(End::Sink))?;
        }
        get_one(args, &mut connected, &key, &to)?;
    }
    Ok(())
}

/// The file that an object goes to.
fn destination(from: &ObjectUrl, to: &Path) -> Result<PathBuf, Failure> {
    if to.as_os_str() == "-" || !to.is_dir() {
        return Ok(to.to_owned());
    }
    let name = from.file_name().ok_or_else(|| {
        let text = format!("{}: this key names no file: say which", from.key);
        Failure::new(text).ends(End::Usage)
    })?;
    Ok(to.join(name))
}

/// Where the bytes of a get go.
enum Destination {
    Output(std::io::Stdout),
    File(PartialFile),
}

impl Destination {
    fn write(&mut self, bytes: &[u8], at: u64) -> Result<(), Failure> {
        match self {
            Self::Output(output) => {
                let written = output.write_all(bytes);
                written.map_err(|error| Failure::os("standard output", &error).ends(End::Sink))
            }
            Self::File(file) => file.write(bytes, at),
        }
    }
}

/// Which bytes are got: from here on, so many.
fn wanted(args: &GetArgs, key: &str, head: &RemoteObject) -> Result<(u64, u64), Failure> {
    let found = head.etag.to_string();
    let no = |text: String| Failure::new(text).ends(End::Condition);
    if let Some(text) = &args.if_match
        && etag(text)? != head.etag
    {
        return Err(no(format!("{key}: its etag is {found}, not {text}")));
    }
    if let Some(text) = &args.if_none_match
        && etag(text)? == head.etag
    {
        return Err(no(format!("{key}: its etag is still {found}")));
    }
    let Some(range) = args.range else {
        return Ok((0, head.size));
    };
    range.of(head.size).ok_or_else(|| {
        let text = format!(
            "{key}: it has {} bytes, none of which are in --range",
            head.size
        );
        Failure::new(text).ends(End::Usage)
    })
}

fn get_one(args: &GetArgs, connected: &mut Connected, key: &str, to: &Path) -> Result<(), Failure> {
    let json = args.client.common.json;
    let deadline = connected.deadline();
    let head = connected.remote.head(key, deadline);
    let head = head.map_err(|error| failed(key, &error))?;
    let (first, len) = wanted(args, key, &head)?;
    if args.dryrun {
        let said = format!("would get {key} ({len} bytes) to {}", to.display());
        report::line(
            json,
            said,
            json!({"ok": true, "operation": "would get", "key": key}),
        );
        return Ok(());
    }
    let mut got = 0;
    let mut into = match to.as_os_str() == "-" {
        true => Destination::Output(std::io::stdout()),
        false => {
            // A range is not gone on with: what is there may be of another one.
            let restart = args.restart || args.range.is_some();
            let file = PartialFile::open(to, (&head.etag, len), restart)?;
            got = file.there;
            Destination::File(file)
        }
    };
    let is_quiet = args.client.quiet || json || to.as_os_str() == "-";
    if got > 0 && !is_quiet {
        eprintln!("{key}: {got} of {len} bytes are there from a get that was cut");
    }
    let room = args.memory.memory.map_or(MEMORY, |bytes| bytes as u64);
    let room = room.min((len - got).max(1)) as usize;
    let client = connected.remote.client();
    let lent = Lent::new(client, &args.memory, room, Access::WRITE)?;
    let bar = bar(len, is_quiet);
    bar.set_position(got);
    let mut all = head.clone();
    (all.is_checked, all.moved) = (true, 0);
    let (begin, mut bytes) = (Instant::now(), vec![0; PIECE]);
    while got < len {
        let want = (len - got).min(lent.memory().len());
        let deadline = connected.deadline();
        let part = connected
            .remote
            .get(key, lent.memory(), 0..want, first + got, deadline);
        let part = part.map_err(|error| failed(key, &error))?;
        if part.etag != head.etag || part.moved != want {
            let text = format!("{key}: it was replaced while it was got: get it again");
            return Err(Failure::new(text).ends(End::Condition));
        }
        for piece in parts(want as usize, PIECE) {
            let bytes = &mut bytes[..piece.len()];
            lent.copy_out(piece.start, bytes)?;
            into.write(bytes, got + piece.start as u64)?;
        }
        got += want;
        all.moved += want;
        all.is_checked &= part.is_checked;
        bar.set_position(got);
    }
    bar.finish_and_clear();
    match into {
        Destination::Output(mut output) => {
            let flushed = output.flush();
            flushed.map_err(|error| Failure::os("standard output", &error).ends(End::Sink))
        }
        Destination::File(file) => {
            file.commit()?;
            report::object(json, "get", key, &all, begin.elapsed());
            Ok(())
        }
    }
}

pub(super) fn bar(len: u64, is_quiet: bool) -> ProgressBar {
    if is_quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec}");
    // Drawn where stderr is a terminal only.
    ProgressBar::new(len).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
