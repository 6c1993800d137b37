//! Names: what stands between backticks, and what commands name.

use super::sources::{Sources, words};
use super::{Document, Findings, root};

/// Names of others that pages speak of and the sources do not, with whose they are.
pub(super) const FOREIGN: &[(&str, &str)] = &[
    ("cuObjServer", "the server of cuObject"),
    ("normalize_keys", "KvikIO's GDSStore"),
    ("a/b", "a key of Zarr"),
    ("src/bin/receiver.rs", "the reader's program"),
    ("src/bin/sender.rs", "the reader's program"),
];

/// Heads of the first columns whose names are somebody else's.
const THEIRS: [&str; 4] = ["theirs", "netio3", "KvikIO", "netio3's publisher"];
/// Where a path of a page may begin, besides the root and the page's own directory.
const BELOW: [&str; 2] = ["src", "capi/include"];
/// Files that are made, not kept.
const MADE: [&str; 2] = ["libfabricast.so", "libfabric.so"];

struct Reader<'a> {
    page: &'a Document,
    sources: &'a Sources,
    used: &'a mut Vec<&'static str>,
    findings: &'a mut Findings,
    line: usize,
}

pub(super) fn look_up(
    page: &Document,
    sources: &Sources,
    used: &mut Vec<&'static str>,
    findings: &mut Findings,
) {
    let mut reader = Reader {
        page,
        sources,
        used,
        findings,
        line: 0,
    };
    let mut theirs = false;
    for (number, line, listing) in page.lines() {
        reader.line = number;
        if listing {
            reader.listing(line);
            continue;
        }
        let mut rest = line;
        if let Some(row) = line.strip_prefix('|') {
            let (first, others) = row.split_once('|').unwrap_or((row, ""));
            theirs |= THEIRS.contains(&first.trim());
            if theirs {
                rest = others;
            }
        } else {
            theirs = false;
        }
        for feature in behind(rest, "feature `") {
            reader.feature(feature.split('`').next().unwrap_or_default());
        }
        for span in rest.split('`').skip(1).step_by(2) {
            reader.span(span);
        }
    }
}

/// What is behind each place where a text has this.
fn behind<'a>(text: &'a str, what: &str) -> impl Iterator<Item = &'a str> {
    let places = text.match_indices(what).map(|(at, what)| at + what.len());
    places.map(|at| &text[at..]).collect::<Vec<_>>().into_iter()
}

impl Reader<'_> {
    fn wrong(&mut self, what: &str, why: &str) {
        let foreign = FOREIGN.iter().find(|(name, _)| *name == what);
        if let Some((name, _)) = foreign {
            self.used.push(name);
        } else {
            let finding = self.page.at(self.line, format_args!("{what}: {why}"));
            self.findings.push(finding);
        }
    }

    /// Of a listing its commands, its variables of the environment and its names of C's. The
    /// compiler looks at the rest.
    fn listing(&mut self, line: &str) {
        self.command(line.trim_start().trim_start_matches("$ "));
        for word in words(line) {
            if ["fcast_", "FCAST_", "FABRICAST_"]
                .iter()
                .any(|begin| word.starts_with(begin))
            {
                self.word(word);
            }
        }
    }

    fn span(&mut self, span: &str) {
        if span.contains(' ') {
            self.command(span);
            for word in words(span).filter(|word| word.contains('_')) {
                self.word(word);
            }
            return;
        }
        if is_path(span) {
            return self.path(span);
        }
        let parts: Vec<&str> = span.split("::").collect();
        for pair in parts.windows(2) {
            let of = words(pair[0]).last().unwrap_or_default();
            let name = words(pair[1]).next().unwrap_or_default();
            let is_ours = of != "std" && !of.is_empty() && !name.is_empty();
            if is_ours && !self.sources.has_pair(of, name) {
                self.wrong(&format!("{of}::{name}"), "not in the sources");
            }
        }
        for word in words(span).filter(|word| !word.starts_with(|c: char| c.is_ascii_digit())) {
            self.word(word);
        }
    }

    fn word(&mut self, word: &str) {
        let is_there = if word.starts_with("fcast_") || word.starts_with("FCAST_") {
            self.sources.has_in_headers(word)
        } else if word.starts_with('_') || word.ends_with('_') {
            self.sources.has_part(word)
        } else {
            self.sources.has_word(word)
        };
        if !is_there {
            self.wrong(word, "not in the sources");
        }
    }

    fn path(&mut self, span: &str) {
        let own = self.page.path.parent().expect("a directory");
        let exists = |directory: &std::path::Path| root().join(directory).join(span).exists();
        let below = BELOW.iter().map(std::path::Path::new);
        let is_there = below.chain([own, "".as_ref()]).any(exists);
        if !is_there && !MADE.iter().any(|made| span.starts_with(made)) {
            self.wrong(span, "no such file");
        }
    }

    fn feature(&mut self, feature: &str) {
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
        let (_, features) = manifest.split_once("[features]").expect("features");
        let (features, _) = features.split_once("\n[").expect("an end");
        let name = feature.rsplit('/').next().unwrap_or_default();
        let begins = |line: &str| line.starts_with(&format!("{name} = "));
        if !features.lines().any(begins) {
            self.wrong(feature, "no such feature");
        }
    }

    /// What `make`, `cargo` and their options name.
    fn command(&mut self, text: &str) {
        let mut before = "";
        for word in text.split_whitespace() {
            match before {
                "make" => self.target(word),
                "--example" => self.file_of(word, "examples"),
                "--test" => self.file_of(word, "tests"),
                "--features" => word.split(',').for_each(|feature| self.feature(feature)),
                _ => {}
            }
            let variable = word.split('=').next().unwrap_or_default();
            if word.contains('=') && variable.starts_with("FABRICAST_") {
                self.word(variable);
            }
            before = word;
        }
    }

    fn target(&mut self, target: &str) {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !target.chars().all(is_name) {
            return;
        }
        let makefile = std::fs::read_to_string(root().join("Makefile")).expect("Makefile");
        let begins = |line: &str| line.starts_with(&format!("{target}:"));
        if !makefile.lines().any(begins) {
            self.wrong(&format!("make {target}"), "no such target");
        }
    }

    /// A file or directory of that name, in such a directory of any package.
    fn file_of(&mut self, name: &str, directory: &str) {
        let crates = std::fs::read_dir(root().join("crates")).expect("the crates");
        let packages = crates.map(|entry| entry.expect("an entry").path());
        let mut packages = packages.chain([root().to_owned(), root().join("capi")]);
        let is_there = packages.any(|package| {
            let at = package.join(directory).join(name);
            at.is_dir() || at.with_extension("rs").exists()
        });
        if !is_there {
            self.wrong(name, "no such example or test");
        }
    }
}

/// `examples/cpp`, `wire.md`, and neither `tcp;ofi_rxm` nor `https://…`.
fn is_path(span: &str) -> bool {
    let is_named = |c: char| c.is_ascii_alphanumeric() || "_-./+".contains(c);
    let ends = [
        ".md", ".rs", ".hpp", ".h", ".sh", ".py", ".tsv", ".toml", ".so",
    ];
    let is_file = span.contains('/') || ends.iter().any(|end| span.ends_with(end));
    is_file && span.chars().all(is_named) && !span.starts_with('/')
}
