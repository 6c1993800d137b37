//! `Sources`: the words of the repository's files, and where each type is defined.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use super::root;

/// Where names of ours come from.
const DIRECTORIES: [&str; 8] = [
    "src", "crates", "capi", "examples", "tests", "scripts", "benches", "fuzz",
];
const EXTENSIONS: [&str; 9] = ["rs", "toml", "h", "hpp", "c", "cpp", "sh", "py", "tsv"];
/// What is in front of a name that is being defined.
const DEFINING: [&str; 8] = [
    "struct",
    "enum",
    "trait",
    "union",
    "type",
    "mod",
    "class",
    "namespace",
];

/// The words of a text: letters, digits and underscores.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(move |c| !is_word(c))
        .filter(|word| !word.is_empty())
}

struct File {
    /// Below the root.
    path: String,
    text: String,
}

pub(super) struct Sources {
    files: Vec<File>,
    words: HashSet<String>,
    /// Words of the headers of C and C++.
    of_headers: HashSet<String>,
    /// Files in which something of this name is defined, or extended.
    definitions: HashMap<String, BTreeSet<usize>>,
}

impl Sources {
    /// Those of the repository.
    pub(super) fn all() -> &'static Self {
        static ALL: OnceLock<Sources> = OnceLock::new();
        ALL.get_or_init(Self::read)
    }

    fn read() -> Self {
        let mut files = Vec::new();
        for directory in DIRECTORIES {
            read_below(Path::new(directory), &mut files);
        }
        for name in ["Makefile", "Cargo.toml"] {
            files.push(read_file(Path::new(name)));
        }
        let mut sources = Self {
            files,
            words: HashSet::new(),
            of_headers: HashSet::new(),
            definitions: HashMap::new(),
        };
        for (at, file) in sources.files.iter().enumerate() {
            let is_header = file.path.starts_with("capi/include/");
            for word in words(&file.text) {
                if is_header && !sources.of_headers.contains(word) {
                    sources.of_headers.insert(word.to_owned());
                }
                if !sources.words.contains(word) {
                    sources.words.insert(word.to_owned());
                }
            }
            for name in defined_in(file) {
                let places = sources.definitions.entry(name.to_owned());
                places.or_default().insert(at);
            }
        }
        sources
    }

    /// The texts of all files.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| &*file.text)
    }

    pub(super) fn has_word(&self, word: &str) -> bool {
        self.words.contains(word)
    }

    /// Whether a word begins so (`fcast_file_..`), or ends so (`_prepare_wait`).
    pub(super) fn has_part(&self, part: &str) -> bool {
        self.words.iter().any(|word| match part.starts_with('_') {
            true => word.ends_with(part),
            false => word.starts_with(part),
        })
    }

    /// Whether the headers of C and C++ have a word, or one that begins so.
    pub(super) fn has_in_headers(&self, word: &str) -> bool {
        let begins = |other: &String| other.starts_with(word);
        self.of_headers.contains(word) || word.ends_with('_') && self.of_headers.iter().any(begins)
    }

    /// Whether something of the first name is defined where the second one is in the code.
    pub(super) fn has_pair(&self, of: &str, name: &str) -> bool {
        if of == "fabricast" {
            return self.definitions.contains_key(name) || self.has_in_headers(name);
        }
        let places = self.definitions.get(of).into_iter().flatten();
        let mut lines = places.flat_map(|at| self.files[*at].text.lines());
        lines.any(|line| !is_comment(line) && words(line).any(|word| word == name))
    }
}

fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || line.starts_with("* ") || line.starts_with("/*")
}

fn read_below(directory: &Path, files: &mut Vec<File>) {
    let listed = fs::read_dir(root().join(directory)).expect("a directory of the repository");
    for entry in listed {
        let entry = entry.expect("an entry");
        let path = directory.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            // Samples of wrong names are here.
            if !path.ends_with("tests/tools/documents") && !path.ends_with("target") {
                read_below(&path, files);
            }
        } else if path
            .extension()
            .is_some_and(|of| EXTENSIONS.iter().any(|it| of == *it))
        {
            files.push(read_file(&path));
        }
    }
}

fn read_file(path: &Path) -> File {
    let bytes = fs::read(root().join(path)).expect("a file of the repository");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    File {
        path: path.display().to_string(),
        text,
    }
}

/// What a file defines: types and modules, those that it has an `impl` of, and those of its path.
fn defined_in(file: &File) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for line in file.text.lines().filter(|line| !is_comment(line)) {
        let mut before = "";
        let is_all = line.trim_start().starts_with("impl") || line.contains("pub use ");
        if !is_all && !DEFINING.iter().any(|word| line.contains(word)) {
            continue;
        }
        for word in words(line) {
            if is_all || DEFINING.contains(&before) {
                names.insert(word);
            }
            before = word;
        }
    }
    let path = file.path.strip_suffix(".rs").unwrap_or_default();
    names.extend(path.split('/'));
    names
}
