//! docs/file-api.tsv: what KvikIO and cuFile have for files, and what it is called here. These
//! tests hold it against the code, and docs/file-api.md against it.
//!
//! `FABRICAST_WRITE_DOCS=1 cargo test --test storage file_api` writes docs/file-api.md and paths.rs
//! anew; where paths.rs no longer compiles, take the line that is wrong out of it first.

mod inventory;
mod paths;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use fabricast::storage::cufile::CuFileStatus;

use inventory::Inventory;

/// A page, and how many names it has: a row that got lost would be missed.
struct Page {
    id: &'static str,
    title: &'static str,
    names: usize,
}

const PAGES: [Page; 4] = [
    Page {
        id: "kvikio-file-handle",
        title: "KvikIO, C++: kvikio::FileHandle",
        names: 80,
    },
    Page {
        id: "kvikio-python",
        title: "KvikIO, Python: CuFile, IOFuture, GDSStore, defaults",
        names: 83,
    },
    Page {
        id: "kvikio-settings",
        title: "KvikIO: environment, settings and tools",
        names: 32,
    },
    Page {
        id: "cufile-api",
        title: "cuFile API reference guide",
        names: 245,
    },
];

struct Row {
    page: String,
    kind: String,
    theirs: String,
    /// Paths below `fabricast::storage`.
    ours: Vec<String>,
    note: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// What `fabricast::storage` has, cuFile among it.
fn inventory() -> Inventory {
    Inventory::of(&[
        ("", &root().join("src/storage")),
        ("cufile", &root().join("crates/fabricast-cufile/src")),
    ])
}

fn rows() -> Vec<Row> {
    let text = fs::read_to_string(root().join("docs/file-api.tsv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("page\tkind\ttheirs\tours\tnote"));
    lines
        .map(|line| {
            let cells: Vec<_> = line.split('\t').collect();
            let [page, kind, theirs, ours, note] = cells[..] else {
                panic!("{} cells, not 5: {line:?}", cells.len());
            };
            let ours = ours.split(", ").filter(|path| !path.is_empty());
            Row {
                page: page.to_owned(),
                kind: kind.to_owned(),
                theirs: theirs.to_owned(),
                ours: ours.map(str::to_owned).collect(),
                note: note.to_owned(),
            }
        })
        .collect()
}

#[test]
fn each_name_of_the_pages_is_there_once_and_is_ours_or_says_why_not() {
    let rows = rows();
    let mut counts = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for row in &rows {
        *counts.entry(&*row.page).or_insert(0) += 1;
        assert!(
            seen.insert((&row.page, &row.theirs)),
            "{} twice",
            row.theirs
        );
        assert_eq!(
            row.ours.is_empty(),
            row.note.starts_with("not ours"),
            "{}: a name of ours, or a note that begins with \"not ours\"",
            row.theirs
        );
    }
    let wanted = PAGES.iter().map(|page| (page.id, page.names)).collect();
    assert_eq!(counts, wanted);
}

#[test]
fn each_name_of_ours_is_in_the_code() {
    let inventory = inventory();
    let rows = rows();
    let missing: Vec<_> = rows
        .iter()
        .flat_map(|row| row.ours.iter().map(move |path| (path, &row.theirs)))
        .filter(|(path, _)| !inventory.has(path))
        .map(|(path, theirs)| format!("{path}, for {theirs}"))
        .collect();
    assert!(
        missing.is_empty(),
        "not in src/storage, nor in crates/fabricast-cufile:\n{}",
        missing.join("\n")
    );
}

#[test]
fn the_scan_of_the_code_finds_what_is_public_and_nothing_else() {
    let inventory = inventory();
    for path in [
        "FileHandle",
        "FileHandle::open",
        "CompatMode::Auto",
        "Settings::task_size",
        "IoBuf::place",
        "page_cache::residency",
        "cufile::BatchStatus::WAITING",
        "cufile::Properties::control",
        "cufile::Handle::read",
    ] {
        assert!(inventory.has(path), "{path}");
    }
    for path in [
        // No such member, or no such type.
        "FileHandle::nothing",
        "Nothing",
        // Not public.
        "FileHandle::error",
        "cufile::Handle::raw_handle",
        // Another module's.
        "page_cache::FileHandle",
        "Handle::read",
    ] {
        assert!(!inventory.has(path), "{path}");
    }
}

/// The codes of the page are those that the library knows.
#[test]
fn errors_of_cufile_have_the_codes_of_the_page() {
    let rows = rows();
    let mut checked = 0;
    for row in rows.iter().filter(|row| row.kind == "error") {
        let Some(Ok(code)) = row.note.split(' ').next().map(str::parse::<i32>) else {
            assert!(row.note.contains("the page's text for"), "{}", row.theirs);
            continue;
        };
        assert_eq!(CuFileStatus(code).name(), Some(&*row.theirs));
        checked += 1;
    }
    assert_eq!(checked, 37);
}

/// A variable of KvikIO that is read is in the table.
#[test]
fn each_variable_of_kvikio_that_counts_is_in_the_table() {
    let source = fs::read_to_string(root().join("src/storage/settings.rs")).unwrap();
    let rows = rows();
    let mut checked = 0;
    for part in source.split('"').filter(|part| part.starts_with("KVIKIO_")) {
        let found = rows
            .iter()
            .find(|row| row.page == "kvikio-settings" && row.theirs == part);
        let row = found.unwrap_or_else(|| panic!("{part} is not in the table"));
        assert!(
            !row.ours.is_empty(),
            "{part} counts, the table says that it does not"
        );
        checked += 1;
    }
    assert_eq!(checked, 10);
}

#[test]
fn the_page_and_the_paths_are_up_to_date() {
    let rows = rows();
    check_or_write(&root().join("docs/file-api.md"), &page(&rows));
    check_or_write(
        &root().join("tests/storage/file_api/paths.rs"),
        &paths(&rows),
    );
}

fn check_or_write(path: &Path, wanted: &str) {
    if std::env::var_os("FABRICAST_WRITE_DOCS").is_some() {
        fs::write(path, wanted).unwrap();
        return;
    }
    let there = fs::read_to_string(path).unwrap_or_default();
    assert!(
        there == wanted,
        "{} is not what docs/file-api.tsv says: run FABRICAST_WRITE_DOCS=1 cargo test --test \
         storage file_api",
        path.display()
    );
}

/// docs/file-api.md.
fn page(rows: &[Row]) -> String {
    let mut text = String::from(
        "# The file APIs of KvikIO and cuFile, and ours\n\n\
         Generated from file-api.tsv by tests/storage/file_api; do not edit. Paths are below\n\
         `fabricast::storage`.\n",
    );
    for page in &PAGES {
        let of_page: Vec<_> = rows.iter().filter(|row| row.page == page.id).collect();
        let not_ours = of_page.iter().filter(|row| row.ours.is_empty()).count();
        let _ = write!(
            text,
            "\n\
             ## {}\n\
             \n\
             {} names, {not_ours} of them not ours.\n\
             \n\
             | theirs | kind | ours | note |\n\
             |---|---|---|---|\n",
            page.title,
            of_page.len(),
        );
        for row in of_page {
            let ours: Vec<_> = row.ours.iter().map(|path| format!("`{path}`")).collect();
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} |",
                row.theirs,
                row.kind,
                ours.join(", "),
                row.note
            );
        }
    }
    text
}

/// paths.rs: the compiler looks up what can be named in a `use`: modules, types, and functions
/// outside of types.
fn paths(rows: &[Row]) -> String {
    let mut names = BTreeSet::new();
    for path in rows.iter().flat_map(|row| &row.ours) {
        let parts: Vec<_> = path.split("::").collect();
        let is_type = |part: &&str| part.starts_with(|c: char| c.is_ascii_uppercase());
        // Up to the type: what is behind it belongs to it. A constant outside of a type is all
        // upper case.
        let end = parts.iter().position(is_type).unwrap_or(parts.len() - 1);
        names.insert(parts[..=end].join("::"));
    }
    let mut text = String::from(
        "//! Generated from docs/file-api.tsv by main.rs; do not edit. It compiles where each of \
         these is\n//! public.\n\n\
         #![allow(unused_imports)]\n\n",
    );
    for name in names {
        let _ = writeln!(text, "use fabricast::storage::{name} as _;");
    }
    text
}
