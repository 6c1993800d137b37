//! Links: to files, and to headings in them.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{Document, Findings, root};

/// Where nothing of ours is published.
const UNPUBLISHED: [&str; 2] = ["docs.rs/fabricast", "crates.io/crates/fabricast"];

pub(super) fn follow(page: &Document, findings: &mut Findings) {
    for (number, line, listing) in page.lines() {
        if listing {
            continue;
        }
        for target in targets(line) {
            if let Err(why) = follow_one(page, target) {
                findings.push(page.at(number, format_args!("{target}: {why}")));
            }
        }
    }
}

/// `[text](target)`, and `[name]: target` at the beginning of a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let inline = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let named = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "));
    inline.chain(named.map(|(_, target)| target.trim()))
}

fn follow_one(page: &Document, target: &str) -> Result<(), &'static str> {
    if target.starts_with("http") {
        let is_dead = UNPUBLISHED.iter().any(|place| target.contains(place));
        return if is_dead {
            Err("is not published")
        } else {
            Ok(())
        };
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let text = if path.is_empty() {
        page.text.clone()
    } else {
        let directory = page.path.parent().unwrap_or_else(|| Path::new(""));
        let at = root().join(plain(&directory.join(path)));
        if !at.exists() {
            return Err("no such file");
        }
        fs::read_to_string(at).unwrap_or_default()
    };
    let has = |text: &str| headings(text).any(|heading| heading == anchor);
    if anchor.is_empty() || has(&text) {
        Ok(())
    } else {
        Err("no such heading")
    }
}

/// Without `..`, which may not lead out of the repository.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(plain.pop(), "{} leads out", path.display()),
            other => plain.push(other),
        }
    }
    plain
}

/// What links call the headings of a page.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        });
        kept.collect()
    })
}
