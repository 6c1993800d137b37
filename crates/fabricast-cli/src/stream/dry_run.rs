//! `--dry-run`: what would be sent, from here or from the far end.

use std::borrow::Cow;

use fabricast::stream::{EntryKind, Manifest};
use serde_json::{Value, json};

use super::measure::Bytes;
use super::report::Voice;
use crate::say::say;

/// Says what is in this list, and how much it is.
pub(crate) fn list(manifest: &Manifest, voice: Voice) {
    for entry in manifest.iter() {
        let kind = match entry.kind {
            EntryKind::Directory => "directory",
            EntryKind::Link => "link",
            _ => "file",
        };
        let entry = json!({
            "type": "entry",
            "name": entry.name.to_string(),
            "kind": kind,
            "bytes": entry.size,
        });
        tell(&entry, voice);
    }
    let (entries, bytes) = (manifest.len(), manifest.bytes());
    let total = json!({ "type": "total", "entries": entries, "bytes": bytes });
    tell(&total, voice);
}

/// Says one of these objects, which may be a far end's. Whether it was the last.
pub(crate) fn tell(value: &Value, voice: Voice) -> bool {
    let is_last = value["type"] == "total";
    voice.say_json(value);
    match (voice, is_last) {
        (Voice::People | Voice::Nobody, true) => {
            let number = |key: &str| value[key].as_u64().unwrap_or_default();
            let (entries, bytes) = (number("entries"), Bytes(number("bytes") as f64));
            say(format_args!(
                "{entries} files and directories, {bytes} would be sent"
            ));
        }
        (Voice::People, false) => {
            let mark = match value["kind"].as_str() {
                Some("directory") => "/",
                Some("link") => "@",
                _ => "",
            };
            let name = value["name"].as_str().unwrap_or_default();
            say(format_args!("{}{mark}", printable(name)));
        }
        _ => {}
    }
    is_last
}

/// A name without control characters, as [`RelativeName`](fabricast::stream::RelativeName) shows
/// them; those of a far end are its word.
fn printable(name: &str) -> Cow<'_, str> {
    if !name.chars().any(char::is_control) {
        return name.into();
    }
    let each = name.chars().map(|char| match char.is_control() {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    });
    each.collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_terminal_would_obey_are_spelled_out() {
        assert_eq!(printable("a b/ä"), "a b/ä");
        assert_eq!(printable("a\x1b[2J\n"), "a\\u{1b}[2J\\n");
    }
}
