//! `verbatim paper`: every published number beside ours.

mod digits;
mod dpu;
mod dpu_btree;
mod figures;
mod loops;
mod model;
mod number;
mod profiles;
mod simulated;
mod why;

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::Outcome;
use crate::output::{print, print_json, table};
use crate::progress::progress;
use digits::{plain, published};
use loops::Errors;
use number::{Kind, Number, Relation};
use simulated::Simulated;

/// Arguments of `verbatim paper`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print one JSON object per number: id, published, ours, error, kind, and more
    #[arg(long)]
    json: bool,
    /// Draw Figures 2b and 7 to 14 and those of the B-tree on a DPU into this folder, as SVG with the published points marked
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
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

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if let Some(folder) = &args.figures {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let simulated = simulate(args.figures.is_some())?;
    if let Some(folder) = &args.figures {
        let drawn = figures::draw(folder, &simulated)?;
        eprintln!("drawn in {}: {}", folder.display(), drawn.join(", "));
        for (figure, what) in why::FIGURES {
            eprintln!("note: {figure}: {what}");
        }
    }
    let numbers = numbers(&simulated);
    if args.json {
        numbers.iter().try_for_each(print_json)?;
    } else {
        show(&numbers)?;
    }
    Ok(Outcome::Done)
}

/// Runs the simulations that numbers come from.
fn simulate(draw: bool) -> Result<Simulated> {
    let (setups, drtm) = (Simulated::setups(draw), Simulated::drtm_points(draw));
    let (herd, windows) = (Simulated::herd_points(draw), Simulated::window_points());
    let original = Simulated::original_setups();
    let original_herd = Simulated::herd_points(false);
    let records = if draw { &drtm[..] } else { &[] };
    let dpu = dpu::Dpu::runs(draw);
    let runs = [
        setups.len(),
        drtm.len(),
        records.len(),
        herd.len(),
        original.len(),
        original_herd.len(),
        windows.len(),
        dpu.len(),
    ];
    let runs: usize = runs.into_iter().sum();
    let bar = progress(runs as u64);
    let mut simulated = Simulated::default();
    for setup in setups {
        bar.set_message(format!(
            "simulating {} on {} cores",
            setup.design, setup.cores
        ));
        simulated.add(setup)?;
        bar.inc(1);
    }
    for (cores, batched) in herd {
        bar.set_message(format!("simulating HERD on {cores} cores"));
        simulated.add_herd((cores, batched))?;
        bar.inc(1);
    }
    for setup in original {
        bar.set_message(format!(
            "simulating {} on {} cores with the original loops",
            setup.design, setup.cores
        ));
        simulated.add_original(setup)?;
        bar.inc(1);
    }
    for (cores, batched) in original_herd {
        bar.set_message(format!(
            "simulating HERD on {cores} cores with the original loops"
        ));
        simulated.add_original_herd((cores, batched))?;
        bar.inc(1);
    }
    for &(nic, puts) in records {
        bar.set_message(format!(
            "simulating the atomics-based store on {nic}, {puts} % PUTs"
        ));
        simulated.add_records((nic, puts))?;
        bar.inc(1);
    }
    for (nic, puts) in drtm {
        bar.set_message(format!("simulating DrTM-KV on {nic}, {puts} % PUTs"));
        simulated.add_drtm((nic, puts))?;
        bar.inc(1);
    }
    for (nic, window) in windows {
        bar.set_message(format!("simulating windows of {window} READs on {nic}"));
        simulated.add_window((nic, window))?;
        bar.inc(1);
    }
    for what in dpu {
        bar.set_message(format!("simulating BlueField-2: {what:?}"));
        simulated.dpu.add(what)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(simulated)
}

/// Every published number, in the order of the publications' systems.
fn numbers(simulated: &Simulated) -> Vec<Number> {
    let number = |published: &'static nicmodel::published::Published| {
        let id = published.id;
        let ours = simulated.number(id).or_else(|| profiles::number(id));
        let ours = ours.or_else(|| model::number(id));
        let why = match &ours {
            Some(_) => why::off(id),
            None => Some(why::absent(id)),
        };
        let number = Number::new(published, ours.as_ref(), why);
        number.with_original_loops(simulated.original(id))
    };
    nicmodel::published::all().iter().map(number).collect()
}

fn show(numbers: &[Number]) -> Result<()> {
    let header = [
        "number",
        "NIC",
        "published",
        "ours",
        "unit",
        "error",
        "kind",
        "from",
        "where",
    ];
    let mut shown = table(header, &[2, 3, 5]);
    for number in numbers.iter().filter(|number| number.ours().is_some()) {
        let sign = match number.relation() {
            Relation::Equal => "",
            Relation::AtMost => "≤ ",
            Relation::AtLeast => "≥ ",
        };
        let mark = if number.is_off() { " off" } else { "" };
        shown.add_row([
            number.id().to_owned(),
            number.nic().to_owned(),
            format!("{sign}{}", published(number.published())),
            number.ours().map_or_else(String::new, plain),
            number.unit().to_owned(),
            number
                .error()
                .map_or_else(String::new, |e| format!("{:+.1} %{mark}", 100.0 * e)),
            number.kind().map_or("", Kind::name).to_owned(),
            number.from().unwrap_or_default().to_owned(),
            number.place().to_owned(),
        ]);
    }
    print(shown)?;
    loops::show(numbers)?;
    list(
        "Off by more than their kind allows:",
        numbers.iter().filter(|n| n.is_off()),
    )?;
    list(
        "As they are read here:",
        numbers
            .iter()
            .filter(|n| !n.is_off() && why::reading(n.id()).is_some()),
    )?;
    list(
        "Without a number of ours:",
        numbers.iter().filter(|n| n.ours().is_none()),
    )?;
    print(format_args!("\n{}", summary(numbers)))
}

fn list<'n>(title: &str, numbers: impl Iterator<Item = &'n Number>) -> Result<()> {
    let mut lines = numbers.map(|number| {
        let why = number.why().or_else(|| why::reading(number.id()));
        let why = why.unwrap_or("the reason is not known");
        format!(
            "  {} ({} {}): {why}",
            number.id(),
            published(number.published()),
            number.unit()
        )
    });
    let Some(first) = lines.next() else {
        return Ok(());
    };
    print(format_args!("\n{title}\n{first}"))?;
    lines.try_for_each(print)
}

fn summary(numbers: &[Number]) -> String {
    let of = |kind: Kind| {
        let of_kind = numbers.iter().filter(|n| n.kind() == Some(kind));
        let (count, off) = of_kind.fold((0, 0), |(count, off), number| {
            (count + 1, off + usize::from(number.is_off()))
        });
        format!("{count} {} ({off} off)", kind.name())
    };
    let absent = numbers.iter().filter(|n| n.ours().is_none()).count();
    let errors = |kind: Kind| {
        let of_kind = numbers.iter().filter(|n| n.kind() == Some(kind));
        let errors = Errors::of(of_kind.filter_map(Number::error));
        errors.map_or_else(String::new, |errors| format!("\n{}: {errors}", kind.name()))
    };
    format!(
        "{} published numbers: {}, {}, {}, {absent} without a number of ours{}{}",
        numbers.len(),
        of(Kind::Arithmetic),
        of(Kind::Fitted),
        of(Kind::Predicted),
        errors(Kind::Fitted),
        errors(Kind::Predicted),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_off_has_a_reason() {
        for number in numbers(&Simulated::default()) {
            let silent = number.is_off() && number.why().is_none();
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
        let numbers = numbers(&Simulated::default());
        let arithmetic = numbers
            .iter()
            .filter(|n| n.kind() == Some(Kind::Arithmetic));
        let off: Vec<_> = arithmetic
            .clone()
            .filter(|n| n.is_off())
            .map(Number::id)
            .collect();
        assert_eq!(off, [""; 0]);
        assert!(arithmetic.count() >= 70);
    }

    #[test]
    fn what_is_absent_says_why() {
        let vague: Vec<_> = numbers(&Simulated::default())
            .iter()
            .filter(|n| n.why() == Some("no model"))
            .map(Number::id)
            .collect();
        assert_eq!(vague, [""; 0]);
    }
}
