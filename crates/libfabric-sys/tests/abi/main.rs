//! Compares every declaration with the C headers: constants, sizes, offsets, types of fields,
//! prototypes.
//!
//! For each set of headers (the system's, and those that FABRICAST_ABI_HEADERS names) a C program
//! is generated, compiled and run. A declaration that is newer than the headers is skipped and
//! counted; headers newer than NEWEST may have made a struct longer, but may not have moved what we
//! declare.

mod headers;
mod source;
mod table;

use libfabric_sys::{NEWEST, OLDEST, fi_major, fi_minor, fi_version_make, version_text};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write as _};

const CONSTS: &str = include_str!("../../src/consts.rs");
const TYPES: &str = include_str!("../../src/types.rs");
const OPS: &str = include_str!("../../src/ops.rs");
const INLINE: &str = include_str!("../../src/inline.rs");
const LIBRARY: &str = include_str!("../../src/library.rs");

/// Functions of `inline.rs` that C has under no name.
const OURS: [&str; 1] = ["fi_getwait_fd"];

/// Declarations that are newer than NEWEST, on purpose.
const UNCHECKED: [&str; 1] = ["FI_GET_FD"];

/// Says something that a passing test shows, too.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "abi: {text}");
}

/// One question to the headers, and the answer that we declare.
struct Row {
    what: String,
    since: u32,
    c: String,
    expected: Expected,
}

enum Expected {
    Exactly(u64),
    /// The size of a struct: exact in headers that have all our fields and are not newer than
    /// NEWEST.
    Size {
        ours: u64,
        complete_since: u32,
    },
}

impl Expected {
    fn fits(&self, found: u64, headers: u32) -> bool {
        match *self {
            Self::Exactly(value) => found == value,
            Self::Size { ours, .. } if headers > NEWEST => found >= ours,
            Self::Size {
                ours,
                complete_since,
            } if headers >= complete_since => found == ours,
            Self::Size { ours, .. } => found < ours,
        }
    }

    fn number(&self) -> u64 {
        match *self {
            Self::Exactly(value) => value,
            Self::Size { ours, .. } => ours,
        }
    }
}

/// The C name of a field.
fn c_field(owner: &str, field: &str) -> String {
    match (owner, field) {
        ("fi_mr_attr", "memory") => "mr_iov".to_owned(),
        ("fi_bus_attr", "pci") => "attr.pci".to_owned(),
        _ => field.trim_end_matches('_').to_owned(),
    }
}

fn constant_rows() -> Vec<Row> {
    let row = |constant: table::Constant| Row {
        what: constant.name.to_owned(),
        since: constant.since,
        c: constant.name.to_owned(),
        expected: Expected::Exactly(constant.value),
    };
    table::constants().into_iter().map(row).collect()
}

fn layout_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for layout in table::layouts() {
        let name = layout.name;
        rows.push(Row {
            what: format!("size of {name}"),
            since: layout.since(),
            c: format!("sizeof(struct {name})"),
            expected: Expected::Size {
                ours: layout.size as u64,
                complete_since: layout.complete_since(),
            },
        });
        for field in &layout.fields {
            let c_name = c_field(name, field.name);
            let what = |of: &str| format!("{of} of {name}.{}", field.name);
            let row = |what, c, value: usize| Row {
                what,
                since: field.since,
                c,
                expected: Expected::Exactly(value as u64),
            };
            rows.push(row(
                what("offset"),
                format!("offsetof(struct {name}, {c_name})"),
                field.offset,
            ));
            // A flexible array has no size in C.
            if field.size > 0 {
                let size = format!("sizeof(((struct {name} *)0)->{c_name})");
                rows.push(row(what("size"), size, field.size));
            }
        }
    }
    rows.push(dmabuf_row());
    rows
}

/// The other member of the anonymous union.
fn dmabuf_row() -> Row {
    Row {
        what: "offset of fi_mr_attr.memory.dmabuf".to_owned(),
        since: fi_version_make(1, 20),
        c: "offsetof(struct fi_mr_attr, dmabuf)".to_owned(),
        expected: Expected::Exactly(std::mem::offset_of!(libfabric_sys::fi_mr_attr, memory) as u64),
    }
}

/// A row that asks whether two C types are compatible.
fn type_row(what: String, since: u32, c_value: &str, c_type: &str) -> Row {
    Row {
        what,
        since,
        c: format!("__builtin_types_compatible_p(__typeof__({c_value}), {c_type})"),
        expected: Expected::Exactly(1),
    }
}

/// Types of fields and operations, prototypes of functions, widths of enumerations.
fn type_rows() -> Vec<Row> {
    let enumerations = source::enumerations(TYPES);
    let mut rows = Vec::new();
    let since: BTreeMap<_, _> = table::layouts()
        .iter()
        .flat_map(|layout| {
            layout
                .fields
                .iter()
                .map(|field| ((layout.name, field.name), field.since))
        })
        .collect();
    for structure in [source::structs(TYPES, None), source::structs(OPS, None)].concat_all() {
        let name = &structure.name;
        for field in &structure.fields {
            let since = since.get(&(name.as_str(), field.name.as_str())).copied();
            let rust_type = if field.rust_type == "*mut Self" {
                format!("*mut {name}")
            } else {
                field.rust_type.clone()
            };
            if let (Some(since), Some(c_type)) = (since, source::c_type(&rust_type, &enumerations))
            {
                let value = format!("((struct {name} *)0)->{}", c_field(name, &field.name));
                rows.push(type_row(
                    format!("type of {name}.{}", field.name),
                    since,
                    &value,
                    &c_type,
                ));
            }
        }
    }
    let exported = source::structs(LIBRARY, Some("Functions"));
    let exported = exported
        .iter()
        .filter(|structure| structure.name == "Functions")
        .flat_map(|s| &s.fields);
    let inline = source::functions(INLINE);
    for function in inline
        .iter()
        .chain(exported)
        .filter(|f| !OURS.contains(&f.name.as_str()))
    {
        let name = &function.name;
        let c_type =
            source::c_type(&function.rust_type, &enumerations).expect("each type has a C name");
        rows.push(type_row(
            format!("prototype of {name}"),
            table::function_since(name),
            &format!("&{name}"),
            &c_type,
        ));
    }
    rows.extend(enumerations.iter().map(|name| Row {
        what: format!("size of enum {name}"),
        since: OLDEST,
        c: format!("sizeof(enum {name})"),
        expected: Expected::Exactly(4),
    }));
    rows
}

/// `concat` for owned parts.
trait ConcatAll<T> {
    fn concat_all(self) -> Vec<T>;
}

impl<T, const N: usize> ConcatAll<T> for [Vec<T>; N] {
    fn concat_all(self) -> Vec<T> {
        self.into_iter().flatten().collect()
    }
}

/// The program that answers the rows: `version`, then a line `row value` for each that the headers
/// have.
fn program(rows: &[Row]) -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <sys/types.h>\n\
         #include <rdma/fabric.h>\n\
         #include <rdma/fi_domain.h>\n#include <rdma/fi_endpoint.h>\n#include <rdma/fi_eq.h>\n\
         #include <rdma/fi_cm.h>\n#include <rdma/fi_rma.h>\n#include <rdma/fi_errno.h>\n\
         #include <rdma/fi_ext.h>\n\
         #define HEADERS FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)\n\
         int main(void) {\nunsigned long long value;\nprintf(\"%u\\n\", (unsigned)HEADERS);\n",
    );
    for (number, row) in rows.iter().enumerate() {
        let (major, minor) = (fi_major(row.since), fi_minor(row.since));
        // An assignment of its own: some constants hold a pragma, which no call may have inside.
        writeln!(
            text,
            "#if HEADERS >= FI_VERSION({major}, {minor})\nvalue = (unsigned long long)\n{}\n;\n\
             printf(\"{number} %llu\\n\", value);\n#endif",
            row.c
        )
        .expect("a string takes all");
    }
    text.push_str("return 0;\n}\n");
    text
}

/// Compares all rows with one set of headers, and gives its version.
fn check(set: &str, rows: &[Row], answer: &str) -> u32 {
    let mut lines = answer.lines();
    let version: u32 = lines
        .next()
        .and_then(|line| line.parse().ok())
        .expect("the version comes first");
    let found: BTreeMap<usize, u64> = lines
        .map(|line| line.split_once(' ').expect("a line is a row and a value"))
        .map(|(row, value)| (row.parse().expect("a row"), value.parse().expect("a value")))
        .collect();
    let (mut compared, mut wrong) = (0, Vec::new());
    for (number, row) in rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.since <= version)
    {
        let value = found[&number];
        compared += 1;
        if !row.expected.fits(value, version) {
            wrong.push(format!(
                "{}: C has {value}, we declare {}",
                row.what,
                row.expected.number()
            ));
        }
    }
    assert_eq!(compared, found.len(), "the program answered other rows");
    assert!(
        wrong.is_empty(),
        "{set} ({}):\n{}",
        version_text(version),
        wrong.join("\n")
    );
    let skipped = rows.len() - compared;
    say(&format!(
        "{set}: libfabric {}, {compared} declarations agree, {skipped} are newer",
        version_text(version)
    ));
    version
}

#[test]
fn declarations_agree_with_every_header_set() {
    let Some(compiler) = headers::compiler() else {
        return say("SKIPPED: no C compiler");
    };
    let sets = headers::find(&compiler);
    if sets.is_empty() {
        return say(
            "SKIPPED: no libfabric headers (Debian, Ubuntu: libfabric-dev), and \
             FABRICAST_ABI_HEADERS names none",
        );
    }
    let rows: Vec<Row> = [constant_rows(), layout_rows(), type_rows()].concat_all();
    let program = program(&rows);
    let mut versions = BTreeSet::new();
    for set in &sets {
        let answer = headers::run_c(&compiler, set, &program).unwrap_or_else(|error| {
            panic!("{}: the program does not compile:\n{error}", set.name())
        });
        versions.insert(check(&set.name(), &rows, &answer));
    }
    let newest = versions.iter().rfind(|&&version| version <= NEWEST);
    match newest {
        Some(&NEWEST) => say(&format!(
            "NEWEST = {} is the newest version that was compared",
            version_text(NEWEST)
        )),
        _ => say(&format!(
            "SKIPPED: NEWEST = {} is not proved: no headers of that version here",
            version_text(NEWEST)
        )),
    }
    if versions.iter().any(|&version| version >= NEWEST) {
        let last = table::layouts()
            .iter()
            .map(table::Layout::complete_since)
            .max();
        assert!(
            last <= Some(NEWEST),
            "a struct has fields that are newer than NEWEST"
        );
    }
}

#[test]
fn every_constant_has_a_row() {
    let declared = source::constants(CONSTS);
    assert!(
        declared.len() > 300,
        "the source was not understood: {} constants",
        declared.len()
    );
    let rows: Vec<_> = table::constants()
        .iter()
        .map(|constant| constant.name.to_owned())
        .collect();
    let unique: BTreeSet<_> = rows.iter().cloned().collect();
    assert_eq!(unique.len(), rows.len(), "a row is doubled");
    assert_eq!(unique, declared.into_iter().collect());
}

#[test]
fn every_struct_and_field_has_a_row() {
    let name = |owner: &str, field: &str| format!("{owner}.{field}");
    let mut declared = BTreeSet::new();
    for structure in [source::structs(TYPES, None), source::structs(OPS, None)].concat_all() {
        for field in structure
            .fields
            .iter()
            .filter(|field| !field.name.starts_with('_'))
        {
            declared.insert(name(&structure.name, &field.name));
        }
    }
    let mut rows = BTreeSet::new();
    for layout in table::layouts() {
        rows.extend(
            layout
                .fields
                .iter()
                .map(|field| name(layout.name, field.name)),
        );
    }
    assert!(
        rows.len() > 250,
        "the source was not understood: {} fields",
        rows.len()
    );
    assert_eq!(rows, declared);
}

#[test]
fn every_inline_function_is_compared() {
    let functions = source::functions(INLINE);
    assert!(
        functions.len() > 60,
        "the source was not understood: {} functions",
        functions.len()
    );
    let prototypes = type_rows()
        .iter()
        .filter(|row| row.what.starts_with("prototype"))
        .count();
    let exported = 10;
    assert_eq!(prototypes, functions.len() - OURS.len() + exported);
}

#[test]
fn nothing_is_newer_than_the_newest_checked_version() {
    for constant in table::constants() {
        let late = constant.since > NEWEST;
        assert_eq!(
            late,
            UNCHECKED.contains(&constant.name),
            "{}",
            constant.name
        );
    }
    for layout in table::layouts() {
        assert!(layout.complete_since() <= NEWEST, "{}", layout.name);
    }
}
