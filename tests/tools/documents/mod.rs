//! README, guide and migrating pages, against the sources: what is written like a name of ours is
//! one, links lead somewhere, listings compile, and limits are what the code has.
//!
//! A name that is somebody else's stands in [`names::FOREIGN`], with whose it is.

mod links;
mod listings;
mod names;
mod numbers;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

use sources::Sources;

/// What is wrong in a document: where, and what.
type Findings = Vec<String>;

/// A page, by lines.
struct Document {
    /// Below the root of the repository.
    path: PathBuf,
    text: String,
}

impl Document {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(root().join(path));
        Self {
            path: path.to_owned(),
            text: text.unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        }
    }

    /// For the tests of these tests: a page of the guide.
    fn sample(text: &str) -> Self {
        Self {
            path: "docs/guide/sample.md".into(),
            text: text.to_owned(),
        }
    }

    /// The lines with their numbers, and whether each is of a listing.
    fn lines(&self) -> impl Iterator<Item = (usize, &str, bool)> {
        let mut listing = false;
        self.text.lines().enumerate().filter_map(move |(at, line)| {
            let is_fence = line.starts_with("```");
            listing ^= is_fence;
            (!is_fence).then_some((at + 1, line, listing))
        })
    }

    fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path.display())
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Markdown files of a directory, in order.
fn pages(directory: &str) -> Vec<Document> {
    let listed = fs::read_dir(root().join(directory)).expect("a directory");
    let paths = listed.map(|entry| Path::new(directory).join(entry.expect("an entry").file_name()));
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|of| of == "md"))
        .collect();
    paths.sort();
    paths.iter().map(|path| Document::read(path)).collect()
}

/// What a user reads: every name in these is looked up.
fn for_users() -> Vec<Document> {
    let migrating = pages("docs").into_iter().filter(|page| {
        let name = page.path.file_name().expect("a file").to_string_lossy();
        name.starts_with("migrating-")
    });
    let mut all = vec![Document::read(Path::new("README.md"))];
    all.extend(pages("docs/guide"));
    all.extend(migrating);
    all
}

/// All pages: every link in these is looked up.
fn all() -> Vec<Document> {
    let mut all = pages("");
    for directory in ["docs", "docs/guide", "docs/internals", "benches"] {
        all.extend(pages(directory));
    }
    for entry in fs::read_dir(root().join("crates")).expect("the crates") {
        let of_crate = Path::new("crates").join(entry.expect("an entry").file_name());
        all.extend(pages(&of_crate.to_string_lossy()));
    }
    all
}

/// Fails with all that is wrong.
fn none(what: &str, findings: &Findings) {
    let count = findings.len();
    assert!(
        findings.is_empty(),
        "{count} {what}:\n{}",
        findings.join("\n")
    );
}

#[test]
fn names_in_the_guide_are_names_of_the_sources() {
    let sources = Sources::all();
    let mut findings = Findings::new();
    let mut used = Vec::new();
    for page in for_users() {
        names::look_up(&page, sources, &mut used, &mut findings);
    }
    none("names that are not in the sources", &findings);
    let unused = names::FOREIGN
        .iter()
        .filter(|(name, _)| !used.contains(name));
    let unused: Vec<_> = unused.map(|(name, _)| (*name).to_owned()).collect();
    none("names of others that no page has any more", &unused);
}

#[test]
fn links_lead_to_files_and_headings_that_are_there() {
    let mut findings = Findings::new();
    for page in all() {
        links::follow(&page, &mut findings);
    }
    none("links that lead nowhere", &findings);
}

#[test]
fn numbers_in_the_guide_are_those_of_the_code() {
    let sources = Sources::all();
    let mut findings = Findings::new();
    let limits = Document::read(Path::new("docs/guide/limits.md"));
    numbers::compare(&limits, sources, &mut findings);
    numbers::compare_facts(&mut findings);
    none("numbers that the code does not have", &findings);
}

#[test]
fn listings_in_c_compile_against_the_headers() {
    let mut findings = Findings::new();
    let mut count = 0;
    for page in for_users() {
        for listing in listings::of(&page) {
            count += 1;
            if listings::compile(&page, &listing, &mut findings).is_none() {
                return println!("SKIPPED: no compiler of C and C++");
            }
        }
    }
    assert!(count >= 4, "{count} listings");
    none("listings that do not compile", &findings);

    let wrong = Document::sample("```c\n#include <fabricast.h>\nfcast_endpont sender;\n```\n");
    for listing in listings::of(&wrong) {
        listings::compile(&wrong, &listing, &mut findings);
    }
    assert_eq!(findings.len(), 1, "{findings:?}");
}

fn found_in(sample: &str) -> Findings {
    let sources = Sources::all();
    let page = Document::sample(sample);
    let mut findings = Findings::new();
    names::look_up(&page, sources, &mut Vec::new(), &mut findings);
    links::follow(&page, &mut findings);
    findings
}

#[test]
fn names_that_are_right_are_let_pass() {
    let right = "# A heading, and more\n\
        `SendEndpointZeroCopy::send_data`, `endpoint::SendConfig`, `Packing::Off`, `fcast_send`,\n\
        `FCAST_AGAIN`, `fcast_file_..`, `make demo FILE=/tmp/x`, `FABRICAST_LIBFABRIC`,\n\
        `stats()`, the feature `tokio`, `src/lib.rs`, `cargo test --test tools providers`,\n\
        [here](send.md#back-pressure-batches-long-messages) and [there](#a-heading-and-more).\n\
        ```sh\nmake demo # and fcast_send\ncargo run --example object_http -- serve\n```\n";
    assert_eq!(found_in(right), Findings::new());
}

/// Each mistake alone, so that none hides another.
#[test]
fn each_mistake_in_a_page_is_found() {
    for (wrong, told) in [
        ("`SendEndpointZeroCpy`", "SendEndpointZeroCpy"),
        ("`SendEndpointZeroCopy::send_dta`", "send_dta"),
        // A method, but of another type.
        ("`SendEndpointZeroCopy::copy_file_range`", "copy_file_range"),
        ("`Packing::Of`", "Packing::Of"),
        ("`fcast_sendd`", "fcast_sendd"),
        ("`FCAST_AGIAN`", "FCAST_AGIAN"),
        ("```c\nfcast_sendd(sender);\n```", "fcast_sendd"),
        ("`make dem`", "make dem"),
        ("```sh\n$ make dem\n```", "make dem"),
        ("`FABRICAST_LIBFABRIK=/x`", "FABRICAST_LIBFABRIK"),
        (
            "```sh\nFABRICAST_LIBFABRIK=/x make demo\n```",
            "FABRICAST_LIBFABRIK",
        ),
        ("with the feature `tokyo`", "tokyo"),
        ("`cargo run --features tokyo`", "tokyo"),
        ("`cargo run --example sream`", "sream"),
        ("`cargo test --test toools`", "toools"),
        ("`examples/sream`", "examples/sream"),
        ("`src/libb.rs`", "src/libb.rs"),
        ("[page](sned.md)", "sned.md"),
        ("[page](send.md#windws)", "windws"),
        ("[here](#nowhere)", "nowhere"),
        (
            "[docs](https://docs.rs/fabricast/latest)",
            "docs.rs/fabricast",
        ),
    ] {
        let findings = found_in(wrong);
        let is_it = |finding: &String| finding.contains(told);
        assert!(findings.iter().any(is_it), "{wrong}: {findings:?}");
    }
    // What is theirs is not looked up in the first column of a table of theirs, and else it is.
    let table = |head| format!("| {head} | ours |\n|---|---|\n| `TheirClass` | `Fabric` |\n");
    assert_eq!(found_in(&table("theirs")), Findings::new());
    assert_eq!(found_in(&table("name")).len(), 1);
}

#[test]
fn each_wrong_number_is_found() {
    let sources = Sources::all();
    let found = |row: &str| {
        let text = format!("| what | default | range |\n|---|---|---|\n{row}\n");
        let mut findings = Findings::new();
        numbers::compare(&Document::sample(&text), sources, &mut findings);
        findings
    };
    for right in [
        "| sends (`OutgoingSettings::depth`) | 64 | 1 to 65,536 |",
        "| silence (`ConnectionSettings::lost_after`) | 60 s | 10 ms to 24 h |",
        "| buffers of 2.x (`PublishBufferedConfig::buffer_size`) | 60 KiB | 64 B to 1 GiB |",
    ] {
        assert_eq!(found(right), Findings::new());
    }
    for wrong in [
        "| sends (`OutgoingSettings::depth`) | 65 | 1 to 65,536 |",
        "| sends (`OutgoingSettings::depth`) | 64 | 1 to 65,537 |",
        "| silence (`ConnectionSettings::lost_after`) | 60 ms | 10 ms to 24 h |",
        "| no setting's, and nobody says whose it is | 7 | |",
        "| (`OutgoingSettings::dept`) | 64 | 1 to 65,536 |",
    ] {
        assert_eq!(found(wrong).len(), 1, "{wrong}");
    }
}
