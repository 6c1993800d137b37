//! Listings in C and C++: each is compiled against the headers, and not linked. Those in Rust are
//! tests of the documentation; the program of docs/migrating-from-netio3.md is compiled and run by
//! capi/tests/netio3_diff.sh.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::{Document, Findings, root};

/// What a part of a program takes from what is around it, by a word of its own.
const AROUND: [(&str, &str); 2] = [
    (
        "fcast_payload_after_stream(tensor",
        "#include <fabricast.h>
         static fcast_region gpu;
         static fcast_endpoint sender;
         int main(int len, char **arguments)
         {
             void *address = arguments[0], *stream = arguments[1];",
    ),
    (
        "struct one_reader",
        "#include <fabricast_object.hpp>
         #include <cstring>
         static unsigned char calibration[4096];
         extern fabricast::fabric fabric;",
    ),
];

pub(super) struct Listing {
    line: usize,
    compiler: &'static str,
    standard: &'static str,
    text: String,
}

/// The listings in C and C++ that are for this library, with what is around them.
pub(super) fn of(page: &Document) -> Vec<Listing> {
    let mut listings = Vec::new();
    let mut open: Option<Listing> = None;
    for (at, line) in page.text.lines().enumerate() {
        if let Some(listing) = &mut open
            && line != "```"
        {
            listing.text.push_str(line);
            listing.text.push('\n');
            continue;
        }
        listings.extend(open.take());
        let language = match line {
            "```c" => Some(("cc", "-std=c11")),
            "```cpp" => Some(("c++", "-std=c++17")),
            _ => None,
        };
        open = language.map(|(compiler, standard)| Listing {
            line: at + 1,
            compiler,
            standard,
            text: String::new(),
        });
    }
    let is_ours = |listing: &Listing| {
        ["kvikio/", "Netio3Backend"]
            .iter()
            .all(|theirs| !listing.text.contains(theirs))
    };
    listings.retain(is_ours);
    for listing in &mut listings {
        if let Some((_, around)) = AROUND.iter().find(|(word, _)| listing.text.contains(word)) {
            let end = if around.contains("int main") {
                "}\n"
            } else {
                ""
            };
            listing.text = format!("{around}\n{}{end}", listing.text);
        }
    }
    listings
}

/// What the compiler says; `None` where there is no compiler.
pub(super) fn compile(page: &Document, listing: &Listing, findings: &mut Findings) -> Option<()> {
    let language = if listing.compiler == "cc" { "c" } else { "c++" };
    let mut compiler = Command::new(listing.compiler)
        .args([
            listing.standard,
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
        ])
        .args(["-x", language, "-I", "capi/include", "-"])
        .current_dir(root())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = compiler.stdin.take().expect("a pipe");
    stdin.write_all(listing.text.as_bytes()).expect("it reads");
    drop(stdin);
    let said = compiler.wait_with_output().expect("it ends");
    if !said.status.success() {
        let words = String::from_utf8_lossy(&said.stderr);
        findings.push(page.at(listing.line, words));
    }
    Some(())
}
