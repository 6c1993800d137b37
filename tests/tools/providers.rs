//! docs/providers.tsv: where the conformance suite ran which provider. These tests hold the table
//! of providers in docs/guide/providers.md, and README's sentence of it, against it.
//!
//! `make conformance` and `make verbs` append a line for each row that ran to target/ran-on.tsv,
//! and print it; `FABRICAST_WRITE_DOCS=1 cargo test --test tools providers` takes the lines over
//! into docs/providers.tsv, where a newer one replaces that of the same provider, library, kernel
//! and device, and writes both anew. FABRICAST_RAN_ON names another file instead, or a
//! log in which such lines stand.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use fabricast::fabric::{EndpointKind, PROVIDERS, Provider, Run};

const BEGIN: &str = "<!-- From docs/providers.tsv, by FABRICAST_WRITE_DOCS=1 cargo test --test \
    tools providers -->\n";
const END: &str = "<!-- End of the table of providers -->\n";
const PROMISE: &str = "<!-- From docs/providers.tsv, as the table of providers -->\n";
const PROMISE_END: &str = "<!-- End of what ran -->\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn lines(path: &Path) -> Vec<Run> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(Run::parse).collect()
}

/// Where a run belongs: rows in the order of the table, then libraries.
fn place(run: &Run) -> (usize, u8, usize, String, String, String) {
    let row = PROVIDERS.iter().position(|row| row.name == run.provider);
    (
        row.expect("a provider of the table"),
        u8::from(run.endpoint == EndpointKind::Rdm),
        8 - run.cq_data.min(8),
        run.library.clone(),
        run.kernel.clone(),
        run.device.clone(),
    )
}

/// Each place once, the newest run of it.
fn in_order(runs: impl IntoIterator<Item = Run>) -> Vec<Run> {
    let mut newest = BTreeMap::<_, Run>::new();
    for run in runs {
        let known = newest.entry(place(&run)).or_insert_with(|| run.clone());
        if run.date >= known.date {
            *known = run;
        }
    }
    newest.into_values().collect()
}

fn text_of(runs: &[Run]) -> String {
    let mut text = Run::heads() + "\n";
    for run in runs {
        text.push_str(&run.to_line());
        text.push('\n');
    }
    text
}

fn is_to_write() -> bool {
    std::env::var_os("FABRICAST_WRITE_DOCS").is_some()
}

#[test]
fn what_ran_is_what_the_documents_say() {
    let tsv = root().join("docs/providers.tsv");
    let mut runs = lines(&tsv);
    if is_to_write() {
        let named = std::env::var_os("FABRICAST_RAN_ON").filter(|path| !path.is_empty());
        let new = named.map_or_else(|| root().join("target/ran-on.tsv"), PathBuf::from);
        runs.extend(lines(&new));
        runs = in_order(runs);
        fs::write(&tsv, text_of(&runs)).expect("written");
    }
    assert!(!runs.is_empty(), "something has run");
    let there = fs::read_to_string(&tsv).expect("it is there");
    assert!(
        there == text_of(&in_order(runs.clone())),
        "{} is not in order, or has lines of another form",
        tsv.display()
    );
    hold("README.md", [PROMISE, PROMISE_END], &promise(&runs));
    let table = table_of(&runs, behaviours());
    hold("docs/guide/providers.md", [BEGIN, END], &table);
}

/// How many behaviours the suite has today.
fn behaviours() -> usize {
    let list = include_str!("../conformance/behaviours/mod.rs");
    let (_, list) = list.split_once("const BEHAVIOURS").expect("the list");
    let (list, _) = list.split_once("];").expect("its end");
    list.lines()
        .filter(|line| line.trim().starts_with("(\""))
        .count()
}

/// Writes what stands between two lines of a document, or finds it there.
fn hold(document: &str, [begin, end]: [&str; 2], inner: &str) {
    let path = root().join(document);
    let text = fs::read_to_string(&path).expect("it is there");
    let wanted = between(&text, begin, end, inner);
    if is_to_write() {
        return fs::write(&path, wanted).expect("written");
    }
    assert!(
        text == wanted,
        "{document} is not what docs/providers.tsv and the table of providers say: run \
         FABRICAST_WRITE_DOCS=1 cargo test --test tools providers"
    );
}

/// The text with this between two of its lines.
fn between(text: &str, begin: &str, end: &str, inner: &str) -> String {
    let (before, rest) = text.split_once(begin).expect("it begins");
    let (_, after) = rest.split_once(end).expect("it ends");
    [before, begin, inner, end, after].concat()
}

/// Which providers ran, which on software only, and which nowhere; in one sentence.
fn promise(runs: &[Run]) -> String {
    let (mut ran, mut soft, mut never) = (Vec::new(), Vec::new(), Vec::new());
    for row in PROVIDERS.iter().filter(|row| row.refused.is_none()) {
        let its = runs.iter().filter(|run| run.provider == row.name);
        let devices: Vec<_> = its.map(|run| &run.device).collect();
        let list = match &devices[..] {
            [] => &mut never,
            all if all.iter().all(|device| device.ends_with("(virtual)")) => &mut soft,
            _ => &mut ran,
        };
        list.push(format!("`{}`", row.name));
    }
    let mut text = format!("It has run over {}", ran.join(", "));
    if !soft.is_empty() {
        let _ = write!(
            text,
            "; over {} on soft RDMA (rdma_rxe), **not on a card**",
            soft.join(", ")
        );
    }
    if !never.is_empty() {
        let _ = write!(
            text,
            "; {} are written from their documentation and sources, and **have not been run**",
            never.join(", ")
        );
    }
    text + " ([where, and what each can't do](docs/guide/providers.md)).\n"
}

/// The table: a line for each provider and kind of endpoint.
fn table_of(runs: &[Run], behaviours: usize) -> String {
    let mut text = String::from(
        "\n| provider | endpoint | runs | ran on | copies of its own | messages that are packed \
         |\n|---|---|---|---|---|---|\n",
    );
    for row in PROVIDERS {
        for kind in row.endpoints {
            let its = |run: &&Run| run.provider == row.name && run.endpoint == *kind;
            let its: Vec<_> = runs.iter().filter(its).collect();
            let _ = writeln!(
                text,
                "| `{}` | {kind} | {} | {} | {} | {} |",
                row.name,
                answer(row, *kind, !its.is_empty()),
                places(&its, behaviours),
                row.copies,
                packed(row)
            );
        }
    }
    text.push('\n');
    text
}

/// Which messages go out together unless somebody says otherwise.
fn packed(row: &Provider) -> String {
    match row.pack_below {
        0 => "none".to_owned(),
        bytes => format!("up to {bytes} B"),
    }
}

/// Whether it runs, and what that takes.
fn answer(row: &Provider, kind: EndpointKind, ran: bool) -> String {
    if let Some(why) = row.refused {
        return format!("refused: {why}");
    }
    let mut text = String::from(if ran { "yes" } else { "should" });
    if kind != row.endpoints[0] {
        text.push_str(", by `endpoint_kind`");
    }
    let asked = row.environment.iter().filter(|needed| !needed.is_default);
    let asked = asked.map(|needed| format!("`{}={}`", needed.name, needed.value));
    let asked = asked.collect::<Vec<_>>().join(" and ");
    if !asked.is_empty() {
        let _ = write!(text, ", with {asked} in the environment");
    }
    if let Some(remarks) = row.remarks {
        let _ = write!(text, "; {remarks}");
    }
    text
}

/// The newest run of each library and device, in words: of so many behaviours that the suite has
/// today, those that work; then those that can't apply, those that fail, and how many are newer
/// than the run. How many bytes of CQ data there were is left out, but for what that makes
/// impossible.
fn places(runs: &[&Run], behaviours: usize) -> String {
    if runs.is_empty() {
        return "nothing: from documentation and sources".to_owned();
    }
    let full = runs.iter().map(|run| run.cq_data).max();
    let mut texts: Vec<(String, Vec<&str>)> = Vec::new();
    for run in runs.iter().filter(|run| Some(run.cq_data) == full) {
        let mut text = format!(
            "Linux {}, {}, {}: {} of {} behaviours work",
            run.kernel,
            run.device,
            run.date,
            run.shown,
            behaviours.max(run.asked())
        );
        for (what, which) in [("can't apply", &run.cannot), ("**fails**", &run.fails)] {
            if !which.is_empty() {
                let _ = write!(text, ", {} {what} ({})", which.len(), which.join(", "));
            }
        }
        let newer = behaviours.saturating_sub(run.asked());
        if newer > 0 {
            let _ = write!(text, ", {newer} not tried");
        }
        match texts.iter_mut().find(|(of, _)| *of == text) {
            Some((_, libraries)) => libraries.push(&run.library),
            None => texts.push((text, vec![&run.library])),
        }
    }
    let texts = texts
        .into_iter()
        .map(|(text, libraries)| format!("libfabric {} on {text}", libraries.join(" and ")));
    texts.collect::<Vec<_>>().join("; ")
}

#[test]
fn the_promise_is_what_ran() {
    let run = |line: &str| Run::parse(line).expect("a line");
    let tcp = run("tcp\tFI_EP_MSG\t8\t1.17\t6.1\tlo\t2026-01-02\t30\t\t");
    let soft = run("verbs\tFI_EP_MSG\t4\t1.17\t6.1\trxe0 (virtual)\t2026-01-02\t28\t\t");
    let card = run("verbs\tFI_EP_MSG\t4\t2.5\t6.1\tmlx5_0 (mlx5_core)\t2026-01-02\t28\t\t");
    let text = promise(&[tcp.clone(), soft.clone()]);
    let on_soft = "It has run over `tcp`; over `verbs` on soft RDMA (rdma_rxe), **not on a card**; \
        `tcp;ofi_rxm`";
    assert!(text.starts_with(on_soft), "{text}");
    let text = promise(&[tcp, soft, card]);
    assert!(
        text.starts_with("It has run over `tcp`, `verbs`; `tcp;ofi_rxm`"),
        "{text}"
    );
}

#[test]
fn a_newer_run_takes_the_place_of_its_own_kind_only() {
    let run = |line: &str| Run::parse(line).expect("a line");
    let old = run("tcp\tFI_EP_MSG\t8\t1.17\t6.1\tlo\t2026-01-02\t30\t\t");
    let new = run("tcp\tFI_EP_MSG\t8\t1.17\t6.1\tlo\t2026-03-04\t29\t\tpeer killed");
    let other = run("tcp\tFI_EP_MSG\t8\t2.5\t6.1\tlo\t2026-01-01\t30\t\t");
    let first = run("verbs\tFI_EP_MSG\t4\t1.17\t6.1\trxe0 (virtual)\t2026-01-01\t28\t\t");
    let all = [&first, &new, &other, &old].map(Clone::clone);
    assert_eq!(in_order(all), [new.clone(), other.clone(), first]);
    assert_eq!(
        places(&[&old, &other], 30),
        "libfabric 1.17 on Linux 6.1, lo, 2026-01-02: 30 of 30 behaviours work; libfabric 2.5 on \
         Linux 6.1, lo, 2026-01-01: 30 of 30 behaviours work"
    );
    let same = run("tcp\tFI_EP_MSG\t8\t2.5\t6.1\tlo\t2026-03-04\t29\t\tpeer killed");
    assert_eq!(
        places(&[&new, &same], 30),
        "libfabric 1.17 and 2.5 on Linux 6.1, lo, 2026-03-04: 29 of 30 behaviours work, 1 \
         **fails** (peer killed)"
    );
}

#[test]
fn what_cannot_apply_what_fails_and_what_was_not_tried_are_told_apart() {
    let run =
        Run::parse("shm\tFI_EP_RDM\t8\t1.17\t6.1\tshm\t2026-01-02\t30\trestart, old tokens\tread");
    let run = run.expect("a line");
    assert_eq!(
        places(&[&run], 37),
        "libfabric 1.17 on Linux 6.1, shm, 2026-01-02: 30 of 37 behaviours work, 2 can't apply \
         (restart, old tokens), 1 **fails** (read), 4 not tried"
    );
    assert!(behaviours() > 30, "{}", behaviours());
}
