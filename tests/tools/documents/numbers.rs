//! Numbers: each row of docs/guide/limits.md that names settings has the defaults and ranges of
//! their documentation, which other tests hold against the code; and what no setting has is
//! compared with the line of the sources where it stands.

use std::collections::BTreeSet;
use std::path::Path;

use super::sources::Sources;
use super::{Document, Findings};

/// A number of a page, and the line of the sources that it comes from.
struct Fact {
    page: &'static str,
    says: &'static str,
    file: &'static str,
    has: &'static str,
}

const fn fact(
    page: &'static str,
    says: &'static str,
    file: &'static str,
    has: &'static str,
) -> Fact {
    Fact {
        page,
        says,
        file,
        has,
    }
}

const LIMITS: &str = "docs/guide/limits.md";
const SLOTS: &str = "src/buffer/header_slots.rs";
const FRAME: &str = "src/protocol/wire/frame.rs";

const FACTS: &[Fact] = &[
    fact(
        LIMITS,
        "8,448 B over tcp",
        "src/fabric/provider.rs",
        "PACK_BELOW: usize = 8192 + 256;",
    ),
    fact(
        LIMITS,
        "32,764 B, and what",
        FRAME,
        "FRAME_MAX: usize = 32 * 1024;",
    ),
    fact(
        LIMITS,
        "32,764 B, and what",
        FRAME,
        "LENGTH_LEN: usize = 4;",
    ),
    fact(
        LIMITS,
        "so a header has up to 62 | 256, 64 |",
        SLOTS,
        "slots: 256,",
    ),
    fact(
        LIMITS,
        "so a header has up to 62 | 256, 64 |",
        SLOTS,
        "slot_size: 64,",
    ),
    fact(
        LIMITS,
        "| 1 to 65,536; 1 to 4,096 |",
        SLOTS,
        "SLOTS_MAX: u32 = 65_536;",
    ),
    fact(
        LIMITS,
        "| 1 to 65,536; 1 to 4,096 |",
        SLOTS,
        "SLOT_SIZE_MAX: usize = 4_096;",
    ),
    fact(
        LIMITS,
        "| 0 to 65,536 B |",
        "src/buffer/shared_config.rs",
        "HEADROOM_MAX: usize = 65_536;",
    ),
    fact(
        LIMITS,
        "8,388,607 B;",
        "src/coalesce/compact.rs",
        "LEN_MAX: usize = (1 << 23) - 1;",
    ),
    fact(
        LIMITS,
        "1,073,741,823 B |",
        "src/coalesce/netio3.rs",
        "LEN_MAX: usize = (1 << 30) - 1;",
    ),
    fact(
        LIMITS,
        "| 1,024 | 1 to 1,048,576 |",
        "src/fabric/builder.rs",
        "max_registrations: 1024,",
    ),
    fact(
        LIMITS,
        "| 1,024 | 1 to 1,048,576 |",
        "src/fabric/builder.rs",
        "(1..=1 << 20)",
    ),
    fact(
        LIMITS,
        "counts, too) | 64 |",
        "src/memory/registration.rs",
        "MAX_SCOPES: usize = 64;",
    ),
    fact(
        "README.md",
        "up to 8,448 bytes",
        "src/fabric/provider.rs",
        "PACK_BELOW: usize = 8192 + 256;",
    ),
    fact(
        "README.md",
        "begin up to 8 threads",
        "src/fabric/resolver.rs",
        "THREADS_MAX: usize = 8;",
    ),
    fact(
        "README.md",
        "a registered slot of 64 bytes",
        SLOTS,
        "slot_size: 64,",
    ),
    fact(
        "docs/guide/small-messages.md",
        "it is full (32 KiB,",
        FRAME,
        "FRAME_MAX: usize = 32 * 1024;",
    ),
    fact(
        "docs/guide/small-messages.md",
        "512 messages)",
        FRAME,
        "MESSAGES_MAX: usize = 512;",
    ),
    fact(
        "docs/guide/files.md",
        "8 threads do it, in tasks of 4 MiB",
        "src/storage/settings.rs",
        "| threads of a pool | 8 |",
    ),
    fact(
        "docs/guide/files.md",
        "8 threads do it, in tasks of 4 MiB",
        "src/storage/settings.rs",
        "| `task_size` | `KVIKIO_TASK_SIZE` | bytes | 4194304 |",
    ),
    fact(
        "docs/guide/publish.md",
        "61,440 by default",
        "src/endpoint/publish/buffered/config.rs",
        "| `buffer_size` | bytes | 61,440 |",
    ),
];

/// Rows with numbers that are libfabric's or the kernel's, or were measured; by what they begin
/// with.
const NOT_OURS: [&str; 6] = [
    "segments of a payload",
    "file descriptors of a listener",
    "memory of a connection at the listener",
    "sending endpoints of one domain",
    "a fence",
    "host memory of a region",
];

pub(super) fn compare_facts(findings: &mut Findings) {
    for fact in FACTS {
        let page = Document::read(Path::new(fact.page));
        if !page.text.contains(fact.says) {
            findings.push(format!(
                "{} does not say `{}` any more",
                fact.page, fact.says
            ));
        }
        if !Document::read(Path::new(fact.file)).text.contains(fact.has) {
            let Fact {
                page,
                says,
                file,
                has,
            } = fact;
            findings.push(format!("{page} says `{says}`, and {file} has no `{has}`"));
        }
    }
}

/// The rows of a page's tables of three columns: what, default, range.
pub(super) fn compare(page: &Document, sources: &Sources, findings: &mut Findings) {
    for (number, line, listing) in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", what, default, range, ""] = cells[..] else {
            continue;
        };
        if listing || what == "what" || what.starts_with("---") {
            continue;
        }
        if let Err(why) = compare_row(line, [what, default, range], sources) {
            findings.push(page.at(number, why));
        }
    }
}

fn compare_row(line: &str, cells: [&str; 3], sources: &Sources) -> Result<(), String> {
    let [what, default, range] = cells;
    let here: BTreeSet<u128> = numbers(default).chain(numbers(range)).collect();
    let mut known = BTreeSet::new();
    for span in what.split('`').skip(1).step_by(2) {
        let Some((config, setting)) = span.split_once("::") else {
            continue;
        };
        let rows = documented(sources, config, setting);
        let rows = rows.map_err(|()| format!("{config} has a table without `{setting}`"))?;
        let of_rows: Vec<BTreeSet<u128>> = rows
            .iter()
            .map(|row| row.iter().flat_map(|cell| numbers(cell)).collect())
            .collect();
        // One of several endpoints, which may differ.
        if !of_rows.is_empty() && !of_rows.iter().any(|row| row.is_subset(&here)) {
            return Err(format!("{span} is documented as {rows:?}"));
        }
        known.extend(of_rows.into_iter().flatten());
    }
    let mut of_default = numbers(default);
    if known.is_empty() {
        let is_fact = FACTS.iter().any(|fact| line.contains(fact.says));
        let is_known = is_fact || NOT_OURS.iter().any(|begin| what.starts_with(begin));
        return match here.is_empty() || is_known {
            true => Ok(()),
            false => Err(format!(
                "nothing says where the numbers of \"{what}\" come from"
            )),
        };
    }
    match of_default.find(|number| !known.contains(number)) {
        None => Ok(()),
        Some(_) => Err(format!("`{default}` is no default of those in \"{what}\"")),
    }
}

/// The last two cells of each row that the table in front of a struct has for a setting; none
/// without a table.
fn documented<'a>(
    sources: &'a Sources,
    config: &str,
    setting: &str,
) -> Result<Vec<[&'a str; 2]>, ()> {
    let end = format!("pub struct {config} {{");
    let fronts = sources.texts().filter_map(|text| text.split_once(&end));
    let tables = fronts.filter_map(|(front, _)| front.rsplit_once("/// | setting |"));
    let Some((_, table)) = tables.last() else {
        return Ok(Vec::new());
    };
    let rows = table
        .lines()
        .take_while(|line| line.is_empty() || line.contains('|'));
    let cells = rows.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let name = format!("`{setting}`");
    let found: Vec<_> = cells
        .filter(|cells| cells.len() > 4 && cells[1].contains(&name))
        .map(|cells| [cells[cells.len() - 3], cells[cells.len() - 2]])
        .collect();
    if found.is_empty() { Err(()) } else { Ok(found) }
}

/// The numbers of a cell: bytes and counts as they are, times in nanoseconds behind the highest
/// count. Versions, and what stands in backticks, are none.
fn numbers(cell: &str) -> impl Iterator<Item = u128> {
    let prose: String = cell.split('`').step_by(2).collect::<Vec<_>>().join("x");
    let words: Vec<String> = prose.split_whitespace().map(str::to_owned).collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let word = word.trim_matches(|c: char| ";,()".contains(c));
        let digits = word.replace(',', "");
        let Ok(number) = digits.parse::<u128>() else {
            continue;
        };
        let unit = words
            .get(at + 1)
            .map_or("", |unit| unit.trim_matches([';', ',', ')']));
        let ends_here = words[at].ends_with([';', ',']);
        let time = |nanoseconds: u128| (1 << 64) + number * nanoseconds;
        found.push(match if ends_here { "" } else { unit } {
            "KiB" => number << 10,
            "MiB" => number << 20,
            "GiB" => number << 30,
            "µs" => time(1_000),
            "ms" => time(1_000_000),
            "s" => time(1_000_000_000),
            "h" => time(3_600_000_000_000),
            _ => number,
        });
    }
    found.into_iter()
}
