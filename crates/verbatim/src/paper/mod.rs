//! `verbatim paper`: compares every published number with our number.

mod digits;
mod dpu;
mod dpu_btree;
mod figures;
mod fit;
mod leave_one_out;
mod model;
mod nics;
mod number;
mod original_loops_comparison;
mod parameters;
mod profiles;
mod rows;
mod simulated;
mod why;

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::CommandOutcome;
use crate::output::{print_json, print_line, table};
use crate::steps::{CommandSteps, is_interrupted};
use digits::{format_all_significant, format_published};
use number::{ComparedNumber, OurNumberKind, PublishedRelation};
use original_loops_comparison::RelativeErrorStatistics;
use simulated::SimulationResults;

/// Arguments of `verbatim paper`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print one JSON object per number: id, published, ours, error, kind, and more
    #[arg(long)]
    json: bool,
    /// Draw Figures 2b and 7 to 14 and those of the B-tree on a DPU into this folder, as SVG with the published points
    /// marked
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Print which numbers of the profiles each published number depends on, and which were fitted to it (some minutes)
    #[arg(long, conflicts_with = "figures")]
    parameters: bool,
    /// Fit again without each published number that something was fitted to, and predict it (some minutes)
    #[arg(long, conflicts_with_all = ["figures", "parameters"])]
    leave_one_out: bool,
    /// With --leave-one-out: write the errors of predictions, with the bottleneck of each
    #[arg(long, value_name = "FILE", requires = "leave_one_out")]
    csv: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Each published number has ours beside it, of one of three kinds:
  arithmetic   counted and added up; exact to the digits that were printed
  fitted       a number of the profile was fitted to it; within 3 %
  predicted    nothing was fitted to it; within 10 %
What is off by more, and does not round to what was printed, is listed below the table with the reason, and so is what has no number of ours.

Examples:
  verbatim paper
  verbatim paper --figures figures/
  verbatim paper --json | jq 'select(.off)'";

/// Runs `verbatim paper`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    if args.parameters {
        parameters::print_dependences(args.json)?;
        return Ok(CommandOutcome::Done);
    }
    if args.leave_one_out {
        leave_one_out::print_predictions(args.json, args.csv.as_deref())?;
        return Ok(CommandOutcome::Done);
    }
    if let Some(folder) = &args.figures {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let simulated = run_needed_simulations(args.figures.is_some())?;
    if let Some(folder) = &args.figures {
        let drawn = figures::write_svg_and_csv_files(folder, &simulated)?;
        eprintln!("drawn in {}: {}", folder.display(), drawn.join(", "));
        for (figure, what) in why::FIGURE_DIFFERENCES {
            eprintln!("note: {figure}: {what}");
        }
    }
    let mut numbers = compare_all_numbers(&simulated);
    if is_interrupted() {
        // Without its simulation a number would be the model's.
        numbers.retain(|number| {
            simulated
                .simulations_missing_for_number(number.id())
                .is_empty()
        });
    }
    if args.json {
        numbers.iter().try_for_each(print_json)?;
    } else {
        print_numbers(&numbers)?;
    }
    Ok(CommandOutcome::Done)
}

/// Runs the simulations that the numbers need, until SIGINT.
fn run_needed_simulations(draw: bool) -> Result<SimulationResults> {
    let runs = SimulationResults::needed_simulations(draw);
    let steps = CommandSteps::new(runs.len() as u64)?;
    let mut simulated = SimulationResults::default();
    for run in runs {
        let name = format!("simulating {run}");
        if steps
            .run_unless_interrupted(name, || simulated.simulate_and_keep_result(run))?
            .is_none()
        {
            break;
        }
    }
    Ok(simulated)
}

/// Returns every published number, in the order of the publications' systems.
fn compare_all_numbers(simulated: &SimulationResults) -> Vec<ComparedNumber> {
    let number = |published: &'static nicmodel::published::PublishedNumber| {
        let id = published.id;
        let nics = simulated.nics();
        let ours = simulated.our_number_for(id);
        let ours = ours.or_else(|| profiles::our_number_for(nics, id));
        let ours = ours.or_else(|| model::our_number_for(nics, id));
        let why = match &ours {
            Some(_) => why::reason_of_difference(id),
            None => Some(why::reason_of_absence(id)),
        };
        let number = ComparedNumber::new(published, ours.as_ref(), why);
        let fitted = parameters::parameters_fitted_to(nics, id).into_iter();
        let fitted = fitted.map(|parameter| parameter.to_string()).collect();
        number
            .with_parameters(fitted)
            .with_original_loops(simulated.original_loops_value(id))
    };
    nicmodel::published::all_published_numbers()
        .iter()
        .map(number)
        .collect()
}

fn print_numbers(numbers: &[ComparedNumber]) -> Result<()> {
    let header = [
        "number",
        "NIC",
        "published",
        "ours",
        "unit",
        "error",
        "kind",
        "fitted to it",
        "from",
        "where",
    ];
    let mut shown = table(header, &[2, 3, 5]);
    for number in numbers.iter().filter(|number| number.ours().is_some()) {
        let sign = match number.relation() {
            PublishedRelation::Equal => "",
            PublishedRelation::AtMost => "≤ ",
            PublishedRelation::AtLeast => "≥ ",
        };
        let mark = if number.exceeds_error_limit() {
            " off"
        } else {
            ""
        };
        shown.add_row([
            number.id().to_owned(),
            number.nic().to_owned(),
            format!("{sign}{}", format_published(number.published())),
            number
                .ours()
                .map_or_else(String::new, format_all_significant),
            number.unit().to_owned(),
            number
                .relative_error()
                .map_or_else(String::new, |e| format!("{:+.1} %{mark}", 100.0 * e)),
            number.kind().map_or("", OurNumberKind::name).to_owned(),
            abbreviate_parameters(number.fitted_parameters()),
            number.from().unwrap_or_default().to_owned(),
            number.place_in_publication().to_owned(),
        ]);
    }
    print_line(shown)?;
    original_loops_comparison::print_numbers_with_both_loops(numbers)?;
    print_reasons(
        "Off by more than their kind allows:",
        numbers.iter().filter(|n| n.exceeds_error_limit()),
    )?;
    print_reasons(
        "As they are read here:",
        numbers.iter().filter(|n| {
            !n.exceeds_error_limit() && why::explanation_of_ambiguous_number(n.id()).is_some()
        }),
    )?;
    print_reasons(
        "Without a number of ours:",
        numbers.iter().filter(|n| n.ours().is_none()),
    )?;
    print_line(format_args!("\n{}", summary(numbers)))
}

/// Formats parameters for a narrow column: the first parameter, and the number of the others.
fn abbreviate_parameters(parameters: &[String]) -> String {
    let Some(first) = parameters.first() else {
        return String::new();
    };
    let first = first
        .rsplit_once('.')
        .map_or(first.as_str(), |(_, key)| key);
    match parameters.len() - 1 {
        0 => first.to_owned(),
        more => format!("{first} +{more}"),
    }
}

fn print_reasons<'n>(title: &str, numbers: impl Iterator<Item = &'n ComparedNumber>) -> Result<()> {
    let mut lines = numbers.map(|number| {
        let why = number
            .reason_of_error_or_absence()
            .or_else(|| why::explanation_of_ambiguous_number(number.id()));
        let why = why.unwrap_or("the reason is not known");
        format!(
            "  {} ({} {}): {why}",
            number.id(),
            format_published(number.published()),
            number.unit()
        )
    });
    let Some(first) = lines.next() else {
        return Ok(());
    };
    print_line(format_args!("\n{title}\n{first}"))?;
    lines.try_for_each(print_line)
}

fn summary(numbers: &[ComparedNumber]) -> String {
    let of = |kind: OurNumberKind| {
        let of_kind = numbers.iter().filter(|n| n.kind() == Some(kind));
        let (count, off) = of_kind.fold((0, 0), |(count, off), number| {
            (count + 1, off + usize::from(number.exceeds_error_limit()))
        });
        format!("{count} {} ({off} off)", kind.name())
    };
    let absent = numbers.iter().filter(|n| n.ours().is_none()).count();
    let errors = |kind: OurNumberKind| {
        let of_kind = numbers.iter().filter(|n| n.kind() == Some(kind));
        let errors =
            RelativeErrorStatistics::of(of_kind.filter_map(ComparedNumber::relative_error));
        errors.map_or_else(String::new, |errors| format!("\n{}: {errors}", kind.name()))
    };
    format!(
        "{} published numbers: {}, {}, {}, {absent} without a number of ours{}{}",
        numbers.len(),
        of(OurNumberKind::Arithmetic),
        of(OurNumberKind::Fitted),
        of(OurNumberKind::Predicted),
        errors(OurNumberKind::Fitted),
        errors(OurNumberKind::Predicted),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_off_has_a_reason() {
        for number in compare_all_numbers(&SimulationResults::default()) {
            let silent =
                number.exceeds_error_limit() && number.reason_of_error_or_absence().is_none();
            assert!(
                !silent,
                "{}: {:?} for {}",
                number.id(),
                number.ours(),
                number.published()
            );
        }
    }

    #[test]
    fn no_arithmetic_is_off() {
        let numbers = compare_all_numbers(&SimulationResults::default());
        let arithmetic = numbers
            .iter()
            .filter(|n| n.kind() == Some(OurNumberKind::Arithmetic));
        let off: Vec<_> = arithmetic
            .clone()
            .filter(|n| n.exceeds_error_limit())
            .map(ComparedNumber::id)
            .collect();
        assert_eq!(off, [""; 0]);
        assert!(arithmetic.count() >= 70);
    }

    #[test]
    fn what_is_absent_says_why() {
        let vague: Vec<_> = compare_all_numbers(&SimulationResults::default())
            .iter()
            .filter(|n| n.reason_of_error_or_absence() == Some("no model"))
            .map(ComparedNumber::id)
            .collect();
        assert_eq!(vague, [""; 0]);
    }
}
