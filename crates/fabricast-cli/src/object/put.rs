//! `fabricast put`: files, whole or in parts, which go on where they were cut.
//!
//! A file that fits the memory is one request. A larger one is an upload under a key of its own:
//! part after part, and when the server is lost, it is taken up again. The key is written down
//! ([`UploadState`]), so that a later put of the same file can do that, too.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crc_fast::{CrcAlgorithm, Digest};
use fabricast::memory::Access;
use fabricast::object::{
    ChecksumKind, ObjectChecksum, ObjectStatus, PutCondition, RemoteError, RemoteObject,
    RemoteUpload,
};
use serde_json::json;

use super::args::PutArgs;
use super::client::{Connected, etag, failed};
use super::report;
use super::transfer::{Lent, MEMORY, PIECE, bar, parts};
use super::upload_state::UploadState;
use crate::failure::{End, Failure};

/// The first and the longest pause before a server is tried again.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(crate) fn put(args: &PutArgs) -> Result<(), Failure> {
    let mut connected = Connected::new(&args.client, &args.to.server)?;
    if args.recursive {
        for (path, key) in files_below(&args.from, &args.to.key)? {
            put_one(args, &mut connected, &path, &key)?;
        }
        return Ok(());
    }
    let mut key = args.to.key.clone();
    if key.is_empty() || key.ends_with('/') {
        let name = args.from.file_name().and_then(|name| name.to_str());
        let name = name.filter(|_| args.from.as_os_str() != "-");
        let Some(name) = name else {
            let text = format!("{}: the object needs a key", args.from.display());
            return Err(Failure::new(text).ends(End::Usage));
        };
        key.push_str(name);
    }
    put_one(args, &mut connected, &args.from, &key)
}

/// All files below a directory, with the keys that they get.
fn files_below(top: &Path, key: &str) -> Result<Vec<(PathBuf, String)>, Failure> {
    let failed = |path: &Path, error| Failure::file(path, &error).ends(End::Source);
    let mut found = Vec::new();
    let mut left = vec![(top.to_owned(), key.to_owned())];
    while let Some((dir, key)) = left.pop() {
        for entry in std::fs::read_dir(&dir).map_err(|error| failed(&dir, error))? {
            let entry = entry.map_err(|error| failed(&dir, error))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|error| failed(&path, error))?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                let text = format!("{}: keys are UTF-8, and this name is not", path.display());
                return Err(Failure::new(text).ends(End::Source));
            };
            if kind.is_dir() {
                left.push((path, format!("{key}{name}/")));
            } else if kind.is_file() {
                found.push((path, format!("{key}{name}")));
            } else {
                eprintln!("skipped {}: it is no file", path.display());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn condition(args: &PutArgs) -> Result<PutCondition, Failure> {
    Ok(match (&args.if_none_match, &args.if_match) {
        (Some(_), _) => PutCondition::Absent,
        (None, Some(text)) => PutCondition::Matches(etag(text)?),
        (None, None) => PutCondition::Any,
    })
}

/// What is put.
enum Source {
    File(File),
    /// Standard input: how much it is has to be known before.
    Bytes(Vec<u8>),
}

impl Source {
    fn open(path: &Path) -> Result<(Self, u64, Option<Metadata>), Failure> {
        if path.as_os_str() == "-" {
            let mut all = Vec::new();
            let read = std::io::stdin().lock().read_to_end(&mut all);
            read.map_err(|error| Failure::os("standard input", &error).ends(End::Source))?;
            let len = all.len() as u64;
            return Ok((Self::Bytes(all), len, None));
        }
        let in_file = |error: std::io::Error| Failure::file(path, &error).ends(End::Source);
        let file = File::open(path).map_err(in_file)?;
        let metadata = file.metadata().map_err(in_file)?;
        Ok((Self::File(file), metadata.len(), Some(metadata)))
    }

    fn read(&self, path: &Path, at: u64, into: &mut [u8]) -> Result<(), Failure> {
        match self {
            Self::File(file) => {
                let read = file.read_exact_at(into, at);
                read.map_err(|error| Failure::file(path, &error).ends(End::Source))
            }
            Self::Bytes(all) => {
                // No more is asked for than there is.
                into.copy_from_slice(&all[at as usize..at as usize + into.len()]);
                Ok(())
            }
        }
    }
}

/// Why an attempt ended without an object.
enum Cut {
    /// The server was lost, or has no room now.
    Lost(Failure),
    Failed(Failure),
}

impl From<Failure> for Cut {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

fn cut(key: &str, error: &RemoteError) -> Cut {
    let is_lost = match error {
        RemoteError::TimedOut { .. } | RemoteError::Closed(_) => true,
        RemoteError::Refused { status, .. } => matches!(
            *status,
            // Malformed: a part of an upload that the server has given up meanwhile.
            ObjectStatus::BUSY
                | ObjectStatus::CLOSING
                | ObjectStatus::TIMED_OUT
                | ObjectStatus::TRANSFER
                | ObjectStatus::CANCELLED
                | ObjectStatus::MALFORMED
        ),
        _ => false,
    };
    let failure = failed(key, error);
    match is_lost {
        true => Cut::Lost(failure),
        false => Cut::Failed(failure),
    }
}

/// One file on its way.
struct FilePut<'a> {
    args: &'a PutArgs,
    path: &'a Path,
    key: &'a str,
    condition: PutCondition,
    source: Source,
    metadata: Option<Metadata>,
    len: u64,
    /// Bytes that go at once.
    room: u64,
    state: UploadState,
    bar: indicatif::ProgressBar,
    is_quiet: bool,
    /// Bytes that are there, as far as is known, and those that this command put.
    there: u64,
    moved: u64,
    /// All was sent, and it was not heard whether the object is there: the checksum that it has.
    sent: Option<ObjectChecksum>,
    is_begun: bool,
}

fn put_one(
    args: &PutArgs,
    connected: &mut Connected,
    path: &Path,
    key: &str,
) -> Result<(), Failure> {
    let json = args.client.common.json;
    if args.dryrun {
        let said = format!("would put {} as {key}", path.display());
        report::line(
            json,
            said,
            json!({"ok": true, "operation": "would put", "key": key}),
        );
        return Ok(());
    }
    let (source, len, metadata) = Source::open(path)?;
    let room = args.memory.memory.map_or(MEMORY, |bytes| bytes as u64);
    let state = match &metadata {
        Some(metadata) if len > room => UploadState::find(path, metadata, &args.to.server, key),
        _ => UploadState::unkept(),
    };
    let is_quiet = args.client.quiet || json;
    let mut put = FilePut {
        args,
        path,
        key,
        condition: condition(args)?,
        source,
        metadata,
        len,
        room,
        state,
        bar: bar(len, is_quiet),
        is_quiet,
        there: 0,
        moved: 0,
        sent: None,
        is_begun: false,
    };
    let begin = Instant::now();
    let object = put.run(connected)?;
    put.bar.finish_and_clear();
    report::object(json, "put", key, &object, begin.elapsed());
    Ok(())
}

impl FilePut<'_> {
    /// Tries until it is there, or nothing has moved for too long.
    fn run(&mut self, connected: &mut Connected) -> Result<RemoteObject, Failure> {
        let (mut moved_at, mut moved, mut pause) = (Instant::now(), self.moved, PAUSE);
        loop {
            let lost = match self.attempt(connected) {
                Ok(object) => {
                    self.state.remove();
                    return Ok(object);
                }
                Err(Cut::Failed(failure)) => return Err(failure),
                Err(Cut::Lost(failure)) => failure,
            };
            if self.moved > moved {
                (moved_at, moved, pause) = (Instant::now(), self.moved, PAUSE);
            }
            let mut lost = lost;
            // A new connection, and memory that nobody can reach any more.
            loop {
                if !self.may_try_again() || moved_at.elapsed() + pause > self.args.retry_for {
                    return Err(lost);
                }
                self.say(format_args!("{lost}: trying again"));
                std::thread::sleep(pause);
                pause = (2 * pause).min(PAUSE_MAX);
                match Connected::new(&self.args.client, &self.args.to.server) {
                    Ok(again) => {
                        *connected = again;
                        break;
                    }
                    Err(failure) if failure.end() == End::Unreachable => lost = failure,
                    Err(failure) => return Err(failure),
                }
            }
        }
    }

    /// What was sent whole under a condition may be there: that would not hold any more.
    fn may_try_again(&self) -> bool {
        self.is_in_parts() || matches!(self.condition, PutCondition::Any)
    }

    fn is_in_parts(&self) -> bool {
        self.len > self.room
    }

    fn say(&self, text: std::fmt::Arguments<'_>) {
        if !self.is_quiet {
            self.bar.suspend(|| eprintln!("{text}"));
        }
    }

    fn attempt(&mut self, connected: &mut Connected) -> Result<RemoteObject, Cut> {
        let client = connected.remote.client();
        let lend = |bytes| Lent::new(client, &self.args.memory, bytes, Access::READ);
        if self.is_in_parts() {
            let part = self.part_bytes() as usize;
            let lent = [lend(part)?, lend(part)?];
            return self.in_parts(connected, lent.each_ref());
        }
        let lent = lend(self.len.max(1) as usize)?;
        self.load(&lent, 0, self.len)?;
        let deadline = connected.deadline();
        let remote = &mut connected.remote;
        let put = remote.put(
            self.key,
            lent.memory(),
            0..self.len,
            &self.condition,
            deadline,
        );
        put.map_err(|error| cut(self.key, &error))
    }

    /// Reads a part of the file into the memory.
    fn load(&self, lent: &Lent, at: u64, len: u64) -> Result<(), Failure> {
        let mut bytes = vec![0; PIECE.min(len as usize)];
        for part in parts(len as usize, PIECE) {
            let bytes = &mut bytes[..part.len()];
            self.source.read(self.path, at + part.start as u64, bytes)?;
            lent.copy_in(part.start, bytes)?;
        }
        Ok(())
    }

    /// Bytes of a part: while one goes, the next one is read.
    fn part_bytes(&self) -> u64 {
        (self.room / 2).max(1)
    }

    fn in_parts(
        &mut self,
        connected: &mut Connected,
        [mut lent, mut other]: [&Lent; 2],
    ) -> Result<RemoteObject, Cut> {
        if let Some(object) = self.find_sent(connected)? {
            return Ok(object);
        }
        let mut upload = self.take_up(connected)?;
        let (all, most) = (self.len, self.part_bytes());
        let part = |at: u64| (all - at).min(most);
        self.load(lent, upload.there(), part(upload.there()))?;
        loop {
            let len = part(upload.there());
            let end = upload.there() + len;
            let is_last = end == all;
            if is_last {
                self.check_unchanged()?;
            }
            let deadline = connected.deadline();
            let remote = &mut connected.remote;
            let (put, loaded) = std::thread::scope(|scope| {
                let loading = scope.spawn(|| self.load(other, end, part(end)));
                let put = remote.put_part(&mut upload, lent.memory(), 0..len, deadline);
                (put, loading.join())
            });
            let put = match put {
                Ok(put) => put,
                Err(error) => {
                    self.sent = upload.checksum().filter(|_| is_last);
                    return Err(cut(self.key, &error));
                }
            };
            loaded.unwrap_or_else(|_| Err(Failure::new("a thread that reads panicked")))?;
            self.moved += len;
            self.there = upload.there();
            self.bar.set_position(self.there);
            if let Some(mut object) = put {
                object.moved = self.moved;
                return Ok(object);
            }
            std::mem::swap(&mut lent, &mut other);
        }
    }

    /// The object, where the last part had been sent, and it is there.
    fn find_sent(&mut self, connected: &mut Connected) -> Result<Option<RemoteObject>, Cut> {
        let Some(sent) = self.sent else {
            return Ok(None);
        };
        let deadline = connected.deadline();
        match connected.remote.head(self.key, deadline) {
            Ok(found) if found.size == self.len && found.checksum == Some(sent) => {
                let mut found = found;
                (found.moved, found.is_checked) = (self.moved, true);
                Ok(Some(found))
            }
            Ok(_) => Ok(None),
            Err(error) if error.status() == Some(ObjectStatus::NOT_FOUND) => Ok(None),
            Err(error) => Err(cut(self.key, &error)),
        }
    }

    /// The upload, with what is there of this very file.
    fn take_up(&mut self, connected: &mut Connected) -> Result<RemoteUpload, Cut> {
        let mut anew = self.args.restart && !self.is_begun;
        loop {
            let deadline = connected.deadline();
            let (total, id) = (self.len, self.state.key());
            let remote = &mut connected.remote;
            let taken = remote.take_up(self.key, total, id, &self.condition, anew, deadline);
            let upload = taken.map_err(|error| cut(self.key, &error))?;
            self.is_begun = true;
            self.there = upload.there();
            self.bar.set_position(self.there);
            if self.there == 0 {
                return Ok(upload);
            }
            let front = self.sum_of_front(self.there)?;
            if upload.checksum() == Some(front) && self.there < total {
                self.say(format_args!(
                    "{}: {} of {total} bytes are there from a put that was cut",
                    self.key, self.there
                ));
                return Ok(upload);
            }
            // It is something else, or all of it, which no part is left of that would end it.
            anew = true;
        }
    }

    fn sum_of_front(&self, len: u64) -> Result<ObjectChecksum, Failure> {
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        let (mut at, mut bytes) = (0, vec![0; PIECE]);
        while at < len {
            let piece = (len - at).min(PIECE as u64) as usize;
            self.source.read(self.path, at, &mut bytes[..piece])?;
            digest.update(&bytes[..piece]);
            at += piece as u64;
        }
        let (kind, value) = (ChecksumKind::Crc64Nvme, digest.finalize());
        Ok(ObjectChecksum { kind, value })
    }

    /// What was put in parts is of one file, and not of two.
    fn check_unchanged(&self) -> Result<(), Failure> {
        let (Source::File(file), Some(before)) = (&self.source, &self.metadata) else {
            return Ok(());
        };
        let now = file.metadata();
        let now = now.map_err(|error| Failure::file(self.path, &error).ends(End::Source))?;
        let times = |it: &Metadata| (it.len(), it.mtime(), it.mtime_nsec());
        match times(&now) == times(before) {
            true => Ok(()),
            false => {
                let text = format!("{}: it changed while it was put", self.path.display());
                Err(Failure::new(text).ends(End::Source))
            }
        }
    }
}
