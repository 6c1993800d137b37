//! Manual pages and completions, made of the same declarations as `--help`.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::failure::{End, Failure, SUCCESS};

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where they are written: fabricast.1, and one for each command
    dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Writes a page for the program and one for each of its commands.
pub(crate) fn man(command: Command, args: &ManArgs) -> Result<(), Failure> {
    fs::create_dir_all(&args.dir).map_err(|error| Failure::file(&args.dir, &error))?;
    let version = command.get_version().unwrap_or_default();
    let source = format!("{} {version}", command.get_name());
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = vec![command];
    while let Some(command) = pages.pop() {
        let visible = command.get_subcommands().filter(|it| !it.is_hide_set());
        pages.extend(visible.cloned());
        let man = Man::new(command.clone())
            .source(&source)
            .manual("User Commands");
        let path = args.dir.join(man.get_filename());
        page(&man, &command)
            .and_then(|page| fs::write(&path, page))
            .map_err(|error| Failure::file(&path, &error))?;
    }
    Ok(())
}

/// A page, without a date: the same sources give the same page.
fn page(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|it| !it.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut own = Roff::new();
    let text = command.get_after_help().map(ToString::to_string);
    // The codes have a section of their own.
    let text = text.unwrap_or_default().replace(&End::list(), "");
    let (examples, notes) = text.split_at(examples_end(&text));
    if let Some((_, examples)) = examples.split_once('\n') {
        verbatim(&mut own, "EXAMPLES", examples);
    }
    if !notes.trim().is_empty() {
        filled(&mut own, "NOTES", notes);
    }
    if !text.contains("Exit code:") {
        exit_status(&mut own);
    }
    own.to_writer(&mut page)?;
    page.flush()?;
    Ok(page)
}

/// Where the examples end that a text begins with: before the first line that is not indented.
fn examples_end(text: &str) -> usize {
    if !text.starts_with("Examples:") {
        return 0;
    }
    let mut end = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if index > 0 && !line.starts_with(' ') && !line.trim().is_empty() {
            break;
        }
        end += line.len();
    }
    end
}

/// A section whose lines stay as they are: commands, and what they do in a column beside them.
fn verbatim(roff: &mut Roff, section: &str, text: &str) {
    roff.control("SH", [section]).control("nf", []);
    for line in text.trim_matches('\n').lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

/// A section of sentences. One that begins a line begins a paragraph.
fn filled(roff: &mut Roff, section: &str, text: &str) {
    roff.control("SH", [section]);
    let mut last = "";
    for line in text.trim().lines() {
        if last.ends_with('.') {
            roff.control("PP", []);
        }
        roff.text([roman(line)]);
        last = line;
    }
}

fn exit_status(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    let failed = End::ALL.map(|end| (end as u8, end.meaning()));
    for (code, meaning) in [(0, SUCCESS)].into_iter().chain(failed) {
        roff.control("TP", [])
            .text([bold(code.to_string())])
            .text([roman(meaning)]);
    }
}

/// Prints what a shell completes command lines with.
pub(crate) fn completions(command: &Command, args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    let mut visible = visible(command);
    clap_complete::generate(args.shell, &mut visible, command.get_name(), &mut script);
    let mut out = io::stdout().lock();
    out.write_all(&script)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::os("stdout", &error))
}

/// The command without what it hides, which the completions would offer: as much as they look at.
fn visible(command: &Command) -> Command {
    let mut visible = Command::new(command.get_name().to_owned());
    if let Some(version) = command.get_version() {
        visible = visible.version(version.to_owned());
    }
    if let Some(about) = command.get_about() {
        visible = visible.about(about.clone());
    }
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let commands = command.get_subcommands().filter(|it| !it.is_hide_set());
    visible
        .args(arguments.cloned())
        .subcommands(commands.map(self::visible))
}
