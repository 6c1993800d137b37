//! `NamePattern`: which names of a tree `--exclude` and `--include` mean.

use std::fmt;
use std::path::Path;

use fabricast::stream::EntryKind;
use glob::{MatchOptions, Pattern};

/// A pattern of `--exclude` or `--include`.
#[derive(Debug, Clone)]
pub(crate) struct NamePattern {
    /// As it was given.
    text: String,
    pattern: Pattern,
    /// It is compared with the path, not with its last part.
    of_path: bool,
    directories_only: bool,
}

impl NamePattern {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let given = text.to_owned();
        let directories_only = text.ends_with('/');
        let text = text.strip_suffix('/').unwrap_or(text);
        let of_path = text.contains('/');
        let text = text.strip_prefix('/').unwrap_or(text);
        if text.is_empty() {
            return Err("want a pattern such as '*.tmp', 'cache/' or '/raw/*.dat'".to_owned());
        }
        let pattern = Pattern::new(text).map_err(|error| error.to_string())?;
        Ok(Self {
            text: given,
            pattern,
            of_path,
            directories_only,
        })
    }

    /// Whether one of `these` means it, and none of `but`.
    pub(crate) fn are_for(these: &[Self], but: &[Self], below: &Path, kind: EntryKind) -> bool {
        let is_one = |of: &[Self]| of.iter().any(|it| it.matches(below, kind));
        is_one(these) && !is_one(but)
    }

    /// Whether it means what has this path below the tree's directory.
    pub(crate) fn matches(&self, below: &Path, kind: EntryKind) -> bool {
        if self.directories_only && kind != EntryKind::Directory {
            return false;
        }
        let compared = match self.of_path {
            true => Some(below.as_os_str()),
            false => below.file_name(),
        };
        // As in a shell, but that hidden files are files.
        let options = MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: false,
        };
        compared.is_some_and(|name| self.pattern.matches_with(&name.to_string_lossy(), options))
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_names_paths_or_directories() {
        use EntryKind::{Directory, File};
        let rows = [
            ("*.tmp", "a.tmp", File, true),
            ("*.tmp", "x/y/a.tmp", File, true),
            ("*.tmp", "x/a.tmp/b", File, false),
            ("*", "x/.hidden", File, true),
            ("cache/", "x/cache", Directory, true),
            ("cache/", "x/cache", File, false),
            ("/cache", "cache", File, true),
            ("/cache", "x/cache", File, false),
            ("raw/*.dat", "raw/1.dat", File, true),
            ("raw/*.dat", "raw/x/1.dat", File, false),
            ("raw/*.dat", "x/raw/1.dat", File, false),
            ("raw/**/*.dat", "raw/x/y/1.dat", File, true),
            ("**/raw/*", "x/raw/1.dat", File, true),
            ("[ab]?", "x/a1", File, true),
            ("[ab]?", "x/c1", File, false),
        ];
        for (text, path, kind, wanted) in rows {
            let pattern = NamePattern::parse(text).expect("a pattern");
            assert_eq!(
                pattern.matches(path.as_ref(), kind),
                wanted,
                "{text} {path}"
            );
        }
        for text in ["", "/", "a[", "a***"] {
            assert!(NamePattern::parse(text).is_err(), "{text}");
        }
    }
}
