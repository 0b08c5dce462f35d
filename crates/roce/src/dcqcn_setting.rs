//! DCQCN parameters as users write them: `min_rate_bps=1e9,increase_timer_ns=300000`, or `off`.

use crate::dcqcn::DcqcnParameters;

/// The names that a setting may give values to: the fields of [`DcqcnParameters`].
const NAMES: &str = "line_rate_bps, min_rate_bps, alpha_gain, alpha_timer_ns, increase_timer_ns, increase_bytes, \
                     fast_recovery_steps, additive_increase_bps, hyper_increase_bps";

/// Values of timers, in nanoseconds. After a pause, a sender makes one step for each interval of a second.
const TIMER_RANGE_NS: std::ops::RangeInclusive<f64> = 1e3..=1e12;

/// Values of rates, in bits per second.
const RATE_RANGE_BPS: std::ops::RangeInclusive<f64> = 1e3..=1e15;

/// The reason why a setting of the congestion control cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDcqcnSetting {
    /// A part is not `NAME=VALUE`, or its name is unknown.
    #[error(
        "{0:?} is not NAME=VALUE with one of these names: {NAMES}; `off` alone turns DCQCN off"
    )]
    UnknownName(String),
    /// The value is not a number of the range.
    #[error("{name} is {value:?}; it must be {allowed}")]
    BadValue {
        /// Name of the parameter.
        name: &'static str,
        /// The value as written.
        value: String,
        /// Description of the values that are possible.
        allowed: &'static str,
    },
    /// The lowest rate is not below the highest.
    #[error("min_rate_bps must be below line_rate_bps, and is not; change one of the two")]
    MinRateNotBelowLineRate,
}

impl DcqcnParameters {
    /// Parses a setting: values for some parameters, separated by commas. The others are those of
    /// [`SIGCOMM_2015`](Self::SIGCOMM_2015). The empty text changes none. `off` gives `None`, so that senders ignore
    /// congestion notifications.
    ///
    /// ```
    /// use roce::dcqcn::DcqcnParameters;
    ///
    /// let slow = DcqcnParameters::parse_setting("line_rate_bps=10e9,min_rate_bps=1e6")?.expect("not off");
    /// assert_eq!((slow.line_rate_bps, slow.fast_recovery_steps), (10e9, 5));
    /// assert_eq!(DcqcnParameters::parse_setting("off")?, None);
    /// # Ok::<(), roce::dcqcn_setting::BadDcqcnSetting>(())
    /// ```
    ///
    /// # Errors
    /// A name is unknown, a value is not possible, or the lowest rate is not below the highest.
    pub fn parse_setting(text: &str) -> Result<Option<Self>, BadDcqcnSetting> {
        if text.trim() == "off" {
            return Ok(None);
        }
        let mut parameters = Self::SIGCOMM_2015;
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            parameters.set_from_text(part.trim())?;
        }
        if parameters.min_rate_bps >= parameters.line_rate_bps {
            return Err(BadDcqcnSetting::MinRateNotBelowLineRate);
        }
        Ok(Some(parameters))
    }

    /// Sets the parameter that `part` names.
    fn set_from_text(&mut self, part: &str) -> Result<(), BadDcqcnSetting> {
        let unknown = || BadDcqcnSetting::UnknownName(part.to_owned());
        let (name, text) = part.split_once('=').ok_or_else(unknown)?;
        let text = text.trim();
        match name.trim() {
            "line_rate_bps" => self.line_rate_bps = rate_bps("line_rate_bps", text)?,
            "min_rate_bps" => self.min_rate_bps = rate_bps("min_rate_bps", text)?,
            "additive_increase_bps" => {
                self.additive_increase_bps = rate_bps("additive_increase_bps", text)?;
            }
            "hyper_increase_bps" => {
                self.hyper_increase_bps = rate_bps("hyper_increase_bps", text)?;
            }
            "alpha_gain" => {
                let allowed = "a number above 0 and at most 1, such as 0.00390625";
                self.alpha_gain = number("alpha_gain", text, &(f64::MIN_POSITIVE..=1.0), allowed)?;
            }
            "alpha_timer_ns" => self.alpha_timer_ns = timer_ns("alpha_timer_ns", text)?,
            "increase_timer_ns" => self.increase_timer_ns = timer_ns("increase_timer_ns", text)?,
            "increase_bytes" => {
                let allowed = "a number of bytes from 1 to 1e15";
                self.increase_bytes =
                    whole(number("increase_bytes", text, &(1.0..=1e15), allowed)?);
            }
            "fast_recovery_steps" => {
                let allowed = "a number of steps from 0 to 1000";
                let steps = number("fast_recovery_steps", text, &(0.0..=1000.0), allowed)?;
                self.fast_recovery_steps = u32::try_from(whole(steps)).unwrap_or(u32::MAX);
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

fn rate_bps(name: &'static str, text: &str) -> Result<f64, BadDcqcnSetting> {
    let allowed = "a rate in bits per second from 1e3 to 1e15, such as 40e9";
    number(name, text, &RATE_RANGE_BPS, allowed)
}

fn timer_ns(name: &'static str, text: &str) -> Result<u64, BadDcqcnSetting> {
    let allowed = "a time in nanoseconds from 1000 to 1e12, such as 55000";
    number(name, text, &TIMER_RANGE_NS, allowed).map(whole)
}

/// Parses a number of the range, which has no infinite or negative values.
fn number(
    name: &'static str,
    text: &str,
    range: &std::ops::RangeInclusive<f64>,
    allowed: &'static str,
) -> Result<f64, BadDcqcnSetting> {
    let value = text.parse::<f64>().ok();
    value
        .filter(|value| range.contains(value))
        .ok_or_else(|| BadDcqcnSetting::BadValue {
            name,
            value: text.to_owned(),
            allowed,
        })
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // of a range below 2^53, not negative
fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_a_name() {
        let text = "line_rate_bps=100e9, min_rate_bps=1e8, alpha_gain=0.0625, alpha_timer_ns=1000, \
                    increase_timer_ns=300000, increase_bytes=32767, fast_recovery_steps=1, \
                    additive_increase_bps=5e6, hyper_increase_bps=5e7";
        let expected = DcqcnParameters {
            line_rate_bps: 100e9,
            min_rate_bps: 1e8,
            alpha_gain: 0.0625,
            alpha_timer_ns: 1_000,
            increase_timer_ns: 300_000,
            increase_bytes: 32_767,
            fast_recovery_steps: 1,
            additive_increase_bps: 5e6,
            hyper_increase_bps: 5e7,
        };
        assert_eq!(DcqcnParameters::parse_setting(text), Ok(Some(expected)));
        let unchanged = Ok(Some(DcqcnParameters::SIGCOMM_2015));
        assert_eq!(DcqcnParameters::parse_setting(""), unchanged);
        assert_eq!(DcqcnParameters::parse_setting(" off "), Ok(None));
    }

    #[test]
    fn an_error_names_the_parameter_and_its_values() {
        for (text, part) in [
            ("min_rate=1e9", "min_rate_bps"),
            ("off,alpha_gain=1", "`off` alone"),
            ("alpha_gain=0", "above 0"),
            ("alpha_gain=2", "at most 1"),
            ("min_rate_bps=-1", "from 1e3"),
            ("line_rate_bps=inf", "\"inf\""),
            ("alpha_timer_ns=1", "from 1000"),
            ("increase_timer_ns=NaN", "increase_timer_ns is \"NaN\""),
            ("increase_bytes=0", "from 1"),
            ("fast_recovery_steps=", "fast_recovery_steps is \"\""),
            ("min_rate_bps=50e9", "below line_rate_bps"),
        ] {
            let error = DcqcnParameters::parse_setting(text).expect_err(text);
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }
}
