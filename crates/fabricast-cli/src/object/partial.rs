//! `PartialFile`: what there is of an object so far, for a get that goes on where one was cut.
//!
//! It lies beside the file that it becomes, under a hidden name with the etag of the object's
//! version: bytes of another version are never gone on with. It is written from front to back, so
//! its length says what is there; a get that is killed leaves it behind.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fabricast::object::ObjectEtag;
use fabricast::stream::crc32c;

use crate::failure::{End, Failure};

/// What partial files' names end with.
const ENDING: &str = ".fabricast-part";

/// A file that is not whole yet.
pub(crate) struct PartialFile {
    file: File,
    partial: PathBuf,
    becomes: PathBuf,
    /// Bytes that are there from an earlier get.
    pub(crate) there: u64,
}

impl PartialFile {
    /// Opens what there is of this version, or makes a file. What there is of other versions, or
    /// is longer than the object, goes.
    pub(crate) fn open(
        becomes: &Path,
        (etag, size): (&ObjectEtag, u64),
        restart: bool,
    ) -> Result<Self, Failure> {
        let partial = name(becomes, etag);
        let failed = |error| Failure::file(becomes, &error).ends(End::Sink);
        forget_others(becomes, &partial);
        let options = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .clone();
        let file = options.open(&partial).map_err(failed)?;
        let mut there = file.metadata().map_err(failed)?.len();
        if restart || there > size {
            file.set_len(0).map_err(failed)?;
            there = 0;
        }
        Ok(Self {
            file,
            partial,
            becomes: becomes.to_owned(),
            there,
        })
    }

    pub(crate) fn write(&self, bytes: &[u8], at: u64) -> Result<(), Failure> {
        let written = self.file.write_all_at(bytes, at);
        written.map_err(|error| Failure::file(&self.becomes, &error).ends(End::Sink))
    }

    /// It gets its name.
    pub(crate) fn commit(self) -> Result<(), Failure> {
        std::fs::rename(&self.partial, &self.becomes)
            .map_err(|error| Failure::file(&self.becomes, &error).ends(End::Sink))
    }
}

/// The beginning of the names of all partial files of a file.
fn stem(becomes: &Path) -> String {
    let name = becomes.file_name().unwrap_or_default().to_string_lossy();
    // Long names leave room for what is added.
    let short: String = name.chars().take(48).collect();
    format!(".{short}.{:08x}-", crc32c(name.as_bytes()))
}

fn name(becomes: &Path, etag: &ObjectEtag) -> PathBuf {
    let version = crc32c(etag.to_string().as_bytes());
    let length = etag.to_string().len();
    becomes.with_file_name(format!(
        "{}{version:08x}{length:02x}{ENDING}",
        stem(becomes)
    ))
}

/// Removes what is left of other versions; what can't be removed stays.
fn forget_others(becomes: &Path, but: &Path) {
    let dir = match becomes.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let stem = stem(becomes);
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_other = Some(entry.file_name().as_os_str()) != but.file_name();
        if is_other && name.starts_with(&stem) && name.ends_with(ENDING) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
