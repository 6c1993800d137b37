//! The header that is checked in is the one of these sources.

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
