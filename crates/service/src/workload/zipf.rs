//! Ranks by Zipf's law: the probability of rank `k`, from 0 on, is proportional to `1 / (k +
//! 1)^exponent`.

use crate::random::Random;

/// Generator of ranks.
#[derive(Debug, Clone)]
pub(super) enum Zipf {
    SmallExponent(SmallExponent),
    LargeExponent(LargeExponent),
}

impl Zipf {
    /// Creates a generator of ranks below `n`, which is 1 or more. The exponent is clamped to 0 to
    /// 64.
    pub(super) fn new(n: u64, exponent: f64) -> Self {
        let exponent = exponent.clamp(0.0, 64.0);
        if exponent >= 1.0 {
            Self::LargeExponent(LargeExponent::new(n, exponent))
        } else {
            Self::SmallExponent(SmallExponent::new(n, exponent))
        }
    }

    #[inline]
    pub(super) fn draw_rank(&self, random: &mut Random) -> u64 {
        match self {
            Self::SmallExponent(zipf) => zipf.draw_rank(random),
            Self::LargeExponent(zipf) => zipf.draw_rank(random),
        }
    }
}

/// Generator for exponents below 1, from a single draw: Gray et al., "Quickly generating
/// billion-record synthetic databases", SIGMOD 1994, the method of YCSB.
#[derive(Debug, Clone)]
pub(super) struct SmallExponent {
    rank_count: f64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl SmallExponent {
    #[expect(clippy::cast_precision_loss, reason = "counts of keys")]
    fn new(n: u64, theta: f64) -> Self {
        let zeta = zeta(n, theta);
        let count = n as f64;
        let two = zeta_of_two(theta);
        Self {
            rank_count: count,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta,
            eta: (1.0 - (2.0 / count).powf(1.0 - theta)) / (1.0 - two / zeta),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank"
    )]
    fn draw_rank(&self, random: &mut Random) -> u64 {
        let u = random.next_unit_f64();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < zeta_of_two(self.theta) {
            return 1;
        }
        (self.rank_count * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
    }
}

fn zeta_of_two(theta: f64) -> f64 {
    1.0 + 0.5f64.powf(theta)
}

/// Returns the sum of `1 / i^theta` for `i` from 1 to `n`. The tail is an integral (Euler and
/// Maclaurin), exact to 1e-9.
#[expect(clippy::cast_precision_loss, reason = "counts of keys")]
fn zeta(n: u64, theta: f64) -> f64 {
    let head = n.min(10_000);
    let sum: f64 = (1..=head).map(|i| (i as f64).powf(-theta)).sum();
    let (from, to) = (head as f64, n as f64);
    let integral = (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta);
    sum + integral + (to.powf(-theta) - from.powf(-theta)) / 2.0
}

/// Generator for exponents of 1 and more: rejection-inversion (Hörmann and Derflinger,
/// "Rejection-inversion to generate variates from monotone discrete distributions", ACM TOMACS
/// 1996). It follows the law exactly, with fewer than 2 draws on average.
#[derive(Debug, Clone)]
pub(super) struct LargeExponent {
    exponent: f64,
    rank_count: f64,
    /// Integral of the density up to one half before the first number, and up to one half after the
    /// last.
    integral_at_first: f64,
    integral_at_last: f64,
    /// Distance below its number within which a draw is always accepted.
    acceptance_distance: f64,
}

impl LargeExponent {
    #[expect(clippy::cast_precision_loss, reason = "counts of keys")]
    fn new(n: u64, exponent: f64) -> Self {
        let mut zipf = Self {
            exponent,
            rank_count: n as f64,
            integral_at_first: 0.0,
            integral_at_last: 0.0,
            acceptance_distance: 0.0,
        };
        zipf.integral_at_first = zipf.integral(1.5) - 1.0;
        zipf.integral_at_last = zipf.integral(zipf.rank_count + 0.5);
        zipf.acceptance_distance =
            2.0 - zipf.inverse_integral(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn density(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    /// Returns the integral of the density from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.exponent) * log;
        // (e^t - 1) / t, which is 1 at 0.
        let factor = if t.abs() < 1e-9 { 1.0 } else { t.exp_m1() / t };
        log * factor
    }

    fn inverse_integral(&self, integral: f64) -> f64 {
        // Rounding may give less than the minimum of -1.
        let t = (integral * (1.0 - self.exponent)).max(-1.0);
        let factor = if t.abs() < 1e-9 { 1.0 } else { t.ln_1p() / t };
        (factor * integral).exp()
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank"
    )]
    fn draw_rank(&self, random: &mut Random) -> u64 {
        loop {
            let u = self.integral_at_last
                + random.next_unit_f64() * (self.integral_at_first - self.integral_at_last);
            let x = self.inverse_integral(u);
            let k = (x + 0.5).floor().clamp(1.0, self.rank_count);
            if k - x <= self.acceptance_distance || u >= self.integral(k + 0.5) - self.density(k) {
                return k as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the frequency of the first ranks with the law.
    #[test]
    fn ranks_follow_the_law_at_any_exponent() {
        let (n, draws) = (1000u32, 400_000u32);
        for exponent in [0.0, 0.5, 0.99, 1.0, 1.2, 2.0, 5.0] {
            let zipf = Zipf::new(n.into(), exponent);
            let mut random = Random::new(7);
            let mut counts = vec![0u32; n as usize];
            for _ in 0..draws {
                let rank = usize::try_from(zipf.draw_rank(&mut random)).expect("small");
                counts[rank.min(n as usize - 1)] += 1;
            }
            let weight = |k: u32| f64::from(k + 1).powf(-exponent);
            let sum: f64 = (0..n).map(weight).sum();
            // The single-draw method, for exponents below 1, is exact only for the first two ranks.
            let exact = if exponent < 1.0 { 2 } else { 20 };
            for k in 0..exact {
                let expected = weight(k) / sum * f64::from(draws);
                let seen = f64::from(counts[k as usize]);
                // 5 standard deviations.
                let off = (seen - expected).abs();
                assert!(
                    off <= 5.0 * expected.sqrt() + 1.0,
                    "{exponent}, {k}: {seen}, {expected}"
                );
            }
            let tail: f64 = (n / 2..n).map(weight).sum::<f64>() / sum * f64::from(draws);
            let seen: u32 = counts[n as usize / 2..].iter().sum();
            let off = (f64::from(seen) - tail).abs();
            assert!(
                off <= 5.0 * tail.sqrt() + 0.05 * tail + 1.0,
                "{exponent}: {seen}, {tail}"
            );
        }
    }

    #[test]
    fn the_sum_of_all_popularities_is_exact() {
        let exact: f64 = (1..=50_000).map(|i| f64::from(i).powf(-0.99)).sum();
        assert!((zeta(50_000, 0.99) - exact).abs() < 1e-6);
    }

    #[test]
    fn one_key_and_odd_exponents_are_fine() {
        let mut random = Random::new(1);
        for exponent in [-1.0, 0.99, 1.0, 3.0, f64::INFINITY, f64::NAN] {
            for n in [1, 2] {
                let zipf = Zipf::new(n, exponent);
                assert!(
                    (0..100).all(|_| zipf.draw_rank(&mut random) <= n),
                    "{exponent}"
                );
            }
        }
    }
}
