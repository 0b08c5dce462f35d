//! Fits numbers of profiles to published numbers.

use anyhow::Result;

use super::nics::PublicationNicProfiles;
use super::rows::{self, ProfileParameter, PublishedNumberRow};
use super::simulated::SimulationResults;

/// Most rounds; the sum of squares is stable after a few.
const MAX_ROUNDS: usize = 12;

/// Damping of the first round: an undetermined combination of parameters stays as it is.
const FIRST_DAMPING: f64 = 1e-3;

/// Damping that ends the search: no smaller sum of squares is near.
const MAX_DAMPING: f64 = 10.0;

/// Relative decrease of the sum of squares that counts as none.
const NEGLIGIBLE_DECREASE: f64 = 1e-3;

/// Fraction of a vector's length outside the known directions from which the vector counts as undetermined.
const MAX_UNSPANNED_FRACTION: f64 = 0.2;

/// Returns the logarithms of our numbers over the published numbers.
///
/// # Errors
/// Returns an error if a simulation cannot run.
fn log_misfits(nics: &PublicationNicProfiles, rows: &[PublishedNumberRow]) -> Result<Vec<f64>> {
    let mut simulated = SimulationResults::with_profiles(nics.clone());
    let misfit = |row: &PublishedNumberRow| {
        let ours = rows::compute_our_value(&mut simulated, row.id())?;
        let off = (ours / row.published_number.value).ln();
        // A rate of 0 is worse than any other.
        Ok(if off.is_finite() { off } else { -1e3 })
    };
    rows.iter().map(misfit).collect()
}

/// Returns the profiles with these parameters fitted to the rows, by the Levenberg-Marquardt method: the sum of squares
/// of the logarithms of our numbers over the published ones is minimized. `slopes` are the elasticities of each row
/// with respect to each parameter, and are taken as constant.
///
/// # Errors
/// Returns an error if a simulation cannot run.
pub(super) fn fit_profiles_by_least_squares(
    nics: &PublicationNicProfiles,
    parameters: &[ProfileParameter],
    rows: &[PublishedNumberRow],
    slopes: &[Vec<f64>],
) -> Result<PublicationNicProfiles> {
    let squares = |misfits: &[f64]| misfits.iter().map(|off| off * off).sum::<f64>();
    let mut best = nics.clone();
    let mut now = log_misfits(&best, rows)?;
    let mut damping = FIRST_DAMPING;
    for _ in 0..MAX_ROUNDS {
        let Some(changes) = levenberg_marquardt_step(slopes, &now, damping) else {
            break;
        };
        let mut changed = best.clone();
        for (parameter, change) in parameters.iter().zip(&changes) {
            let value = parameter.value(&changed) * change.exp();
            if let Some(with) = changed.with_changed_number(&parameter.nic, &parameter.key, value) {
                changed = with;
            }
        }
        let then = log_misfits(&changed, rows)?;
        let (before, after) = (squares(&now), squares(&then));
        if after < before {
            (best, now) = (changed, then);
            damping /= 3.0;
        } else {
            damping *= 10.0;
        }
        let is_stable = after < before && after >= before * (1.0 - NEGLIGIBLE_DECREASE);
        if is_stable || damping > MAX_DAMPING {
            break;
        }
    }
    Ok(best)
}

/// Returns the changes of the parameters' logarithms that minimize the damped sum of squares; `None` if there is no
/// solution.
fn levenberg_marquardt_step(
    slopes: &[Vec<f64>],
    misfits: &[f64],
    damping: f64,
) -> Option<Vec<f64>> {
    let count = slopes.first()?.len();
    let column = |at: usize| slopes.iter().map(move |row| row[at]);
    let dot = |a: usize, b: usize| column(a).zip(column(b)).map(|(a, b)| a * b).sum::<f64>();
    // Each line is an equation: the coefficients of the unknowns, and the right side.
    let mut lines: Vec<Vec<f64>> = (0..count)
        .map(|at| {
            let mut line: Vec<f64> = (0..count).map(|other| dot(at, other)).collect();
            line[at] += damping;
            line.push(-column(at).zip(misfits).map(|(a, b)| a * b).sum::<f64>());
            line
        })
        .collect();
    // Gauss-Jordan elimination. The matrix is positive definite, so every pivot is above 0.
    for pivot in 0..count {
        let by = lines[pivot][pivot];
        if by.abs() < f64::MIN_POSITIVE || !by.is_finite() {
            return None;
        }
        lines[pivot].iter_mut().for_each(|value| *value /= by);
        let solved = lines[pivot].clone();
        for (at, line) in lines.iter_mut().enumerate() {
            let times = line[pivot];
            if at != pivot {
                for (value, of) in line.iter_mut().zip(&solved) {
                    *value -= times * of;
                }
            }
        }
    }
    lines.iter().map(|line| line.last().copied()).collect()
}

/// Returns true if rows with the elasticities `known` determine a row with the elasticities `wanted`. This holds if
/// `wanted`, except for a fifth of its length, is a linear combination of `known`.
pub(super) fn known_elasticities_span_wanted(known: &[Vec<f64>], wanted: &[f64]) -> bool {
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
        if size > MAX_UNSPANNED_FRACTION * length(row) && size > 0.0 {
            directions.push(rest.into_iter().map(|x| x / size).collect());
        }
    }
    length(&beyond(wanted, &directions)) <= MAX_UNSPANNED_FRACTION * length(wanted)
}

#[cfg(test)]
mod tests {
    use super::super::number::{OurNumberKind, PublishedRelation};
    use super::*;

    fn row(id: &str) -> PublishedNumberRow {
        let published = nicmodel::published::published_number_by_id(id).expect("published");
        PublishedNumberRow {
            published_number: published,
            profile_name: "cib",
            kind: OurNumberKind::Fitted,
            relation: PublishedRelation::Equal,
            our_value: 0.0,
        }
    }

    /// From a wrong start, a fit finds the profile's numbers again, with the analytic model and with a simulation.
    #[test]
    fn a_fit_finds_the_numbers_of_the_profile_again() {
        let nics = PublicationNicProfiles::default();
        let of = |key: &str| ProfileParameter::of(nics.profile_by_name("cib"), key);
        let refitted = |key: &str, wrong: f64, rows: &[PublishedNumberRow]| {
            let begin = nics.with_changed_number("cib", key, wrong).expect("known");
            // Both rates fall by 1 % if the time grows by 1 %.
            let fitted = fit_profiles_by_least_squares(&begin, &[of(key)], rows, &[vec![-1.0]])
                .expect("runs");
            of(key).value(&fitted) / of(key).value(&nics)
        };
        let model = refitted("processing.atomic_ns", 30.0, &[row("atomics_cib_zbig")]);
        assert!((model - 1.0).abs() < 0.01, "{model}");
        let simulated = refitted("atomics.lock_hold_ns", 300.0, &[row("seq_t3_atomics")]);
        assert!((simulated - 1.0).abs() < 0.01, "{simulated}");
    }

    #[test]
    fn a_step_solves_the_damped_least_squares() {
        let slopes = [vec![1.0, 0.0], vec![1.0, 2.0], vec![0.0, 2.0]];
        // The changes 0.1 and -0.2 explain all of it.
        let changes = levenberg_marquardt_step(&slopes, &[-0.1, 0.3, 0.4], 1e-9).expect("solved");
        assert!((changes[0] - 0.1).abs() < 1e-6 && (changes[1] + 0.2).abs() < 1e-6);
        // Nothing depends on the second parameter, which stays as it is.
        let changes = levenberg_marquardt_step(&[vec![1.0, 0.0]], &[-0.1], 1e-3).expect("solved");
        assert!((changes[0] - 0.1).abs() < 1e-3 && changes[1] == 0.0);
        assert_eq!(levenberg_marquardt_step(&[], &[], 1e-3), None);
    }

    #[test]
    fn rows_determine_what_lies_in_the_directions_that_they_span() {
        let (a, b) = (vec![1.0, 0.0, 0.0], vec![0.0, 1.0, 0.0]);
        assert!(known_elasticities_span_wanted(
            &[a.clone(), b.clone()],
            &[0.3, -0.7, 0.0]
        ));
        assert!(known_elasticities_span_wanted(
            &[a.clone(), b.clone()],
            &[0.3, -0.7, 0.1]
        ));
        assert!(!known_elasticities_span_wanted(
            std::slice::from_ref(&a),
            &[0.3, -0.7, 0.0]
        ));
        assert!(!known_elasticities_span_wanted(&[], &a));
        // Two rows that are almost equal span one direction.
        assert!(!known_elasticities_span_wanted(
            &[a, vec![1.0, 0.1, 0.0]],
            &b
        ));
    }
}
