//! Fits numbers of profiles to published numbers.

use anyhow::Result;

use super::nics::Nics;
use super::rows::{self, Parameter, Row};
use super::simulated::Simulated;

/// The first and the last step: changes of a parameter's logarithm.
const FIRST_STEP: f64 = 0.1;
const LAST_STEP: f64 = 0.002;

/// Most rounds, each of which changes all parameters in turn.
const ROUNDS: usize = 60;

/// Least share of a vector's length beyond the known directions that counts as undetermined.
const UNDETERMINED: f64 = 0.2;

/// Returns the sum of squares of the logarithms of our numbers over the published numbers.
///
/// # Errors
/// A simulation cannot run.
fn misfit(nics: &Nics, rows: &[Row]) -> Result<f64> {
    let mut simulated = Simulated::on(nics.clone());
    let mut sum = 0.0;
    for row in rows {
        let ours = rows::value(&mut simulated, row.id())?;
        let off = (ours / row.published.value).ln();
        // A rate of 0 is worse than any other.
        sum += if off.is_finite() { off * off } else { 1e9 };
    }
    Ok(sum)
}

/// Returns the profiles with these parameters fitted: each is changed in turn, by smaller and smaller steps, to
/// minimize [`misfit`].
///
/// # Errors
/// A simulation cannot run.
pub(super) fn to(nics: &Nics, parameters: &[Parameter], rows: &[Row]) -> Result<Nics> {
    let mut best = (nics.clone(), misfit(nics, rows)?);
    let mut step = FIRST_STEP;
    for _ in 0..ROUNDS {
        let before = best.1;
        for parameter in parameters {
            for by in [step, -step] {
                let Some((changed, _)) = parameter.scaled(&best.0, by.exp()) else {
                    continue;
                };
                let then = misfit(&changed, rows)?;
                if then < best.1 {
                    best = (changed, then);
                    break;
                }
            }
        }
        if best.1 >= before * (1.0 - 1e-3) {
            step /= 2.0;
        }
        if step < LAST_STEP {
            break;
        }
    }
    Ok(best.0)
}

/// Returns true if rows with the elasticities `known` determine a row with the elasticities `wanted`. That holds if
/// `wanted`, except for a fifth, is a linear combination of `known`.
pub(super) fn determine(known: &[Vec<f64>], wanted: &[f64]) -> bool {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let length = |v: &[f64]| dot(v, v).sqrt();
    // Gram-Schmidt: orthogonal directions that the known rows span.
    let mut directions: Vec<Vec<f64>> = Vec::new();
    let beyond = |vector: &[f64], directions: &[Vec<f64>]| {
        let mut rest = vector.to_vec();
        for direction in directions {
            let along = dot(&rest, direction);
            for (rest, direction) in rest.iter_mut().zip(direction) {
                *rest -= along * direction;
            }
        }
        rest
    };
    for row in known {
        let rest = beyond(row, &directions);
        let size = length(&rest);
        if size > UNDETERMINED * length(row) && size > 0.0 {
            directions.push(rest.into_iter().map(|x| x / size).collect());
        }
    }
    length(&beyond(wanted, &directions)) <= UNDETERMINED * length(wanted)
}

#[cfg(test)]
mod tests {
    use super::super::number::{Kind, Relation};
    use super::*;

    fn row(id: &str) -> Row {
        let published = nicmodel::published::get(id).expect("published");
        Row {
            published,
            nic: "cib",
            kind: Kind::Fitted,
            relation: Relation::Equal,
            value: 0.0,
        }
    }

    /// From a wrong start, a fit finds the profile's numbers again, with the analytic model and with a simulation.
    #[test]
    fn a_fit_finds_the_numbers_of_the_profile_again() {
        let nics = Nics::default();
        let of = |key: &str| Parameter::of(nics.nic("cib"), key);
        let refitted = |key: &str, wrong: f64, rows: &[Row]| {
            let begin = nics.with("cib", key, wrong).expect("known");
            let fitted = to(&begin, &[of(key)], rows).expect("runs");
            of(key).value(&fitted) / of(key).value(&nics)
        };
        let model = refitted("processing.atomic_ns", 30.0, &[row("atomics_cib_zbig")]);
        assert!((model - 1.0).abs() < 0.01, "{model}");
        let simulated = refitted("atomics.lock_hold_ns", 300.0, &[row("seq_t3_atomics")]);
        assert!((simulated - 1.0).abs() < 0.01, "{simulated}");
    }

    #[test]
    fn rows_determine_what_lies_in_the_directions_that_they_span() {
        let (a, b) = (vec![1.0, 0.0, 0.0], vec![0.0, 1.0, 0.0]);
        assert!(determine(&[a.clone(), b.clone()], &[0.3, -0.7, 0.0]));
        assert!(determine(&[a.clone(), b.clone()], &[0.3, -0.7, 0.1]));
        assert!(!determine(std::slice::from_ref(&a), &[0.3, -0.7, 0.0]));
        assert!(!determine(&[], &a));
        // Two rows that are almost equal span one direction.
        assert!(!determine(&[a, vec![1.0, 0.1, 0.0]], &b));
    }
}
