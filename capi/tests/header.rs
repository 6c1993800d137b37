//! The header that is checked in is the one of these sources.

use std::collections::BTreeSet;
use std::path::Path;

/// With FABRICAST_WRITE_DOCS=1 it is written; else it must be the same.
#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut bytes = Vec::new();
    let bindings = cbindgen::Builder::new()
        .with_src(root.join("src/lib.rs"))
        .with_config(config)
        .generate();
    bindings
        .expect("the sources are understood")
        .write(&mut bytes);
    let made = String::from_utf8(bytes).expect("it is UTF-8");
    let path = root.join("include/fabricast.h");
    if std::env::var_os("FABRICAST_WRITE_DOCS").is_some() {
        std::fs::write(&path, &made).expect("it can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let first = kept
        .lines()
        .zip(made.lines())
        .position(|(kept, made)| kept != made);
    assert!(
        kept == made,
        "capi/include/fabricast.h differs from line {} on: write it anew with \
         FABRICAST_WRITE_DOCS=1 cargo test -p fabricast-capi --test header",
        first.map_or(0, |line| line + 1)
    );
}

/// Where a name of C++'s standard library stands. One that several headers have has the one that is
/// usual for it.
fn standard_header(name: &str) -> Option<&'static str> {
    Some(match name {
        "uint8_t" | "uint16_t" | "uint32_t" | "uint64_t" | "int32_t" | "int64_t" | "uintptr_t" => {
            "cstdint"
        }
        "size_t" | "ptrdiff_t" => "cstddef",
        "move" | "forward" | "exchange" | "pair" | "declval" => "utility",
        "unique_ptr"
        | "shared_ptr"
        | "weak_ptr"
        | "make_unique"
        | "make_shared"
        | "enable_shared_from_this" => "memory",
        "string" | "to_string" => "string",
        "string_view" => "string_view",
        "function" | "less" | "hash" => "functional",
        "vector" => "vector",
        "array" => "array",
        "map" => "map",
        "unordered_map" => "unordered_map",
        "deque" => "deque",
        "span" => "span",
        "optional" | "nullopt" => "optional",
        "initializer_list" => "initializer_list",
        "mutex" | "lock_guard" | "unique_lock" => "mutex",
        "condition_variable" => "condition_variable",
        "thread" | "this_thread" => "thread",
        "atomic" => "atomic",
        "chrono" => "chrono",
        "min" | "max" | "remove_if" | "find_if" | "all_of" | "copy" => "algorithm",
        "prev" => "iterator",
        "logic_error" | "runtime_error" => "stdexcept",
        "bad_alloc" => "new",
        "exception" | "exception_ptr" | "current_exception" | "rethrow_exception" => "exception",
        "system_error" | "generic_category" => "system_error",
        "ostream" => "ostream",
        "cerr" => "iostream",
        "streamsize" => "ios",
        "strtoull" | "strtoul" | "getenv" | "abort" => "cstdlib",
        "snprintf" | "fprintf" => "cstdio",
        "strerror" | "memcpy" => "cstring",
        "remove_reference_t"
        | "remove_pointer_t"
        | "remove_cv_t"
        | "is_trivially_copyable_v"
        | "is_same_v"
        | "is_nothrow_move_constructible_v"
        | "is_convertible_v"
        | "is_array_v"
        | "enable_if_t" => "type_traits",
        _ => return None,
    })
}

/// The names behind `std::` in a header.
fn standard_names(text: &str) -> BTreeSet<&str> {
    let names = text.split("std::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    });
    names.collect()
}

/// The headers that a header includes, those of ours with what they include.
fn included(root: &Path, name: &str, into: &mut BTreeSet<String>) {
    let text = std::fs::read_to_string(root.join(name)).expect("it can be read");
    for line in text.lines().map(str::trim) {
        let Some(rest) = line.strip_prefix("#include <") else {
            continue;
        };
        let header = rest.split('>').next().unwrap_or_default();
        if into.insert(header.to_owned()) && root.join(header).exists() {
            included(root, header, into);
        }
    }
}

/// Which of its headers include which others is each standard library's own affair, and changes
/// from one version to the next.
#[test]
fn headers_include_what_they_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut missing = Vec::new();
    let mut seen = 0;
    for entry in std::fs::read_dir(&root).expect("headers") {
        let name = entry.expect("a header").file_name();
        let name = name.to_str().expect("its name is text");
        if !name.ends_with(".hpp") {
            continue;
        }
        let text = std::fs::read_to_string(root.join(name)).expect("it can be read");
        let mut headers = BTreeSet::new();
        included(&root, name, &mut headers);
        for used in standard_names(&text) {
            seen += 1;
            match standard_header(used) {
                Some(header) if headers.contains(header) => {}
                Some(header) => missing.push(format!("{name}: std::{used} needs <{header}>")),
                None => missing.push(format!("std::{used} ({name}) is not in this test's table")),
            }
        }
    }
    assert!(seen > 100, "{seen} names are too few");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
