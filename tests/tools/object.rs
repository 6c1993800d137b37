//! `object`: a server and clients as processes, over what this machine's libfabric has.

use std::process::Command;

use serde_json::Value;

/// The demo's lines, as JSON.
fn demo(words: &[&str]) -> Option<Vec<Value>> {
    let program = crate::example("object")?;
    let output = Command::new(program)
        .args(["demo", "--json"])
        .args(words)
        .output()
        .expect("it runs");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if err.contains("no provider") {
        println!("SKIPPED: {err}");
        return None;
    }
    assert!(output.status.success(), "{out}{err}");
    let line = |line: &str| serde_json::from_str(line).expect("JSON");
    Some(out.lines().map(line).collect())
}

#[test]
fn what_is_put_is_listed_and_comes_back() {
    for words in [
        &["--bytes", "1500001"][..],
        &["--bytes", "1", "--provider", "shm"],
    ] {
        let Some(lines) = demo(words) else {
            continue;
        };
        let bytes: u64 = words[1].parse().expect("a number");
        let [put, listed, got, deleted] = &lines[..] else {
            panic!("{lines:?}");
        };
        for (line, operation) in [(put, "put"), (got, "get"), (deleted, "delete")] {
            assert_eq!(line["operation"], operation);
        }
        assert_eq!(put["etag"], got["etag"]);
        assert_eq!(
            (&put["checked"], &got["checked"]),
            (&true.into(), &true.into())
        );
        for (line, field) in [
            (put, "moved_bytes"),
            (got, "moved_bytes"),
            (listed, "size_bytes"),
        ] {
            assert_eq!(line[field], bytes, "{field}");
        }
    }
}
