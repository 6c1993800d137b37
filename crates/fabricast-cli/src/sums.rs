//! Lists of hashes: a line for each file, in the form of `b3sum`, so that either program can
//! compare what the other one wrote.
//!
//! ```text
//! 64 hexadecimal digits, two spaces, the name
//! ```
//!
//! A name with a backslash or a line's end has a backslash in front of its line, and these as `\\`
//! and `\n` in it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fabricast::stream::{EntryKind, Manifest};

use crate::failure::{End, Failure};

/// What the name of a list ends with.
const SUFFIX: &str = ".b3";

/// Writes the hashes of the files of a stream that has arrived in this directory: a list for each
/// name that lies in it directly.
pub(crate) fn write(dir: &Path, manifest: &Manifest, hashes: &[[u8; 32]]) -> Result<(), Failure> {
    let entries: Vec<_> = manifest.iter().zip(hashes).collect();
    let top = |name: &Path| {
        name.components()
            .next()
            .map(|top| top.as_os_str().to_owned())
    };
    for part in entries.chunk_by(|(a, _), (b, _)| top(a.name.as_path()) == top(b.name.as_path())) {
        let Some(mut name) = part
            .first()
            .and_then(|(entry, _)| top(entry.name.as_path()))
        else {
            continue;
        };
        name.push(SUFFIX);
        let path = dir.join(name);
        let lines = part
            .iter()
            .filter(|(entry, _)| entry.kind == EntryKind::File);
        let lines = lines.map(|(entry, hash)| (entry.name.as_bytes(), **hash));
        write_list(&path, lines).map_err(|error| Failure::file(&path, &error).ends(End::Sink))?;
    }
    Ok(())
}

/// Under its name it is whole.
fn write_list<'a>(
    path: &Path,
    lines: impl Iterator<Item = (&'a [u8], [u8; 32])>,
) -> io::Result<()> {
    let dir = path.parent().unwrap_or_else(|| Path::new("."));
    // As for any new file, the umask takes some away.
    let mode = PermissionsExt::from_mode(0o666);
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(".fabricast-sums-").permissions(mode);
    let temporary = builder.tempfile_in(dir)?;
    let mut out = BufWriter::new(temporary.as_file());
    for (name, hash) in lines {
        out.write_all(&line(name, hash))?;
    }
    out.flush()?;
    drop(out);
    temporary.persist(path)?;
    Ok(())
}

fn line(name: &[u8], hash: [u8; 32]) -> Vec<u8> {
    let mut line = Vec::with_capacity(name.len() + 68);
    if name.iter().any(|byte| b"\\\n".contains(byte)) {
        line.push(b'\\');
    }
    line.extend_from_slice(blake3::Hash::from_bytes(hash).to_hex().as_bytes());
    line.extend_from_slice(b"  ");
    for byte in name {
        match byte {
            b'\\' => line.extend_from_slice(br"\\"),
            b'\n' => line.extend_from_slice(br"\n"),
            byte => line.push(*byte),
        }
    }
    line.push(b'\n');
    line
}

/// A file, and the hash that it is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) name: PathBuf,
    pub(crate) hash: blake3::Hash,
}

/// Reads a list.
///
/// # Errors
/// It can't be read, or a line of it is not in the form.
pub(crate) fn read(path: &Path) -> Result<Vec<Sum>, Failure> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| io::Read::read_to_end(&mut file, &mut bytes));
    read.map_err(|error| Failure::file(path, &error).ends(End::Source))?;
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty());
    let sums = lines.map(|(number, line)| {
        parse(line).ok_or_else(|| {
            let text = format!(
                "{}, line {}: want 64 hexadecimal digits, two spaces, and a name",
                path.display(),
                number + 1
            );
            Failure::new(text).ends(End::Source)
        })
    });
    sums.collect()
}

fn parse(line: &[u8]) -> Option<Sum> {
    let (is_escaped, line) = match line.strip_prefix(b"\\") {
        Some(line) => (true, line),
        None => (false, line),
    };
    let (hash, rest) = line.split_at_checked(64)?;
    let hash = blake3::Hash::from_hex(hash).ok()?;
    let mut rest = rest.strip_prefix(b"  ")?.iter();
    let mut name = Vec::new();
    while let Some(byte) = rest.next() {
        name.push(match byte {
            b'\\' if is_escaped => match rest.next()? {
                b'\\' => b'\\',
                b'n' => b'\n',
                b'r' => b'\r',
                _ => return None,
            },
            byte => *byte,
        });
    }
    let name = PathBuf::from(OsStr::from_bytes(&name));
    (!name.as_os_str().is_empty() && !name.as_os_str().as_bytes().contains(&0))
        .then_some(Sum { name, hash })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let names: [&[u8]; 6] = [b"a", b" b/c ", b"d\ne", b"f\\g\\n", b"\xff\x01\r", b"\\"];
        for name in names {
            let hash = blake3::hash(name);
            let written = line(name, *hash.as_bytes());
            let (end, line) = written.split_last().expect("a line");
            assert_eq!((*end, line.contains(&b'\n')), (b'\n', false));
            let name = OsStr::from_bytes(name).into();
            assert_eq!(parse(line), Some(Sum { name, hash }));
        }
        // What b3sum writes of the empty file `a\nb`.
        let hash = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        let escaped = parse(format!("\\{hash}  a\\nb").as_bytes()).expect("a line");
        assert_eq!(
            (escaped.name.as_path(), escaped.hash),
            (Path::new("a\nb"), blake3::hash(b""))
        );
        for wrong in ["", "x", hash, &format!("{hash}  "), &format!("{hash} a")] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(parse(format!("\\{hash}  a\\x").as_bytes()), None);
        assert_eq!(parse(format!("\\{hash}  a\\").as_bytes()), None);
        assert_eq!(parse(format!("g{}  a", &hash[1..]).as_bytes()), None);
    }
}
