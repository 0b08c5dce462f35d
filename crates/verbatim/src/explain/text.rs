//! Formats an explanation as text.

use anyhow::Result;
use nicmodel::bounds::{Resource, Role};
use nicmodel::guidelines::{Advice, ChangeStep, Gain, REDESIGN_GUIDELINE_NAME};

use super::report::{PcieLinesCountedAndExpected, ProcessPrediction, Report};
use super::spread::{GroupSpread, MinMedianMax};
use super::verdict::AdviceVerdict;
use crate::model::{bounds_lines, format_signed_percent};
use crate::output::{format_three_digits, format_time_ns, print_line, table};

pub(super) fn print_report(report: &Report) -> Result<()> {
    print_line(format_args!("{} on {}", report.command, report.nic_title))?;
    for process in &report.processes {
        print_line("")?;
        show_process(process)?;
    }
    for line in report.unexplained_process_notes() {
        print_line(format_args!("\n{line}"))?;
    }
    if let Some(pcie) = &report.pcie {
        print_line(format_args!("\n{}", format_pcie_counts(pcie)))?;
    }
    for note in &report.notes {
        print_line(format_args!("note: {note}"))?;
    }
    Ok(())
}

/// Formats the PCIe counts of the processor.
pub(super) fn format_pcie_counts(pcie: &PcieLinesCountedAndExpected) -> String {
    format!(
        "counted on PCIe while it ran: {} lines read (PCIeRdCur; {:.0} expected on this NIC), {} written (ItoM; {:.0} \
         expected).\nReads beyond the expected ones, {:.0}, estimate what the NIC's caches missed, if this is the NIC \
         and nothing else used PCIe.",
        pcie.rd_cur_counted,
        pcie.rd_cur_expected,
        pcie.itom_counted,
        pcie.itom_expected,
        pcie.estimated_nic_cache_misses
    )
}

fn show_process(process: &ProcessPrediction) -> Result<()> {
    for line in process_heading_lines(process) {
        print_line(line)?;
    }
    print_line("\nWhat each kind of operation costs on its machine's PCIe link:\n")?;
    let mut rows = table(
        [
            "operation",
            "count",
            "a list",
            "WQE, B",
            "MMIO",
            "DMA reads",
            "DMA writes",
            "B to NIC",
            "B to host",
        ],
        &[1, 2, 3, 4, 5, 6, 7, 8],
    );
    for kind in &process.kinds {
        let posted = kind.role == Role::Requester;
        let of_sender = |text: String| if posted { text } else { "-".to_owned() };
        let what = if posted {
            kind.what.clone()
        } else {
            format!("received: {}", kind.what)
        };
        rows.add_row([
            what,
            kind.count.to_string(),
            of_sender(format_three_digits(kind.mean_postlist_length)),
            of_sender(kind.wqe_bytes.to_string()),
            of_sender(format_three_digits(kind.mmio_writes_per_op)),
            format_three_digits(kind.dma_reads_per_op),
            format_three_digits(kind.dma_writes_per_op),
            format_three_digits(kind.to_device_bytes_per_op),
            format_three_digits(kind.to_host_bytes_per_op),
        ]);
    }
    print_line(rows)?;
    print_line(format_args!(
        "\nWhere cache lines and bytes go, for one {}:\n",
        process.rate_unit()
    ))?;
    let mut rows = table(
        ["transactions", "count", "lines", "B to NIC", "B to host"],
        &[1, 2, 3, 4],
    );
    for item in &process.pcie_transactions_per_op {
        rows.add_row([
            item.purpose.clone(),
            format_three_digits(item.count_per_op),
            format_three_digits(item.cache_lines_per_op),
            format_three_digits(item.to_device_bytes_per_op),
            format_three_digits(item.to_host_bytes_per_op),
        ]);
    }
    rows.add_row([
        "all".to_owned(),
        String::new(),
        String::new(),
        format_three_digits(process.to_device_bytes_per_op),
        format_three_digits(process.to_host_bytes_per_op),
    ]);
    print_line(rows)?;
    print_line("\nWhat binds on its machine:\n")?;
    for words in process.sentences_before_bounds() {
        print_line(format_args!("{words}\n"))?;
    }
    for line in bounds_lines(&process.bounds) {
        print_line(line)?;
    }
    if process.slower_role == Role::Responder {
        print_line(format_args!(
            "its peers are slower: {}{} M/s, {}{}",
            at_most_prefix(process),
            format_three_digits(process.predicted_mops),
            process.bottleneck,
            process.likely_range_text()
        ))?;
    }
    show_advice(process)?;
    for note in &process.notes {
        print_line(format_args!("note: {note}"))?;
    }
    Ok(())
}

/// Formats the lines that describe a process: its state, its work and its polls.
pub(super) fn process_heading_lines(process: &ProcessPrediction) -> Vec<String> {
    let ended = if process.complete {
        ""
    } else {
        " (it ended before its time, or was still running: this is what it had done)"
    };
    let mut lines = vec![format!(
        "process {}: {}{ended}",
        process.pid, process.program
    )];
    let plural = |count: u64, word: &str| {
        let s = if count == 1 { "" } else { "s" };
        format!("{count} {word}{s}")
    };
    if let Some(alike) = &process.group_spread {
        lines.push(describe_group_spread(alike));
    }
    if process.failed_completions > 0 {
        lines.push(format!(
            "FAILED: {} of its completions are in error, flushed ones among them; `verbatim run --why` says which check failed. \
             What follows counts failed operations as if the NIC had carried them out.",
            process.failed_completions
        ));
    }
    let mut work = format!(
        "{} posted, {} received; {}, {}, {}",
        process.posted_wrs,
        process.received_messages,
        plural(process.queue_pair_count as u64, "queue pair"),
        plural(process.thread_count.into(), "thread"),
        plural(process.peer_count.into(), "peer"),
    );
    if process.queue_pairs_post_in_turn {
        work.push_str(&format!(
            " (in turn: {}, {} posting at a time)",
            plural(process.max_concurrent_queue_pairs.into(), "queue pair"),
            plural(process.max_concurrent_threads.into(), "thread"),
        ));
    }
    if let Some(rate) = process.observed_mops {
        #[expect(clippy::cast_precision_loss, reason = "a time in words")]
        let during = format_time_ns(process.duration_ns as f64);
        work.push_str(&format!(
            "; {} M/s during {during}, where it ran",
            format_three_digits(rate)
        ));
    }
    lines.push(work);
    lines.push(if process.polls == 0 {
        "it polled no completion queue".to_owned()
    } else {
        format!(
            "{:.0} % of its polls found nothing; the others {} completions on average",
            100.0 * process.empty_poll_share,
            format_three_digits(process.completions_a_poll)
        )
    });
    lines
}

/// Formats the spread of the group of processes for which one process stands.
fn describe_group_spread(alike: &GroupSpread) -> String {
    let count =
        |range: &MinMedianMax| format!("{:.0} ({:.0}..{:.0})", range.median, range.min, range.max);
    let rate = |range: &MinMedianMax| {
        let [median, min, max] = [range.median, range.min, range.max].map(format_three_digits);
        format!("{median} ({min}..{max}) M/s")
    };
    let mut words = format!(
        "one of {} processes that do the same; of them all, median (min..max): {} posted, {} received",
        alike.processes,
        count(&alike.posted_wrs),
        count(&alike.received_messages)
    );
    if let Some(observed) = &alike.observed_mops {
        words.push_str(&format!(", {} where they ran", rate(observed)));
    }
    words.push_str(&format!(
        "; the model allows {}",
        rate(&alike.predicted_mops)
    ));
    words
}

fn show_advice(process: &ProcessPrediction) -> Result<()> {
    print_line("\nWhat to change, in this order:\n")?;
    if let Some(words) = process.no_advice_sentence() {
        print_line(format_args!("  {words}"))?;
    }
    for (number, step) in (1..).zip(&process.steps) {
        print_line(format_args!("{number:3}. {}", step_line(step)))?;
    }
    for advice in process.advice_judged_as(AdviceVerdict::RedesignInstead) {
        print_line(format_args!("or another design: {}", advice_line(advice)))?;
    }
    for wanted in VERDICTS_LISTED_AFTER_STEPS {
        let words = no_gain_reason(process, wanted);
        for advice in process.advice_judged_as(wanted) {
            print_line(format_args!("   - {} ({words})", advice_line(advice)))?;
        }
    }
    Ok(())
}

/// Returns "at most " if resources without a number in the profile may lower the rate, else an
/// empty text.
pub(super) fn at_most_prefix(process: &ProcessPrediction) -> &'static str {
    if process.unknown_resources.is_empty() {
        ""
    } else {
        "at most "
    }
}

/// Returns the reason why an advice has no gain. A resource without a number may be the bottleneck.
pub(super) fn no_gain_reason(process: &ProcessPrediction, verdict: AdviceVerdict) -> &'static str {
    if verdict == AdviceVerdict::NoGainAfterSteps {
        "after the steps above it brings nothing beyond the noise of the model"
    } else if verdict == AdviceVerdict::GainWithinNoise {
        "within the noise of the model"
    } else if process.waits_for_each_operation && process.bottleneck != Resource::RoundTrips {
        "it may shorten a round trip; the model has no rate for it"
    } else if verdict == AdviceVerdict::NoModelledRate {
        "worth a try; the model has no rate for it"
    } else if process.unknown_resources.is_empty() && process.bounds.unknown_resources.is_empty() {
        "brings nothing yet, since something else binds"
    } else {
        "brings nothing as far as this NIC is known: what is unknown of it may bind"
    }
}

/// Verdicts on guidelines that are not steps but are listed after them.
pub(super) const VERDICTS_LISTED_AFTER_STEPS: [AdviceVerdict; 4] = [
    AdviceVerdict::NoGainAfterSteps,
    AdviceVerdict::GainWithinNoise,
    AdviceVerdict::NoModelledRate,
    AdviceVerdict::NoGainYet,
];

/// Formats a step in one line, with its gain over the earlier steps.
pub(super) fn step_line(step: &ChangeStep) -> String {
    let own = if !step.gain.exceeds_rounding() {
        "nothing by itself, and the next step needs it".to_owned()
    } else if step.gain.exceeds_noise() {
        describe_gain(&step.gain)
    } else {
        format!(
            "{} by itself, within the noise of the model, and the next step needs it",
            format_signed_percent(step.gain.relative_gain, 0)
        )
    };
    format!(
        "{}; {}: {own}; {} in all [{}, {}]",
        step.finding.observed_violation,
        step.finding.advice,
        format_signed_percent(step.cumulative_relative_gain, 0),
        step.guideline,
        step.section
    )
}

/// Formats an advice in one line.
pub(super) fn advice_line(advice: &Advice) -> String {
    let mut line = format!(
        "{}; {}",
        advice.finding.observed_violation, advice.finding.advice
    );
    let gain = advice.gain.filter(Gain::exceeds_rounding);
    if let Some(gain) = gain.or(advice.gain_after_others.filter(Gain::exceeds_rounding)) {
        if !gain.exceeds_noise() {
            let noise = 100.0 * gain.noise;
            let words = describe_gain(&gain);
            line.push_str(&format!(": {words}, and the noise is {noise:.0} %"));
        } else if advice.guideline == REDESIGN_GUIDELINE_NAME && advice.gain.is_some() {
            line.push_str(&format!(": {}", describe_gain(&gain)));
        }
    }
    line.push_str(&format!(" [{}, {}]", advice.guideline, advice.section));
    line
}

fn describe_gain(gain: &Gain) -> String {
    format!(
        "{}{} ({} to {} M/s)",
        if gain.is_upper_bound { "at most " } else { "" },
        format_signed_percent(gain.relative_gain, 0),
        format_three_digits(gain.now_mops),
        format_three_digits(gain.then_mops)
    )
}
