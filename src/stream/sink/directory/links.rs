//! `LinkTargets`: which symbolic links are made of what a sender says.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, chownat};

use super::{ids_of, times_of};
use crate::stream::sink::SinkError;
use crate::stream::sink::beneath::Beneath;
use crate::stream::{Entry, Owner, RelativeName};

/// Which symbolic links a [`DirectorySink`](super::DirectorySink) makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LinkTargets {
    /// Those that lead to something below the sink's directory, whether it is there or not: the
    /// target is relative, and each `..` in it stands at its beginning and leads to a directory of
    /// the sink's. A stream with another one fails: whoever reads what came would be led to where
    /// its sender wants.
    #[default]
    Within,
    /// All of them, wherever they lead: for senders that are trusted. The sink itself follows none.
    Any,
    /// None: streams with links are refused.
    None,
}

impl LinkTargets {
    /// # Errors
    /// The link of this name is not one to be made.
    pub(super) fn check(self, name: RelativeName<'_>, target: &[u8]) -> Result<(), SinkError> {
        let refused = |why: &str| {
            let target = String::from_utf8_lossy(target);
            let text = format!("{name}: a symbolic link to {target}, {why}");
            Err(SinkError::Other(text))
        };
        if target.contains(&0) {
            return refused("which has a NUL byte");
        }
        match self {
            Self::Any => Ok(()),
            Self::Within if leads_within(name, target) => Ok(()),
            Self::Within => refused(
                "which leads out of the receiver's directory, or may: such links are made where \
                 that is asked for (DirectorySink::links, fabricast recv --any-links)",
            ),
            Self::None => refused("and none is made here"),
        }
    }
}

/// Whether what a link leads to lies in the directory that its name is relative to, as long as that
/// holds for all links there.
fn leads_within(name: RelativeName<'_>, target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return false;
    }
    // Directories that lead to the link. They are no links themselves.
    let mut above = name.components().count() - 1;
    let mut is_begun = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            // Behind a name, which may be that of a link, nobody knows what is above.
            b".." if is_begun || above == 0 => return false,
            b".." => above -= 1,
            _ => is_begun = true,
        }
    }
    true
}

/// Makes a link in place of the file that has this name.
pub(super) fn make_link(
    directory: &Beneath,
    name: &OsStr,
    target: &[u8],
    (entry, owner): (&Entry<'_>, Option<Owner>),
) -> io::Result<()> {
    rustix::fs::unlinkat(directory.fd(), name, AtFlags::empty())?;
    rustix::fs::symlinkat(OsStr::from_bytes(target), directory.fd(), name)?;
    let times = times_of(entry);
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    if let Some(owner) = owner {
        let (user, group) = ids_of(owner)?;
        chownat(directory.fd(), name, Some(user), Some(group), flags)?;
    }
    Ok(rustix::fs::utimensat(directory.fd(), name, &times, flags)?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn links_lead_within_whatever_other_links_there_are() {
        let within = |name: &str, target: &str| {
            let name = RelativeName::new(name.as_bytes()).expect("a name");
            LinkTargets::Within.check(name, target.as_bytes()).is_ok()
        };
        for (name, target) in [
            ("a", "b"),
            ("a", "./b//c/."),
            ("a", "."),
            ("a/b", ".."),
            ("a/b", "../c"),
            ("a/b/c", "../../x/y"),
            ("a", "..b/...c"),
            ("a", "no/such/thing"),
        ] {
            assert!(within(name, target), "{name} -> {target}");
        }
        for (name, target) in [
            ("a", "/etc/passwd"),
            ("a", "/"),
            ("a", ".."),
            ("a", "./.."),
            ("a/b", "../.."),
            ("a/b", "../../tree/b"),
            // Where x is a link to a directory further up, this one leads out.
            ("a", "x/../.."),
            ("a/b/c", "x/.."),
            ("a", "b\0c"),
        ] {
            assert!(!within(name, target), "{name} -> {target}");
        }
        let name = RelativeName::new(b"a").expect("a name");
        LinkTargets::Any.check(name, b"/etc").expect("any");
        LinkTargets::Any.check(name, b"\0").expect_err("no path");
        LinkTargets::None.check(name, b"b").expect_err("none");
    }
}
