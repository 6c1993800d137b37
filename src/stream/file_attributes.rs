//! The extended attributes that a file or a directory has: what a source reads, and what a sink
//! gives them.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Mode, XattrFlags, fchmod, fgetxattr, flistxattr, fremovexattr, fsetxattr, fstat};
use rustix::io::Errno;

use super::Attribute;
use super::attributes::{VALUE_MAX, is_sent};

/// Bytes of all names of one file, at most: the kernel's limit.
const NAMES_MAX: usize = 65_536;

/// The rights that the owner of a file needs to read and change its attributes.
const NEEDED: u32 = 0o600;

/// What an attribute is called, and its value.
pub(crate) type NamedValue = (Vec<u8>, Vec<u8>);

/// Why a file can't be given an attribute.
#[derive(Debug)]
pub(crate) struct AttributeFailure {
    pub(crate) name: String,
    pub(crate) errno: Errno,
}

impl AttributeFailure {
    pub(crate) fn new(name: &[u8], errno: Errno) -> Self {
        Self {
            name: String::from_utf8_lossy(name).into_owned(),
            errno,
        }
    }

    /// With what it is about, and what can be done.
    pub(crate) fn text(&self, file: impl std::fmt::Display) -> String {
        let Self { name, errno } = self;
        let why = match *errno {
            Errno::OPNOTSUPP => "the file system here does not take it",
            Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE => {
                "there is no room for it on the file system here"
            }
            Errno::PERM | Errno::ACCESS => "this process may not set it",
            _ => "it can't be set",
        };
        format!(
            "{file}: extended attribute {name}: {why} ({errno}): send without --xattrs \
             (FileSourceBuilder::attributes), or receive where it can be set"
        )
    }
}

/// The attributes of an open file or directory that are sent, in the order of their names.
pub(crate) fn read_attributes(file: impl AsFd) -> Result<Vec<NamedValue>, Errno> {
    let file = file.as_fd();
    let mut found = Vec::new();
    for name in names(file)? {
        if let Some(value) = value(file, &name)? {
            found.push((name, value));
        }
    }
    Ok(found)
}

/// Gives an open file or directory these attributes, and takes away others of the kinds that are
/// sent. Its owner may get rights that it has not, which are the caller's to set afterwards.
pub(crate) fn give_attributes<'a>(
    file: impl AsFd,
    wanted: impl Iterator<Item = Attribute<'a>>,
) -> Result<(), AttributeFailure> {
    let file = file.as_fd();
    let mut others = names(file).map_err(|errno| AttributeFailure::new(b"(their names)", errno))?;
    let mut wanted = wanted.peekable();
    if wanted.peek().is_some() || !others.is_empty() {
        let _ = let_owner_change(file);
    }
    for Attribute { name, value: is } in wanted {
        let failed = |errno| AttributeFailure::new(name, errno);
        let had = others.iter().position(|other| other == name);
        if let Some(at) = had {
            others.swap_remove(at);
            if value(file, name).map_err(failed)?.as_deref() == Some(is) {
                continue;
            }
        }
        fsetxattr(file, OsStr::from_bytes(name), is, XattrFlags::empty()).map_err(failed)?;
    }
    for name in others {
        match fremovexattr(file, OsStr::from_bytes(&name)) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(AttributeFailure::new(&name, errno)),
        }
    }
    Ok(())
}

/// Whether the file system that this lies on knows attributes such as this one.
pub(crate) fn check_kind(file: impl AsFd, name: &[u8]) -> Result<(), AttributeFailure> {
    match fgetxattr(file, OsStr::from_bytes(name), &mut [0_u8; 1][..]) {
        Err(errno @ (Errno::OPNOTSUPP | Errno::NOSYS)) => Err(AttributeFailure::new(name, errno)),
        _ => Ok(()),
    }
}

fn let_owner_change(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(fstat(file)?.st_mode);
    let needed = Mode::from_raw_mode(NEEDED);
    match mode.contains(needed) {
        true => Ok(()),
        false => fchmod(file, mode | needed),
    }
}

/// The names of the attributes that are sent, in order.
fn names(file: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut list = vec![0; 1024];
    let len = loop {
        match flistxattr(file, &mut list[..]) {
            Err(Errno::RANGE) if list.len() < NAMES_MAX => list.resize(NAMES_MAX, 0),
            // There are none where there can't be any.
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            found => break found?,
        }
    };
    let names = list[..len].split(|byte| *byte == 0);
    let names = names.filter(|name| is_sent(name)).map(<[u8]>::to_vec);
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// `None`: it is not there any more.
fn value(file: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let mut value = vec![0; 256];
    loop {
        match fgetxattr(file, OsStr::from_bytes(name), &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                return Ok(Some(value));
            }
            Err(Errno::RANGE) if value.len() < VALUE_MAX => value.resize(VALUE_MAX, 0),
            Err(Errno::NODATA) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_attributes_is_named_before_anything_is_set() {
        let proc = std::fs::File::open("/proc").expect("it is there");
        assert!(read_attributes(&proc).expect("none").is_empty());
        let failure = check_kind(&proc, b"user.some").expect_err("it takes none");
        let text = failure.text("a/file");
        let said = "a/file: extended attribute user.some: the file system here does not take it";
        assert!(text.starts_with(said), "{text}");
    }
}
