//! `UploadState`: the key of an upload, kept so that a later put of the same file goes on with it.
//!
//! It lies in the user's state directory (`$XDG_STATE_HOME`, or `~/.local/state`), and not beside
//! the file, which may be anybody's. It counts for the file as it was: another size, time or inode
//! makes it another upload. Whoever can read it can go on with the upload, so only its user can.

use std::fs::Metadata;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fabricast::PeerAddr;
use fabricast::object::{ChecksumKind, ObjectChecksum, UploadKey};
use fabricast::storage::FileHandle;

/// After this time no server has the upload any more.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3600);

/// The key of an upload, and where it is written down, if it is.
pub(super) struct UploadState {
    key: UploadKey,
    path: Option<PathBuf>,
}

impl UploadState {
    /// Of a put that no other one goes on with.
    pub(super) fn unkept() -> Self {
        Self {
            key: UploadKey::random(),
            path: None,
        }
    }

    /// The state of a put of this file to there: what there is, or a new one. Where it can't be
    /// written down, a later put begins anew.
    pub(super) fn find(path: &Path, metadata: &Metadata, server: &PeerAddr, key: &str) -> Self {
        let Some(dir) = directory() else {
            return Self::unkept();
        };
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir);
        if made.is_err() {
            return Self::unkept();
        }
        forget_old(&dir);
        let source = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let what = format!("{}\0{server}\0{key}", source.display());
        let name = ObjectChecksum::of(ChecksumKind::Crc64Nvme, what.as_bytes());
        let path = dir.join(format!("{:016x}", name.value));
        let file = format!(
            "{} {} {}.{:09} {what}",
            metadata.ino(),
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec()
        );
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let known = text.split_once('\n');
        if let Some((known, of)) = known
            && of == file
            && let Ok(key) = known.parse()
        {
            let path = Some(path);
            return Self { key, path };
        }
        let key = UploadKey::random();
        let written =
            FileHandle::write_atomically(&path, format!("{key}\n{file}").as_bytes(), 0o600);
        let path = written.is_ok().then_some(path);
        Self { key, path }
    }

    pub(super) fn key(&self) -> &UploadKey {
        &self.key
    }

    /// The object is there.
    pub(super) fn remove(&mut self) {
        if let Some(path) = self.path.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn directory() -> Option<PathBuf> {
    let absolute = |name| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("fabricast/puts"))
}

fn forget_old(dir: &Path) {
    let now = SystemTime::now();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let changed = entry.metadata().and_then(|it| it.modified());
        let age = changed
            .ok()
            .and_then(|changed| now.duration_since(changed).ok());
        if age.is_some_and(|age| age > FORGOTTEN) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
