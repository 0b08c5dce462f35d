//! Runs the commands of guides that need several programs at once, and of the README's section on
//! hosts. Their output must be as printed in the document.
//!
//! The blocks of a section run one after the other on one [`Machine`]. A line that ends in `&`, or
//! begins with `server$`, starts a server, and the next line waits until the server listens. All
//! commands must succeed.
//!
//! The expected lines must appear in the output in this order. In an expected line, a decimal or hexadecimal number
//! stands for any number of its kind. `…` stands for the rest of a line, or for lines. The packet number of tshark,
//! before the time, is not compared.

use std::fmt::Write as _;

use crate::common::machine::Machine;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// The comment before a block that is not run, with the reason.
const NOT_RUN: &str = "<!-- not run by the tests: ";

/// A command, and its expected output lines.
#[derive(Debug)]
struct Step {
    /// The command in shell syntax.
    command: String,
    is_server: bool,
    expected: Vec<String>,
}

/// Returns the steps of a section's blocks.
fn steps(file: &str, section: &str) -> Vec<Step> {
    let text = std::fs::read_to_string(format!("{ROOT}/{file}")).expect("the document");
    let head = format!("\n## {section}\n");
    let (_, text) = text.split_once(&head).expect("the section is there");
    let text = text.split("\n## ").next().expect("its text");
    let mut steps = Vec::new();
    let mut parts = text.split("```");
    while let (Some(before), Some(block)) = (parts.next(), parts.next()) {
        if before
            .trim_end()
            .lines()
            .last()
            .is_some_and(|line| line.starts_with(NOT_RUN))
        {
            continue;
        }
        let (kind, block) = block.split_once('\n').expect("a line");
        match kind {
            "console" => console(block, &mut steps),
            "sh" => block.lines().for_each(|line| steps.push(step("", line))),
            kind => panic!("{file}: no test knows blocks of {kind:?}"),
        }
    }
    steps
}

/// Adds the steps of a block of prompts, commands and output.
fn console(block: &str, steps: &mut Vec<Step>) {
    for line in block.lines() {
        match line.split_once("$ ") {
            Some((prompt @ ("" | "server" | "client"), line)) => steps.push(step(prompt, line)),
            _ => {
                let last = steps.last_mut().expect("a command before its output");
                last.expected.push(line.to_owned());
            }
        }
    }
}

fn step(prompt: &str, line: &str) -> Step {
    let (line, in_background) = match line.strip_suffix('&') {
        Some(line) => (line.trim_end(), true),
        None => (line, false),
    };
    let command = match prompt {
        "" => line.to_owned(),
        host => format!("ip netns exec {host} {line}"),
    };
    Step {
        command,
        is_server: in_background || prompt == "server",
        expected: Vec::new(),
    }
}

/// Returns a shell script that runs the steps.
fn script(steps: &[Step]) -> String {
    let mut script = String::from("two_hosts server client\nservers=\n");
    for (at, step) in steps.iter().enumerate() {
        let Step {
            command, is_server, ..
        } = step;
        let _ = match is_server {
            true => writeln!(
                script,
                "{command} >out.{at} 2>&1 &\nready $!\nservers+=\" $!\""
            ),
            false => writeln!(script, "{command} >out.{at} 2>&1"),
        };
    }
    script + "for server in $servers; do wait $server; done\n"
}

/// Returns true if a line matches the expected line.
fn is_like(line: &str, expected: &str) -> bool {
    let is_packet = |line: &str| {
        let mut words = line.split_whitespace();
        let has_number = words.next().is_some_and(|word| word.parse::<u32>().is_ok());
        has_number && words.next().and_then(kind) == Some(("", "decimal"))
    };
    let numbers = usize::from(is_packet(line) && is_packet(expected));
    let mut words = line.split_whitespace().skip(numbers);
    for expected in expected.split_whitespace().skip(numbers) {
        if expected == "…" {
            return true;
        }
        let Some(word) = words.next() else {
            return false;
        };
        if word != expected && (kind(expected).is_none() || kind(word) != kind(expected)) {
            return false;
        }
    }
    words.next().is_none()
}

/// Returns the class of a word that contains a number: the text before the number, and the number's
/// base.
fn kind(word: &str) -> Option<(&str, &'static str)> {
    if let Some((before, digits)) = word.split_once("0x") {
        let is_hexadecimal = digits.chars().all(|digit| digit.is_ascii_hexdigit());
        return is_hexadecimal.then_some((before, "hexadecimal"));
    }
    let is_decimal = word.matches('.').count() == 1 && word.parse::<f64>().is_ok();
    is_decimal.then_some(("", "decimal"))
}

/// Runs a section, which must have this number of commands.
#[track_caller]
fn check(file: &str, section: &str, commands: usize) {
    let steps = steps(file, section);
    assert_eq!(steps.len(), commands, "{file}, {section}: {steps:?}");
    let machine = Machine::new();
    machine.succeed(&script(&steps));
    for (at, step) in steps.iter().enumerate() {
        let printed = std::fs::read(machine.file(&format!("out.{at}"))).expect("its output");
        let printed = String::from_utf8_lossy(&printed);
        let mut lines = printed.lines();
        for expected in step.expected.iter().filter(|line| *line != "…") {
            assert!(
                lines.any(|line| is_like(line, expected)),
                "{file}, {section}: {:?} is to print {expected:?}, and printed:\n{printed}",
                step.command
            );
        }
    }
}

const GUIDE: &str = "docs/run-across-hosts.md";

#[test]
fn lines_are_compared_but_for_their_numbers() {
    assert!(is_like(
        "  65536  500   1927.46  49.15 ",
        "65536 500 4012.5 3988.1"
    ));
    assert!(is_like(
        "17 0.0 a → b QP=0xe18000",
        "5 0.000189 a → b QP=0x1f"
    ));
    assert!(is_like("a b c", "a …"));
    for (line, expected) in [
        ("65536 501 1927.46", "65536 500 1927.46"),
        ("a 10.0.0.1", "a 10.0.0.2"),
        ("a b", "a"),
        ("a", "a b"),
        ("PSN=0x1", "QP=0x1"),
        ("5 0.5 a", "5 0.5 b"),
        ("none", "0.5"),
    ] {
        assert!(!is_like(line, expected), "{line} / {expected}");
    }
}

#[test]
fn two_hosts() {
    check(GUIDE, "Two hosts", 2);
}

#[test]
fn two_hosts_on_one_machine() {
    check(GUIDE, "Two hosts on one machine", 13);
}

#[test]
fn a_bad_network() {
    check(GUIDE, "A bad network", 2);
}

#[test]
fn look_at_the_packets() {
    check(GUIDE, "Look at the packets", 3);
}

#[test]
fn counters() {
    check(GUIDE, "Counters", 2);
}

#[test]
fn the_readme_has_two_hosts() {
    check("README.md", "Between hosts", 5);
}

#[test]
fn a_program_without_hardware() {
    check("docs/run-programs.md", "A server and a client", 2);
}

#[test]
fn several_devices_and_ports() {
    check("docs/run-programs.md", "Several devices and ports", 2);
}

#[test]
fn whether_a_program_used_rdma() {
    check("docs/run-programs.md", "Did it use RDMA?", 2);
}

#[test]
fn a_trace() {
    check("docs/run-programs.md", "A trace", 4);
}

#[test]
fn what_the_environment_allows() {
    check("docs/ci.md", "What the environment allows", 1);
}

#[test]
fn find_what_to_change() {
    check("docs/find-what-to-change.md", "Record and ask", 3);
}

#[test]
fn a_job() {
    check("docs/ci.md", "A job", 2);
}

const ADAPTERS: &str = "docs/adapters.md";

#[test]
fn run_as_another_adapter() {
    check(ADAPTERS, "Run as another adapter", 3);
}

#[test]
fn adapters_are_listed_with_their_evidence() {
    check(ADAPTERS, "Adapters", 2);
}

#[test]
fn libraries_choose_by_the_adapter() {
    check(ADAPTERS, "Two libraries", 2);
}

#[test]
fn size_a_system() {
    let guide = "docs/size-a-system.md";
    check(guide, "What one operation allows", 3);
    check(guide, "What a system gives", 2);
}

#[test]
fn reproduce_one_experiment() {
    check("docs/reproduce-the-paper.md", "One experiment", 2);
}

#[test]
fn see_what_a_system_costs() {
    check("docs/write-a-system.md", "See what it costs", 2);
}

#[test]
fn the_guidelines_are_tried() {
    let page = std::fs::read_to_string(format!("{ROOT}/docs/guidelines.md")).expect("the page");
    let command = page
        .lines()
        .find_map(|line| line.strip_prefix("$ verbatim "));
    let command: Vec<&str> = command.expect("a command").split_whitespace().collect();
    let out = crate::common::run(&command);
    assert!(out.status.success(), "{out:?}");
}
