//! Manual pages and completions, of a program with the feature `pages`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

fn output(words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    let output = command.args(words).output().expect("it runs");
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The commands that `--help` lists below a heading, and the long options.
fn said(help: &str) -> (Vec<String>, BTreeSet<String>) {
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty());
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let commands = commands
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(first)
        .filter(|name| name != "help");
    let options = help.lines().map(str::trim_start);
    let options = options
        .filter(|line| line.starts_with('-'))
        .flat_map(|line| line.split([' ', '=', '[', ',']))
        .filter(|word| word.starts_with("--") && word.len() > 2);
    (commands.collect(), options.map(str::to_owned).collect())
}

/// Compares the page of a command with its `--help`, and those of its commands.
fn compare(dir: &Path, words: &[&str], pages: &mut usize) {
    let name = ["fabricast"].iter().chain(words).copied();
    let name = name.collect::<Vec<_>>().join("-");
    let path = dir.join(format!("{name}.1"));
    let page = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    *pages += 1;
    let page = page.replace("\\-", "-");
    let (commands, options) = said(&output(&[words, &["--help"]].concat()));
    for option in options {
        assert!(page.contains(&option), "{option} is not in {name}.1");
    }
    assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
    for hidden in ["far-end", "--trial", "completions"] {
        assert!(!page.contains(hidden), "{hidden} is in {name}.1");
    }
    for command in &commands {
        let page_of = format!("{name}-{command}(1)");
        assert!(page.contains(&page_of), "{page_of} is not in {name}.1");
        compare(dir, &[words, &[command]].concat(), pages);
    }
}

#[test]
fn each_command_has_a_page_with_all_its_options() {
    let dir = tempfile::tempdir().expect("a directory");
    output(&["man", dir.path().to_str().expect("UTF-8")]);
    let mut pages = 0;
    compare(dir.path(), &[], &mut pages);
    let written = fs::read_dir(dir.path()).expect("it is there");
    let written: Vec<_> = written.map(|entry| entry.expect("read").path()).collect();
    assert_eq!(written.len(), pages, "{written:?}");
    assert!(pages > 10, "{written:?}");
    // The codes that are tested beside what they stand for, in stream.rs and objects.rs.
    let page = fs::read_to_string(dir.path().join("fabricast-send.1")).expect("it is there");
    for code in [0, 1, 2, 3, 4, 5, 6, 7, 8, 130, 143] {
        let entry = format!(".TP\n\\fB{code}\\fR\n");
        assert!(page.contains(&entry), "{code}: {page}");
    }
    // Whoever reads pages here has no complaint.
    let mut groff = Command::new("groff");
    groff.args(["-man", "-ww", "-Tutf8", "-z"]).args(&written);
    match groff.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{said}");
        }
        Err(why) => println!("SKIPPED: the pages were not formatted: groff: {why}"),
    }
}

#[test]
fn completions_name_what_is_to_be_seen() {
    for shell in ["bash", "zsh", "fish"] {
        let script = output(&["completions", shell]);
        for word in ["send", "doctor", "rails"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        for hidden in ["far-end", " --trial", "'--trial", "-l trial"] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
    }
    // What bash offers after `fabricast do`.
    let asked = "source <(\"$0\" completions bash); COMP_WORDS=(fabricast do); COMP_CWORD=1
        _fabricast fabricast do fabricast; echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", asked, env!("CARGO_BIN_EXE_fabricast")]);
    match bash.stdin(Stdio::null()).output() {
        Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), "doctor\n"),
        Err(why) => println!("SKIPPED: nothing was completed: bash: {why}"),
    }
}
