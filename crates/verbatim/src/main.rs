//! The command line of Verbatim.
//!
//! Parsing opens nothing: clap and [`args`] check the form of every value, then a command opens
//! devices and files. Results go to standard output, progress and notes to standard error. Exit
//! status: 0 for success, 1 for a negative answer, 2 for a failure to run, 130 for an interrupt
//! (partial results are printed).

#![forbid(unsafe_code)]

mod args;
mod bench;
mod btree;
mod capture;
mod children;
mod collective;
mod devices;
mod doctor;
mod explain;
mod fault;
mod grpc;
mod history_check;
mod kv;
mod ledger;
mod model;
mod nic;
mod outcome;
mod output;
mod paper;
mod pcie_counters;
mod picture;
mod program;
mod progress;
mod run;
mod sequencer;
mod shell;
mod side_by_side;
mod sockets;
mod steps;
mod stop;
mod stream_command;
mod streams;
mod sweeps;
mod tensor;
mod trace;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use outcome::CommandOutcome;
use tracing_subscriber::EnvFilter;

use crate::output::StdoutClosed;

/// A workbench for high-performance RDMA systems.
#[derive(Parser)]
#[command(name = "verbatim", version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  verbatim run -- ib_write_bw     a program of this machine, on the software NIC
  verbatim sockets -- iperf3 -s   a program whose TCP connections go by RDMA
  verbatim sequencer              every design of the networked sequencer, side by side
  verbatim kv                     every design of the key-value stores, side by side, and Redis
  verbatim btree                  every access design of the remote B+tree, side by side, and LMDB
  verbatim collective             an all-reduce over the transport of NCCL's plugin
  verbatim tensor serve           a store of tensors, for Python (verbatim.tensor)
  verbatim grpc                   calls by tonic over RDMA and over TCP, side by side
  verbatim stream                 byte streams over RDMA, TCP and Unix sockets, side by side
  verbatim devices                the software NIC, and RDMA devices of this machine
  verbatim doctor                 what this environment allows, and what to change
  verbatim bench peers            the software NIC beside UCX, Redis and plain copies
  verbatim model                  what verbs cost on a NIC that you need not have
  verbatim explain l.json         what a program's verbs cost on a NIC, and what to change
  verbatim trace t.txt            how long each verb of a traced program took
  verbatim paper                  every published number beside ours
  verbatim completions bash       completions of a shell: bash, zsh, fish, elvish, powershell

Log messages: set VERBATIM_LOG, for example VERBATIM_LOG=debug.";

#[derive(Subcommand)]
enum Command {
    /// Run an unmodified program on the software NIC
    Run(run::Args),
    /// Run an unmodified program with its TCP connections on RDMA
    Sockets(sockets::Args),
    /// What is there: the software NIC and this machine's own RDMA devices
    Devices(devices::Args),
    /// Check what this environment allows, and say what to change
    Doctor(doctor::Args),
    /// A networked sequencer: every design side by side, or a server and clients by hand
    Sequencer(Box<sequencer::Args>),
    /// Key-value stores: every design side by side, or a server and clients by hand
    Kv(Box<kv::Args>),
    /// A remote B+tree: every access design side by side, or a server and clients by hand
    Btree(Box<btree::Args>),
    /// Collectives over a ring of ranks: bus bandwidth over message size
    Collective(Box<collective::Args>),
    /// Tensors between processes: a store of them
    Tensor(tensor::Args),
    /// gRPC over RDMA and over TCP side by side, or a server and a client by hand
    Grpc(Box<grpc::Args>),
    /// Byte streams over RDMA, TCP and Unix sockets side by side, or a server and a client by hand
    Stream(Box<stream_command::Args>),
    /// Summarize a trace of `verbatim run`, or turn it into JSON lines or a file for Perfetto
    Trace(trace::Args),
    /// Verbs microbenchmarks
    Bench(Box<bench::Args>),
    /// What verbs cost on a NIC, how fast they can go there, and what stops them
    Model(model::Args),
    /// What a program's verbs cost on a NIC, which guidelines it breaks, and what to change
    Explain(explain::Args),
    /// Every published number and ours, with the error
    Paper(paper::Args),
    /// Print the completions of a shell
    Completions(shell::CompletionsArgs),
    /// Write a man page for each command
    #[command(hide = true)]
    Man(shell::ManArgs),
    /// Print the reference of all commands, as Markdown
    #[command(hide = true)]
    Reference,
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("VERBATIM_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    if let Err(err) = run::exec_system_rdma_if_called_rdma() {
        print_error(&err);
        return ExitCode::from(2);
    }
    let matches = Cli::command().get_matches();
    let is_json = asks_for_json(&matches);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Err(err) = sweeps::refuse_flag_of_swept_setting(&matches) {
        print_error(&err);
        return ExitCode::from(2);
    }
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Sockets(args) => sockets::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Sequencer(args) => sequencer::run(*args),
        Command::Kv(args) => kv::run(*args),
        Command::Btree(args) => btree::run(*args),
        Command::Collective(args) => collective::run(&args),
        Command::Tensor(args) => tensor::run(&args),
        Command::Grpc(args) => grpc::run(*args),
        Command::Stream(args) => stream_command::run(*args),
        Command::Trace(args) => trace::run(&args),
        Command::Bench(args) => bench::run(*args),
        Command::Model(args) => model::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Paper(args) => paper::run(&args),
        Command::Completions(args) => shell::print_completions(Cli::command(), &args),
        Command::Man(args) => shell::write_man_pages(Cli::command(), &args),
        Command::Reference => shell::print_command_reference(Cli::command()),
    };
    match outcome {
        Ok(outcome) if let Some((done, of)) = steps::steps_if_interrupted_early() => {
            exit_code_with_partial_result_note(&outcome, is_json, done, of)
        }
        Ok(CommandOutcome::Done) => ExitCode::SUCCESS,
        Ok(CommandOutcome::NegativeAnswer) => ExitCode::from(1),
        Ok(CommandOutcome::ProgramExitStatus(code)) => ExitCode::from(code),
        // The reader of the results has closed the pipe, which is not an error.
        Err(err) if err.is::<StdoutClosed>() => ExitCode::SUCCESS,
        Err(err) => {
            print_error(&err);
            ExitCode::from(2)
        }
    }
}

/// Prints an error and its causes on one line of standard error.
fn print_error(error: &anyhow::Error) {
    eprintln!("error: {}", error_with_causes(error));
}

/// Joins an error and its causes. Leaves out a cause that the text has already: errors of verbs quote their errno.
fn error_with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Returns true if the command line has `--json`.
fn asks_for_json(matches: &ArgMatches) -> bool {
    let here = matches.try_get_one::<bool>("json");
    let inner = matches.subcommand();
    matches!(here, Ok(Some(true))) || inner.is_some_and(|(_, inner)| asks_for_json(inner))
}

/// Prints that the results cover a part of the measurement. A negative answer keeps its exit status.
fn exit_code_with_partial_result_note(
    outcome: &CommandOutcome,
    is_json: bool,
    done: u64,
    of: u64,
) -> ExitCode {
    if steps::is_interruptible_load() {
        eprintln!("interrupted: results are of a part of the time");
    } else {
        eprintln!("interrupted: results are of {done} of {of} steps");
    }
    let told = if is_json {
        let line = serde_json::json!({"interrupted": true, "done": done, "of": of});
        output::print_typed_json("interrupted", &line)
    } else {
        output::print_line(match steps::is_interruptible_load() {
            true => "\nInterrupted: these are results of a part of the time.".to_owned(),
            false => format!("\nInterrupted: these are {done} of {of} steps."),
        })
    };
    // Ignore an error, because the reader of the results may have closed the pipe.
    drop(told);
    match outcome {
        CommandOutcome::NegativeAnswer => ExitCode::from(1),
        CommandOutcome::Done | CommandOutcome::ProgramExitStatus(_) => {
            ExitCode::from(steps::INTERRUPTED_EXIT_STATUS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let cause = anyhow::anyhow!("no such device");
        let error = cause.context("ibv_open_device failed: no such device (rxe0)");
        let error = error.context("cannot start the server");
        assert_eq!(
            error_with_causes(&error),
            "cannot start the server: ibv_open_device failed: no such device (rxe0)"
        );
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    fn commands_without_examples(command: &clap::Command, without: &mut Vec<String>) {
        let help = command.get_after_help().map(ToString::to_string);
        let shown = help.is_some_and(|help| help.contains("  verbatim "));
        if !shown && !command.is_hide_set() {
            without.push(command.get_name().to_owned());
        }
        let inner = command.get_subcommands().filter(|c| c.get_name() != "help");
        inner.for_each(|inner| commands_without_examples(inner, without));
    }

    #[test]
    fn every_command_has_examples() {
        let mut without = Vec::new();
        commands_without_examples(&Cli::command(), &mut without);
        assert_eq!(without, [""; 0]);
    }
}
