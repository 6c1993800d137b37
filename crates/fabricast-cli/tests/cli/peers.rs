//! What compares the readout with other libraries: that it starts, and counts right. No figure of
//! it is looked at.

use std::process::{Command, Stdio};

use crate::provider::node;

/// One short pair of each check, on whatever cores there are.
#[test]
fn event_building_beside_zeromq_counts_right() {
    let Some(program) = crate::program() else {
        return;
    };
    let driver = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../benches/peers/readout_pairs.py"
    );
    let provider = crate::over().expect("the program is there");
    let mut command = Command::new("python3");
    command.arg(driver).arg("--fabricast").arg(program);
    command.args(["--provider", provider, "--node", node(), "--json"]);
    command.args(["--pairs", "1", "--seconds", "0.05", "--size", "100"]);
    command.args(["--check", "off,on", "--pin", "none", "--netns", "none"]);
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("SKIPPED: event building beside ZeroMQ: no python3 here");
            return;
        }
        Err(error) => panic!("python3: {error}"),
    };
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    if let Some(reason) = stdout.lines().find(|line| line.starts_with("SKIPPED: ")) {
        println!("{reason}");
        return;
    }
    // The driver compares the counts of both ends of both ways, and fails where they differ.
    let rows: Vec<_> = stdout.lines().collect();
    assert_eq!(rows.len(), 2, "{stdout}");
    for (row, check) in rows.iter().zip(["false", "true"]) {
        assert!(row.contains(&format!("\"check\": {check}")), "{row}");
        assert!(
            row.contains("\"pairs\": 1,") && row.contains("\"size_bytes\": 100,"),
            "{row}"
        );
    }
}
