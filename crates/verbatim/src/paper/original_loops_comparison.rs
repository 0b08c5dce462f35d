//! Compares numbers that were simulated with the loops of the authors' benchmark and with this
//! program's loops.

use std::fmt;

use anyhow::Result;

use super::digits::{format_all_significant, format_published};
use super::number::{ComparedNumber, OurNumberKind};
use crate::output::{print_line, table};

/// Median and largest absolute value of relative errors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RelativeErrorStatistics {
    count: usize,
    median: f64,
    worst: f64,
}

impl RelativeErrorStatistics {
    /// Computes the statistics of relative errors; `None` without errors.
    pub(super) fn of(errors: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sizes: Vec<f64> = errors.map(f64::abs).collect();
        sizes.sort_unstable_by(f64::total_cmp);
        let (count, worst) = (sizes.len(), *sizes.last()?);
        let median = (sizes[(count - 1) / 2] + sizes[count / 2]) / 2.0;
        Some(Self {
            count,
            median,
            worst,
        })
    }
}

impl fmt::Display for RelativeErrorStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            count,
            median,
            worst,
        } = self;
        let (median, worst) = (100.0 * median, 100.0 * worst);
        write!(
            f,
            "median error {median:.1} %, worst {worst:.1} % of {count}"
        )
    }
}

/// Returns the number of the server's cores at the end of an id; 0 if the id does not contain it.
fn server_cores_of_id_or_zero(id: &str) -> usize {
    match id {
        "seq_t3_baseline" | "herd_base_peak" => 14,
        "herd_batch_peak" | "herd_resp_per_doorbell_a" => 12,
        "seq_t3_spec_s0" => 10,
        _ => id
            .rsplit_once('_')
            .and_then(|(_, end)| end.strip_suffix('c')?.parse().ok())
            .unwrap_or(0),
    }
}

/// Prints the numbers that were simulated with both loops, and the errors by cores.
pub(super) fn print_numbers_with_both_loops(numbers: &[ComparedNumber]) -> Result<()> {
    let compared: Vec<_> = numbers
        .iter()
        .filter(|n| n.original_loops_result().is_some())
        .collect();
    if compared.is_empty() {
        return Ok(());
    }
    print_line(
        "\nWith the loops of the authors' benchmark (rdma_bench) and with ours; the profile's costs were fitted with ours:",
    )?;
    let header = [
        "number",
        "cores",
        "published",
        "their loops",
        "error",
        "our loops",
        "error",
        "kind",
    ];
    let mut shown = table(header, &[1, 2, 3, 4, 5, 6]);
    let percent = |error: f64| format!("{:+.1} %", 100.0 * error);
    for number in &compared {
        let (original, error) = number.original_loops_result().unwrap_or_default();
        shown.add_row([
            number.id().to_owned(),
            server_cores_of_id_or_zero(number.id()).to_string(),
            format_published(number.published()),
            format_all_significant(original),
            percent(error),
            number
                .ours()
                .map_or_else(String::new, format_all_significant),
            number.relative_error().map_or_else(String::new, percent),
            number.kind().map_or("", OurNumberKind::name).to_owned(),
        ]);
    }
    print_line(shown)?;
    for (name, from, to) in [
        ("1 core", 1, 1),
        ("3 and 5 cores", 3, 5),
        ("6 cores and more", 6, 64),
    ] {
        let among = || {
            let of_cores =
                |n: &&&ComparedNumber| (from..=to).contains(&server_cores_of_id_or_zero(n.id()));
            compared.iter().filter(of_cores)
        };
        let theirs =
            RelativeErrorStatistics::of(among().filter_map(|n| Some(n.original_loops_result()?.1)));
        let ours = RelativeErrorStatistics::of(among().filter_map(|n| n.relative_error()));
        if let Some((theirs, ours)) = theirs.zip(ours) {
            print_line(format_args!(
                "{name}: their loops {theirs}; our loops {ours}"
            ))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_a_median_and_a_worst() {
        assert_eq!(RelativeErrorStatistics::of([].into_iter()), None);
        let three = RelativeErrorStatistics::of([0.01, -0.3, 0.02].into_iter()).expect("three");
        assert_eq!((three.median, three.worst), (0.02, 0.3));
        let two = RelativeErrorStatistics::of([0.01, -0.03].into_iter()).expect("two");
        assert_eq!(two.to_string(), "median error 2.0 %, worst 3.0 % of 2");
    }

    #[test]
    fn cores_of_numbers_are_those_of_their_setups() {
        for (id, expected) in [
            ("seq_rpc_base_1c", 1),
            ("bench_rpc_batch_mq_5c", 5),
            ("seq_rpc_resp_per_doorbell_6c", 6),
            ("herd_base_peak", 14),
        ] {
            assert_eq!(server_cores_of_id_or_zero(id), expected, "{id}");
            assert!(
                nicmodel::published::published_number_by_id(id).is_some(),
                "{id}"
            );
        }
    }
}
