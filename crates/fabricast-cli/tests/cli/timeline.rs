//! `--timeline` of both sides of a stream.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program;
use crate::provider::node;
use crate::stream::{Process, Running, file, provider, temp};

/// The cells of a row of a table, by the text of its first.
fn cells(page: &str, row: &str) -> Vec<String> {
    let begin = page.find(&format!("<th scope=\"row\">{row}</th>"));
    let begin = begin.unwrap_or_else(|| panic!("{row}: {page}"));
    let line = page[begin..].lines().next().expect("a row");
    let cells = line
        .split("<td>")
        .skip(1)
        .map(|cell| cell.split("</td>").next());
    cells
        .map(|cell| cell.expect("its end").to_owned())
        .collect()
}

/// The shares of what was waited for, in percent, which come to all of it.
fn shares(page: &str) -> [f64; 5] {
    let rows = [
        "bytes moving",
        "network (wire)",
        "credits",
        "writing (sink)",
        "limits, pauses",
    ];
    let share = |row: &str| -> f64 {
        let cell = &cells(page, row)[0];
        cell.trim_end_matches(" %")
            .parse()
            .unwrap_or_else(|_| panic!("{row}: {cell}"))
    };
    let reading = share(match page.contains("reading (source)") {
        true => "reading (source)",
        false => "reading (disk)",
    });
    // There is no lane for limits where there was none.
    let others = rows.map(|row| if page.contains(row) { share(row) } else { 0.0 });
    let all = share("connecting") + reading + others.iter().sum::<f64>();
    assert!((all - 100.0).abs() < 0.5, "{all}: {page}");
    others
}

fn read(path: &Path) -> String {
    let page = fs::read_to_string(path).expect("a page");
    assert!(
        !page.contains("<script") && page.contains("<svg "),
        "{page}"
    );
    page
}

#[test]
fn both_sides_draw_where_the_time_went() {
    let Some(program) = program() else { return };
    let (from, to, pages) = (temp(), temp(), temp());
    let (sent, received) = (
        pages.path().join("sent.html"),
        pages.path().join("received.html"),
    );
    let more = ["--once", "--timeline", received.to_str().expect("UTF-8")];
    let receiver = Running::start(&program, to.path(), &more);
    let path = file(&from, "f", 4 << 20);
    let mut command = receiver.sender(&program);
    // Some 0.4 s, most of it the limit.
    command
        .args(["--limit-rate", "10M", "--timeline"])
        .arg(&sent)
        .arg(&path);
    Process::start_command(&mut command).end().assert_ok();
    receiver.process.end().assert_ok();
    let page = read(&sent);
    let [.., limits] = shares(&page);
    assert!(limits > 20.0, "{limits}: {page}");
    assert!(cells(&page, "sent")[0].ends_with("/s"), "{page}");
    assert!(cells(&page, "reading")[0].parse::<f64>().is_ok(), "{page}");
    let page = read(&received);
    shares(&page);
    assert!(cells(&page, "written")[0].ends_with("/s"), "{page}");
    assert!(cells(&page, "writing")[0].parse::<f64>().is_ok(), "{page}");
}

#[test]
fn a_timeline_that_can_t_be_written_is_said_before_anything_is_sent() {
    let Some(program) = program() else { return };
    let (from, to) = (temp(), temp());
    let receiver = Running::start(&program, to.path(), &["--once"]);
    let path = file(&from, "f", 1000);
    let mut command = receiver.sender(&program);
    command
        .args(["--timeline", "/nowhere/at/all.html"])
        .arg(&path);
    let ended = Process::start_command(&mut command).end();
    ended.assert_failed(6, "--timeline: /nowhere/at/all.html: No such file");
    assert!(
        crate::stream::names(to.path()).is_empty(),
        "nothing was sent"
    );
}

#[test]
fn a_readout_draws_its_run() {
    let Some(program) = program() else { return };
    let pages = temp();
    let path = pages.path().join("run.html");
    let mut command = Command::new(program);
    command.args([
        "readout",
        "demo",
        "--provider",
        provider(),
        "--node",
        node(),
    ]);
    command
        .args(["--seconds", "0.6", "--rate", "1", "--json", "--timeline"])
        .arg(&path);
    Process::start_command(&mut command).end().assert_ok();
    let page = read(&path);
    assert!(cells(&page, "events built")[0].ends_with("/s"), "{page}");
    // Two builders, each with a lane of its own, and as many lanes as rows.
    let rows = page.matches("<th scope=\"row\">").count();
    assert_eq!(rows, 4 + 2 + 5, "{page}");
}
