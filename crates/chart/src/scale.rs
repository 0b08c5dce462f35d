//! Mapping of an axis's values to positions, and the ticks.

use crate::data::{Axis, NumberFormat, Scale};
use crate::text;

/// Maximum number of values that all get a tick; with more values, ticks are at round numbers.
const MAX_VALUE_TICKS: usize = 24;
/// Width of a letter of a tick label, in pixels.
const TICK_LETTER_WIDTH: f64 = 7.0;

/// The mapping of an axis from values to positions.
pub(crate) struct AxisMapping {
    is_log: bool,
    low: f64,
    high: f64,
    start_position: f64,
    end_position: f64,
    format: NumberFormat,
    has_ticks_at_round_numbers: bool,
}

/// A mark on an axis.
#[derive(Debug, PartialEq)]
pub(crate) struct AxisTick {
    pub(crate) position: f64,
    /// The label; `None` if there is no room for it.
    pub(crate) label: Option<String>,
}

fn is_log(axis: &Axis, values: &[f64]) -> bool {
    let positive = values.iter().copied().filter(|v| *v > 0.0);
    let (least, most) = positive.fold((f64::INFINITY, 0.0_f64), |(least, most), v| {
        (least.min(v), most.max(v))
    });
    match axis.scale {
        Scale::Linear => false,
        Scale::Log => most > 0.0 && values.iter().all(|v| *v >= 0.0),
        Scale::Auto => values.iter().all(|v| *v > 0.0) && most > 50.0 * least,
    }
}

impl AxisMapping {
    /// Returns the mapping of the x axis, which covers exactly the values.
    pub(crate) fn for_x_axis(axis: &Axis, values: &[f64], from: f64, to: f64) -> Self {
        let is_log = is_log(axis, values);
        let positions = values.iter().filter(|v| !is_log || **v > 0.0);
        let positions = positions.map(|v| if is_log { v.log2() } else { *v });
        let (mut low, mut high) = min_and_max(positions);
        // Zero is placed one step before the smallest positive value.
        if is_log && values.contains(&0.0) {
            low -= 1.0;
        }
        if low == high {
            (low, high) = (low - 0.5, high + 0.5);
        }
        AxisMapping {
            is_log,
            low,
            high,
            start_position: from,
            end_position: to,
            format: axis.number_format,
            has_ticks_at_round_numbers: axis.has_ticks_at_round_numbers,
        }
    }

    /// Returns the mapping of the y axis, which begins at 0 if it is linear, and has room above the values.
    pub(crate) fn for_y_axis(axis: &Axis, values: &[f64], from: f64, to: f64) -> Self {
        let is_log = is_log(axis, values) && values.iter().all(|v| *v > 0.0);
        let (low, high) = if is_log {
            let (low, high) = min_and_max(values.iter().map(|v| v.log2()));
            (low - 0.3, high + 0.3)
        } else {
            let (low, high) = min_and_max(values.iter().copied().chain([0.0]));
            (1.06 * low, if high > 0.0 { 1.06 * high } else { 1.0 })
        };
        AxisMapping {
            is_log,
            low,
            high,
            start_position: from,
            end_position: to,
            format: axis.number_format,
            has_ticks_at_round_numbers: axis.has_ticks_at_round_numbers,
        }
    }

    pub(crate) fn is_log(&self) -> bool {
        self.is_log
    }

    /// Returns the position of a value.
    pub(crate) fn position_of(&self, value: f64) -> f64 {
        let value = match (self.is_log, value > 0.0) {
            (true, true) => value.log2(),
            (true, false) => self.low,
            (false, _) => value,
        };
        self.start_position
            + (value - self.low) / (self.high - self.low)
                * (self.end_position - self.start_position)
    }

    /// Returns ticks at the measured values, labelled from the first on if there is room.
    pub(crate) fn ticks_at_values(&self, values: &[f64]) -> Vec<AxisTick> {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values.dedup();
        if values.len() > MAX_VALUE_TICKS || self.has_ticks_at_round_numbers {
            values = self.round_values();
        }
        let mut free = f64::NEG_INFINITY;
        let tick = |value: f64| {
            let (place, label) = (
                self.position_of(value),
                text::format_axis_number(value, self.format),
            );
            #[allow(clippy::cast_precision_loss)] // a few letters
            let half = TICK_LETTER_WIDTH * label.chars().count() as f64 / 2.0;
            let fits = place - half >= free;
            if fits {
                free = place + half + TICK_LETTER_WIDTH;
            }
            AxisTick {
                position: place,
                label: fits.then_some(label),
            }
        };
        values.into_iter().map(tick).collect()
    }

    /// Returns ticks at round numbers.
    pub(crate) fn ticks_at_round_numbers(&self) -> Vec<AxisTick> {
        let tick = |value| AxisTick {
            position: self.position_of(value),
            label: Some(text::format_axis_number(value, self.format)),
        };
        self.round_values().into_iter().map(tick).collect()
    }

    /// Returns the round numbers within the axis.
    fn round_values(&self) -> Vec<f64> {
        if !self.is_log {
            return round_multiples(self.low, self.high);
        }
        let (low, high) = (self.low.exp2(), self.high.exp2());
        let inside = |value: &f64| (low..=high).contains(value);
        #[allow(clippy::cast_possible_truncation)] // logarithms
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let wide = high > 3000.0 * low;
        let factors: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let decimal: Vec<f64> = decades
            .flat_map(|decade| factors.iter().map(move |f| f * 10_f64.powi(decade)))
            .filter(inside)
            .collect();
        #[allow(clippy::cast_possible_truncation)] // logarithms
        let powers = self.low.ceil() as i32..=self.high.floor() as i32;
        match self.format {
            NumberFormat::Bytes => powers.map(|power| 2_f64.powi(power)).collect(),
            NumberFormat::Decimal if decimal.len() >= 2 => decimal,
            NumberFormat::Decimal => round_multiples(low, high),
        }
    }
}

/// Returns about six multiples of 1, 2 or 5 times a power of ten.
fn round_multiples(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 6.0;
    if !rough.is_finite() || rough <= 0.0 {
        return vec![low];
    }
    let decade = 10_f64.powf(rough.log10().floor());
    let step = match rough / decade {
        r if r <= 1.0 => decade,
        r if r <= 2.0 => 2.0 * decade,
        r if r <= 5.0 => 5.0 * decade,
        _ => 10.0 * decade,
    };
    let first = (low / step).ceil();
    let all = (0..20u32).map(|n| (first + f64::from(n)) * step);
    all.take_while(|value| *value <= high * (1.0 + 1e-9))
        .collect()
}

fn min_and_max(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
        (low.min(v), high.max(v))
    });
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: &[AxisTick]) -> Vec<&str> {
        ticks.iter().filter_map(|t| t.label.as_deref()).collect()
    }

    #[test]
    fn ticks_are_the_values_measured() {
        let values = [1.0, 2.0, 4.0, 8.0, 16.0];
        let mapping = AxisMapping::for_x_axis(&Axis::log("n"), &values, 0.0, 600.0);
        assert_eq!(
            labels(&mapping.ticks_at_values(&values)),
            ["1", "2", "4", "8", "16"]
        );
        assert_eq!(mapping.position_of(4.0), 300.0);
    }

    #[test]
    fn labels_without_room_are_left_out_and_their_marks_stay() {
        let values = [1.0, 2.0, 3.0, 1000.0];
        let mapping = AxisMapping::for_x_axis(&Axis::linear("n"), &values, 0.0, 600.0);
        let ticks = mapping.ticks_at_values(&values);
        assert_eq!(labels(&ticks), ["1", "1000"]);
        assert_eq!(ticks.len(), 4);
    }

    #[test]
    fn zero_has_a_place_on_a_logarithmic_axis() {
        let values = [0.0, 8.0, 16.0];
        let mapping = AxisMapping::for_x_axis(&Axis::log("bytes"), &values, 0.0, 200.0);
        assert_eq!(values.map(|v| mapping.position_of(v)), [0.0, 100.0, 200.0]);
    }

    #[test]
    fn rates_that_span_decades_get_a_logarithmic_axis() {
        let is_log =
            |values: &[f64]| AxisMapping::for_y_axis(&Axis::auto("M/s"), values, 1.0, 0.0).is_log();
        assert!(is_log(&[0.1, 20.0]));
        assert!(!is_log(&[1.0, 20.0]));
        assert!(!is_log(&[0.0, 20.0]));
    }

    #[test]
    fn nothing_and_one_value_have_places() {
        for values in [&[][..], &[3.0][..], &[0.0][..]] {
            for axis in [Axis::log("n"), Axis::linear("n"), Axis::auto("n")] {
                let x = AxisMapping::for_x_axis(&axis, values, 0.0, 100.0);
                let y = AxisMapping::for_y_axis(&axis, values, 100.0, 0.0);
                for value in values {
                    assert!(x.position_of(*value).is_finite() && y.position_of(*value).is_finite());
                }
                assert!(y.ticks_at_round_numbers().len() <= 20);
            }
        }
    }
}
