//! The explanation as a self-contained HTML page with charts.

use std::fmt::Write;

use chart::{Bar, bar_chart_svg, escape};
use nicmodel::bounds::Role;

use super::contents::{anchor, summary_html};
use super::guidelines_page;
use super::report::{ProcessPrediction, Report, count_as_f64};
use super::text;
use super::verdict::AdviceVerdict;
use crate::model::{format_signed_percent, unknown_resources_line};
use crate::output::format_three_digits;

const STYLE: &str = "\
:root { color-scheme: light dark; --page: #fff; --ink: #1c2733; --dim: #5b6875; --line: #d7dde3; --in: #2f6fb0; --out: #d98032; --binds: #b8323c; --then: #3c8d5a; }
@media (prefers-color-scheme: dark) { :root { --page: #14191f; --ink: #e4e9ee; --dim: #a3afbb; --line: #323c46; --in: #6cb0f0; --out: #f59a5c; --binds: #f0868e; --then: #6fcf97; } }
@media print { :root { color-scheme: light; --page: #fff; --ink: #000; --dim: #444; --line: #bbb; --in: #2f6fb0; --out: #d98032; --binds: #b8323c; --then: #3c8d5a; }
body { max-width: none; } .scroll { overflow-x: visible; } svg, tr, li { break-inside: avoid; } h2, h3 { break-after: avoid; } table { font-size: .7rem; } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); }
a { color: var(--in); } .failed { color: var(--binds); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; } p { margin: .3rem 0; } .dim { color: var(--dim); }
svg { display: block; width: 100%; max-width: 760px; height: auto; } svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
.in { fill: var(--in); } .out { fill: var(--out); } .binds { fill: var(--binds); } .busy { fill: var(--in); } .then { fill: var(--then); } .now { fill: var(--dim); }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 .8em; }
.scroll { overflow-x: auto; } @media screen { .scroll svg { min-width: 34rem; } } table { border-collapse: collapse; font-size: .9rem; } th, td { padding: .2rem .45rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
li { margin: .5rem 0; } .gain { font-weight: 600; color: var(--then); } code { font-size: .9em; overflow-wrap: anywhere; }
";

/// Formats the explanation as an HTML page.
pub(super) fn page(report: &Report) -> String {
    let mut html = String::new();
    let title = format!("{} on {}", report.command, report.nic_title);
    html.push_str("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    append(
        &mut html,
        format_args!(
            "<title>{}</title><style>{STYLE}</style></head><body>",
            escape(&title)
        ),
    );
    append(
        &mut html,
        format_args!(
            "<h1>What its verbs cost on {}</h1><p><code>{}</code></p><p class=\"dim\">Rates are predictions of the \
             model of this NIC, in 10<sup>6</sup> a second, not measurements. The model assumes that each process runs \
             on a machine of its own.</p>",
            escape(&report.nic_title),
            escape(&report.command)
        ),
    );
    html.push_str(&summary_html(report));
    for process in &report.processes {
        add_process(&mut html, process);
    }
    html.push_str(&guidelines_page::advised_sections_html(report));
    let on_one_line = |pcie| text::format_pcie_counts(pcie).replace('\n', " ");
    let pcie = report.pcie.as_ref().map(on_one_line);
    for line in report.unexplained_process_notes().into_iter().chain(pcie) {
        append(&mut html, format_args!("<p>{}</p>", escape(&line)));
    }
    for note in &report.notes {
        append(
            &mut html,
            format_args!("<p class=\"dim\">Note: {}</p>", escape(note)),
        );
    }
    html.push_str("</body></html>\n");
    html
}

fn append(html: &mut String, text: std::fmt::Arguments<'_>) {
    html.write_fmt(text).expect("a String takes all");
}

fn add_process(html: &mut String, process: &ProcessPrediction) {
    let mut heading = text::process_heading_lines(process).into_iter();
    if let Some(first) = heading.next() {
        let id = anchor(process);
        append(
            html,
            format_args!("<h2 id=\"{id}\">{}</h2>", escape(&first)),
        );
    }
    for line in heading {
        append(html, format_args!("<p>{}</p>", escape(&line)));
    }
    for words in process.sentences_before_bounds() {
        append(html, format_args!("<p>{}</p>", escape(&words)));
    }
    append(
        html,
        format_args!(
            "<p>The model allows {}<b>{} M/s</b>{}; what binds is the {}{}.</p>",
            text::at_most_prefix(process),
            format_three_digits(process.predicted_mops),
            process.likely_range_text(),
            escape(&process.bottleneck.to_string()),
            if process.slower_role == Role::Responder {
                " of its peers"
            } else {
                ""
            }
        ),
    );
    add_advice(html, process);
    add_costs(html, process);
    add_pictures(html, process);
    for note in &process.notes {
        append(
            html,
            format_args!("<p class=\"dim\">Note: {}</p>", escape(note)),
        );
    }
}

fn add_advice(html: &mut String, process: &ProcessPrediction) {
    html.push_str("<h3>What to change</h3>");
    if let Some(words) = process.no_advice_sentence() {
        append(
            html,
            format_args!("<p>{}.</p>", escape(&capitalize_first(&words))),
        );
    }
    let mut rows = vec![Bar {
        label: "as it is".to_owned(),
        segments_with_css_class: vec![(process.predicted_mops, "now")],
        value_text: format!("{} M/s", format_three_digits(process.predicted_mops)),
    }];
    // The bars form a staircase: the rate before the step, and the gain of the step.
    rows.extend((1..).zip(&process.steps).map(|(number, step)| {
        let (now, then) = (step.gain.now_mops, step.gain.then_mops);
        Bar {
            label: format!("{number}. {}", step.guideline),
            segments_with_css_class: vec![(now.min(then), "now"), (then - now, "then")],
            value_text: format!(
                "{} M/s, {}",
                format_three_digits(then),
                format_signed_percent(step.gain.relative_gain, 0)
            ),
        }
    }));
    if rows.len() > 1 {
        html.push_str(&bar_chart_svg("predicted rate after each step", &rows));
        html.push_str("<ol>");
        for step in &process.steps {
            append(
                html,
                format_args!(
                    "<li>{}</li>",
                    guidelines_page::link_guideline_name(step.guideline, &text::step_line(step))
                ),
            );
        }
        html.push_str("</ol>");
    }
    for advice in process.advice_judged_as(AdviceVerdict::RedesignInstead) {
        let words = text::advice_line(advice);
        append(
            html,
            format_args!(
                "<p>Or another design: {}</p>",
                guidelines_page::link_guideline_name(advice.guideline, &words)
            ),
        );
    }
    for wanted in text::VERDICTS_LISTED_AFTER_STEPS {
        let all: Vec<_> = process.advice_judged_as(wanted).collect();
        if !all.is_empty() {
            let words = capitalize_first(text::no_gain_reason(process, wanted));
            append(html, format_args!("<p>{words}:</p><ul>"));
            for advice in all {
                append(
                    html,
                    format_args!(
                        "<li>{}</li>",
                        guidelines_page::link_guideline_name(
                            advice.guideline,
                            &text::advice_line(advice)
                        )
                    ),
                );
            }
            html.push_str("</ul>");
        }
    }
}

/// Returns a text with its first letter capitalized.
fn capitalize_first(words: &str) -> String {
    let (first, rest) = words.split_at(1);
    format!("{}{rest}", first.to_uppercase())
}

fn add_costs(html: &mut String, process: &ProcessPrediction) {
    html.push_str(
        "<h3>What each kind of operation costs on its machine's PCIe link</h3><div class=\"scroll\"><table><tr>\
         <th>operation</th><th>count</th><th>a list</th><th>WQE, B</th><th>MMIO</th><th>DMA reads</th>\
         <th>DMA writes</th><th>B to NIC</th><th>B to host</th></tr>",
    );
    for kind in &process.kinds {
        let posted = kind.role == Role::Requester;
        let of_sender = |text: String| if posted { text } else { "–".to_owned() };
        let received = if posted { "" } else { "received: " };
        append(
            html,
            format_args!(
                "<tr><td>{received}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{}</td><td>{}</td></tr>",
                escape(&kind.what),
                kind.count,
                of_sender(format_three_digits(kind.mean_postlist_length)),
                of_sender(kind.wqe_bytes.to_string()),
                of_sender(format_three_digits(kind.mmio_writes_per_op)),
                format_three_digits(kind.dma_reads_per_op),
                format_three_digits(kind.dma_writes_per_op),
                format_three_digits(kind.to_device_bytes_per_op),
                format_three_digits(kind.to_host_bytes_per_op)
            ),
        );
    }
    html.push_str("</table></div>");
}

fn add_pictures(html: &mut String, process: &ProcessPrediction) {
    append(
        html,
        format_args!(
            "<h3>Where the bytes go, for one {}</h3><p class=\"dim\"><span class=\"key\" style=\"background:var(--in)\">\
             </span>to the NIC<span class=\"key\" style=\"background:var(--out)\"></span>to the host</p>",
            process.rate_unit()
        ),
    );
    let rows: Vec<_> = process
        .pcie_transactions_per_op
        .iter()
        .map(|item| Bar {
            label: item.purpose.clone(),
            segments_with_css_class: vec![
                (item.to_device_bytes_per_op, "in"),
                (item.to_host_bytes_per_op, "out"),
            ],
            value_text: format!(
                "{} B, {} lines",
                format_three_digits(item.to_device_bytes_per_op + item.to_host_bytes_per_op),
                format_three_digits(item.cache_lines_per_op)
            ),
        })
        .collect();
    html.push_str(&bar_chart_svg("bytes on PCIe by purpose", &rows));
    html.push_str(
        "<h3>How busy each resource of its machine is at the most that they allow together</h3>",
    );
    let predicted = process.bounds.predicted_mops.unwrap_or(0.0);
    let rows: Vec<_> = process
        .bounds
        .bounds
        .iter()
        .map(|bound| {
            let share = (predicted / bound.rate_mops).min(1.0);
            let binds = Some(bound.resource) == process.bounds.bottleneck();
            Bar {
                label: bound.resource.to_string(),
                segments_with_css_class: vec![(share, if binds { "binds" } else { "busy" })],
                value_text: format!(
                    "{:.0} %: {} M/s",
                    100.0 * share,
                    format_three_digits(bound.rate_mops)
                ),
            }
        })
        .collect();
    html.push_str(&bar_chart_svg(
        "share of time that each resource is busy",
        &rows,
    ));
    if let Some(unknown) = unknown_resources_line(&process.bounds) {
        append(
            html,
            format_args!("<p class=\"dim\">{}</p>", escape(&unknown)),
        );
    }
    for (title, counts) in [
        (
            "Work requests in a postlist",
            &process.postlist_counts_by_length,
        ),
        ("Payload in bytes", &process.payload_counts_by_size),
    ] {
        if counts.is_empty() {
            continue;
        }
        append(html, format_args!("<h3>{title}</h3>"));
        let all: f64 = counts.iter().map(|(_, count)| count_as_f64(*count)).sum();
        let rows: Vec<_> = counts
            .iter()
            .map(|(class, count)| Bar {
                label: if *class > 2 {
                    format!("up to {class}")
                } else {
                    class.to_string()
                },
                segments_with_css_class: vec![(count_as_f64(*count), "busy")],
                value_text: format!("{count}, {:.0} %", 100.0 * count_as_f64(*count) / all),
            })
            .collect();
        html.push_str(&bar_chart_svg(title, &rows));
    }
}
