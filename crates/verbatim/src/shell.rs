//! `verbatim completions`, man pages and the command reference, all generated from the argument
//! definitions.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Arg, Command};
use clap_complete::Shell;

use crate::outcome::CommandOutcome;
use crate::output::print_text;

/// Arguments of `verbatim completions`.
#[derive(clap::Args)]
#[command(after_help = COMPLETIONS_HELP)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

const COMPLETIONS_HELP: &str = "\
Examples:
  verbatim completions bash > ~/.local/share/bash-completion/completions/verbatim
  verbatim completions zsh > ~/.zfunc/_verbatim
  verbatim completions fish > ~/.config/fish/completions/verbatim.fish";

/// Arguments of `verbatim man`.
#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// The folder for the pages; it is made if it is missing
    dir: PathBuf,
}

/// Runs `verbatim completions`: prints the completion script of a shell.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn print_completions(
    mut cli: Command,
    args: &CompletionsArgs,
) -> Result<CommandOutcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli, "verbatim", &mut script);
    print_text(&script)?;
    Ok(CommandOutcome::Done)
}

/// Runs `verbatim man`: writes a man page of section 1 for each command.
///
/// # Errors
/// Returns an error if the folder cannot be created, or a page cannot be written.
pub(crate) fn write_man_pages(cli: Command, args: &ManArgs) -> Result<CommandOutcome> {
    let dir = &args.dir;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    clap_mangen::generate_to(cli.disable_help_subcommand(true), dir)
        .with_context(|| format!("cannot write into {}", dir.display()))?;
    Ok(CommandOutcome::Done)
}

/// Runs `verbatim reference`: prints `docs/reference/commands.md`.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn print_command_reference(cli: Command) -> Result<CommandOutcome> {
    print_text(command_reference_markdown(cli).as_bytes())?;
    Ok(CommandOutcome::Done)
}

/// Returns the command and all its visible subcommands with their full names. Each command comes
/// before its own subcommands.
fn visible_commands(cli: Command) -> Vec<(String, Command)> {
    let mut cli = cli;
    cli.build();
    let mut found = Vec::new();
    collect_visible_commands(&cli, cli.get_name().to_owned(), &mut found);
    found
}

fn collect_visible_commands(command: &Command, name: String, found: &mut Vec<(String, Command)>) {
    found.push((name.clone(), command.clone()));
    for inner in command.get_subcommands() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            collect_visible_commands(inner, format!("{name} {}", inner.get_name()), found);
        }
    }
}

/// Formats the reference of all commands as Markdown.
fn command_reference_markdown(cli: Command) -> String {
    let mut text = String::from(
        "# Commands\n\n<!-- written by: verbatim reference > docs/reference/commands.md -->\n\n\
         Every command prints this by `--help`. Exit status: 0 done, 1 ran and the answer is no, 2 could not run; \
         of `verbatim run` and `verbatim sockets` that of the program.\n",
    );
    for (name, command) in visible_commands(cli) {
        append_command_section(&mut text, &name, &command);
    }
    text
}

fn append_command_section(text: &mut String, name: &str, command: &Command) {
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(text, "\n## {name}\n\n{}.\n", escape_table_cell(&about));
    let usage = command.clone().bin_name(name).render_usage().to_string();
    let usage = usage.trim().trim_start_matches("Usage: ");
    // Further lines are indented by the length of "Usage: ".
    let usage = usage.replace("\n       ", "\n");
    let _ = writeln!(text, "```text\n{usage}\n```");
    let positionals: Vec<&Arg> = command.get_positionals().collect();
    let options = command
        .get_opts()
        .chain(command.get_arguments().filter(|arg| is_flag(arg)));
    let mut options: Vec<&Arg> = options.collect();
    options.sort_by_key(|arg| arg.get_long().map(str::to_owned));
    for (title, args) in [("argument", positionals), ("option", options)] {
        append_option_table(text, title, &args);
    }
    let inner = command.get_subcommands();
    let inner = inner.filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
    for (at, inner) in inner.enumerate() {
        if at == 0 {
            text.push_str("\n| command | |\n|---|---|\n");
        }
        let about = inner
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default();
        let full = format!("{name} {}", inner.get_name());
        let anchor = full.replace(' ', "-");
        let _ = writeln!(
            text,
            "| [`{full}`](#{anchor}) | {} |",
            escape_table_cell(&about)
        );
    }
    if let Some(help) = command.get_after_long_help().or(command.get_after_help()) {
        append_help_epilogue(text, &help.to_string());
    }
}

/// Adds the text below the options of `--help`: indented lines as blocks of code, other lines as
/// paragraphs, which a page wraps.
fn append_help_epilogue(text: &mut String, help: &str) {
    let is_code = |line: &str| line.starts_with(' ');
    for paragraph in help.trim_end().split("\n\n") {
        let lines: Vec<&str> = paragraph.lines().collect();
        for part in lines.chunk_by(|before, after| is_code(before) == is_code(after)) {
            if is_code(part[0]) {
                let _ = writeln!(text, "\n```text");
                for line in part {
                    let _ = writeln!(text, "{}", line.strip_prefix("  ").unwrap_or(line));
                }
                let _ = writeln!(text, "```");
            } else {
                let _ = writeln!(text, "\n{}", escape_table_cell(&part.join("\n")));
            }
        }
    }
}

/// Returns true if the argument is an option without a value that the command itself defines.
fn is_flag(arg: &Arg) -> bool {
    let is_option = arg.get_long().is_some() || arg.get_short().is_some();
    let is_builtin = matches!(arg.get_id().as_str(), "help" | "version");
    is_option && !is_builtin && !arg.get_action().takes_values()
}

fn append_option_table(text: &mut String, title: &str, args: &[&Arg]) {
    let mut args = args.iter().filter(|arg| !arg.is_hide_set()).peekable();
    if args.peek().is_some() {
        let _ = writeln!(text, "\n| {title} | |\n|---|---|");
    }
    for arg in args {
        let help = arg.get_long_help().or(arg.get_help());
        let mut help = help.map(ToString::to_string).unwrap_or_default();
        help = escape_table_cell(&help.split_whitespace().collect::<Vec<_>>().join(" "));
        let values = arg.get_possible_values();
        let values = values.iter().filter(|value| !value.is_hide_set());
        let values: Vec<_> = values
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if !values.is_empty() && arg.get_action().takes_values() {
            let _ = write!(help, " (one of {})", values.join(", "));
        }
        let defaults = arg.get_default_values().iter();
        let defaults: Vec<_> = defaults.map(|value| value.to_string_lossy()).collect();
        if !defaults.is_empty() && arg.get_action().takes_values() {
            let _ = write!(help, " (default `{}`)", defaults.join(" "));
        }
        let _ = writeln!(
            text,
            "| `{}` | {help} |",
            format_option(arg).replace('|', "\\|")
        );
    }
}

/// Formats an option in the form `-n, --name <VALUE>`, without colours.
fn format_option(arg: &Arg) -> String {
    let form = arg.to_string();
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(_)) => format!("-{short}, {form}"),
        _ => form,
    }
}

/// Escapes a text for a cell of a Markdown table.
fn escape_table_cell(text: &str) -> String {
    let text = text.replace('|', "\\|").replace('<', "\\<");
    text.replace('*', "\\*").replace('[', "\\[")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn the_reference_of_commands_is_current() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/commands.md"
        );
        let written = fs::read_to_string(path).expect("docs/reference/commands.md");
        assert!(
            written == command_reference_markdown(Cli::command()),
            "the command line has changed: verbatim reference > docs/reference/commands.md"
        );
    }

    #[test]
    fn there_is_a_man_page_for_every_command() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("man1");
        write_man_pages(Cli::command(), &ManArgs { dir: dir.clone() }).expect("pages");
        let text = fs::read_to_string(dir.join("verbatim-bench-peers.1")).expect("a page");
        assert!(
            text.contains(".SH SYNOPSIS") && text.contains("\\-\\-rounds"),
            "{text}"
        );
        let pages = fs::read_dir(&dir).expect("pages").count();
        assert_eq!(pages, visible_commands(Cli::command()).len());
    }

    #[test]
    fn completions_know_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "verbatim", &mut script);
            let script = String::from_utf8(script).expect("text");
            assert!(
                script.contains("sequencer") && script.contains("ledger"),
                "{shell}"
            );
        }
    }
}
