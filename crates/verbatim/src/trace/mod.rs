//! `verbatim trace`: converts a trace of `verbatim run --trace` to statistics or to another format.

mod filter;
mod filtered_lines;
mod perfetto;
mod statistics;
mod work;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::CommandOutcome;
use crate::output::{StdoutClosed, print_line, print_typed_json};
use filter::TraceFilter;
use filtered_lines::FilteredLineReader;
use statistics::Statistics;
use work::PostToCompletionMatcher;

/// Arguments of `verbatim trace`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The trace that `verbatim run --trace FILE` wrote
    file: PathBuf,
    /// Turn the trace into this form instead of statistics
    #[arg(long, value_enum)]
    to: Option<TraceForm>,
    /// Write there [default: standard output]
    #[arg(long, short, requires = "to", value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    filter: TraceFilter,
    /// A row for each queue pair and verb, not for each process and verb
    #[arg(long, conflicts_with = "to")]
    by_qp: bool,
    /// Print one JSON object per line: verb, polls
    #[arg(long, conflicts_with = "to")]
    json: bool,
}

/// The forms of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TraceForm {
    /// A JSON object a line of the trace
    JsonLines,
    /// The trace event format of Chrome, which ui.perfetto.dev opens: a track for each queue pair
    Perfetto,
}

const EXAMPLES: &str = "\
Examples:
  verbatim run --trace t.txt -- ib_write_bw     a trace
  verbatim trace t.txt                          how long each verb took from post to completion
  verbatim trace t.txt --by-qp --verb RDMA_READ
  verbatim trace t.txt --to perfetto -o t.json  for ui.perfetto.dev
  verbatim trace t.txt --to json-lines --qp 0x8000 | jq .

Times include what the trace itself takes, a few microseconds a line.";

/// Runs `verbatim trace`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    let mut lines = FilteredLineReader::open(&args.file, &args.filter)?;
    match args.to {
        Some(form) => {
            let mut out = open_output(args.output.as_deref())?;
            let written = convert(form, &mut lines, &mut out);
            written
                .and_then(|()| Ok(out.flush()?))
                .map_err(broken_pipe_to_stdout_closed)?;
        }
        None => summarize(&mut lines, args)?,
    }
    if lines.unparsed_lines > 0 {
        eprintln!(
            "note: {} lines of {} are no lines of a trace, such as the last one of a full disk",
            lines.unparsed_lines,
            args.file.display()
        );
    }
    if lines.verb_lines_read == 0 {
        bail!(
            "{} has no line of a trace; verbatim run --trace FILE writes one",
            args.file.display()
        );
    }
    if lines.lines_admitted == 0 {
        eprintln!(
            "note: none of the {} lines of {} passes the filter; without a filter the statistics list verbs, processes and \
             queue pairs (--by-qp)",
            lines.verb_lines_read,
            args.file.display()
        );
    }
    Ok(CommandOutcome::Done)
}

/// Replaces the error of a closed pipe by [`StdoutClosed`], which ends the command quietly.
fn broken_pipe_to_stdout_closed(err: anyhow::Error) -> anyhow::Error {
    let is_closed_pipe = |cause: &(dyn std::error::Error + 'static)| {
        let of_json = cause
            .downcast_ref()
            .and_then(serde_json::Error::io_error_kind);
        let kind = cause.downcast_ref().map(std::io::Error::kind).or(of_json);
        kind == Some(std::io::ErrorKind::BrokenPipe)
    };
    if err.chain().any(is_closed_pipe) {
        return StdoutClosed.into();
    }
    err
}

fn open_output(file: Option<&Path>) -> Result<Box<dyn Write>> {
    Ok(match file {
        None => Box::new(BufWriter::new(std::io::stdout())),
        Some(file) => {
            let cannot = || format!("cannot write {}", file.display());
            Box::new(BufWriter::new(File::create(file).with_context(cannot)?))
        }
    })
}

fn convert(
    form: TraceForm,
    lines: &mut FilteredLineReader<'_>,
    out: &mut impl Write,
) -> Result<()> {
    match form {
        TraceForm::JsonLines => {
            while let Some(line) = lines.next()? {
                serde_json::to_writer(&mut *out, &line)?;
                out.write_all(b"\n")?;
            }
            Ok(())
        }
        TraceForm::Perfetto => perfetto::write_trace_events(lines, out),
    }
}

fn summarize(lines: &mut FilteredLineReader<'_>, args: &Args) -> Result<()> {
    let mut pairing = PostToCompletionMatcher::default();
    let mut statistics = Statistics::new(args.by_qp);
    while let Some(line) = lines.next()? {
        statistics.count_polls_and_completions(&line);
        for work in pairing.add_line_and_take_completed(&line, &lines.qp_names) {
            statistics.count_work(&work);
        }
    }
    for work in pairing.into_sends_without_completion() {
        statistics.count_work(&work);
    }
    if args.json {
        for row in statistics.rows() {
            print_typed_json("verb", &row)?;
        }
        for polls in statistics.poll_counts() {
            print_typed_json("polls", &polls)?;
        }
        return Ok(());
    }
    print_line(statistics.format_tables())
}
