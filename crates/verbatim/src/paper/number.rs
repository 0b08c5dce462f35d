//! A published number and the number that this program computes for it ("ours").

use nicmodel::mixes::FittedOrPredicted;
use nicmodel::published::PublishedNumber;
use serde::Serialize;

/// The way in which our number is related to the published number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OurNumberKind {
    /// Our number was counted or summed from numbers of the profile that are published or derived.
    Arithmetic,
    /// A number of the profile was fitted to the published number, or to all numbers from which it is computed.
    Fitted,
    /// No number of the profile was fitted to the published number.
    Predicted,
}

impl OurNumberKind {
    /// Returns the largest relative error that is still within the limit of this kind.
    fn relative_error_limit(self) -> f64 {
        match self {
            OurNumberKind::Arithmetic => 0.0,
            OurNumberKind::Fitted => 0.03,
            OurNumberKind::Predicted => 0.1,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            OurNumberKind::Arithmetic => "arithmetic",
            OurNumberKind::Fitted => "fitted",
            OurNumberKind::Predicted => "predicted",
        }
    }
}

impl From<FittedOrPredicted> for OurNumberKind {
    fn from(basis: FittedOrPredicted) -> OurNumberKind {
        match basis {
            FittedOrPredicted::Fitted => OurNumberKind::Fitted,
            FittedOrPredicted::Predicted => OurNumberKind::Predicted,
        }
    }
}

/// The relation of the published number to the quantity that we compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PublishedRelation {
    /// The published number equals the quantity.
    Equal,
    /// The published number is an upper bound of the quantity.
    AtMost,
    /// The published number is a lower bound of the quantity.
    AtLeast,
}

/// The number that this program computes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OurNumber {
    pub(crate) value: f64,
    pub(crate) kind: OurNumberKind,
    pub(crate) relation: PublishedRelation,
    /// Source of our number: `profile`, `model` or `simulation`.
    pub(crate) source: &'static str,
}

impl OurNumber {
    pub(crate) fn new(value: f64, kind: OurNumberKind, from: &'static str) -> OurNumber {
        let relation = PublishedRelation::Equal;
        OurNumber {
            value,
            kind,
            relation,
            source: from,
        }
    }

    pub(crate) fn arithmetic(value: f64) -> OurNumber {
        OurNumber::new(value, OurNumberKind::Arithmetic, "profile")
    }

    pub(crate) fn with_relation(self, relation: PublishedRelation) -> OurNumber {
        OurNumber { relation, ..self }
    }
}

/// A line of the table: a published number with our number.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ComparedNumber {
    id: &'static str,
    nic: &'static str,
    published: f64,
    unit: &'static str,
    #[serde(rename = "where")]
    place_in_publication: &'static str,
    ours: Option<f64>,
    /// Relative error: our number divided by the published number, minus 1; 0 if a bound holds.
    error: Option<f64>,
    /// The quantity as simulated with the loops of the authors' benchmark, if they were simulated, and its error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "with_original_loops")]
    value_with_original_loops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_with_original_loops: Option<f64>,
    kind: Option<OurNumberKind>,
    /// The numbers of the profiles that were fitted to the published number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fitted_parameters: Vec<String>,
    relation: PublishedRelation,
    /// Source of our number: `profile`, `model` or `simulation`.
    #[serde(rename = "from")]
    source_of_ours: Option<&'static str>,
    /// True if the error exceeds the limit of its kind. Arithmetic must agree in all printed digits, fitted numbers
    /// to 3 %, predicted numbers to 10 %.
    #[serde(rename = "off")]
    exceeds_error_limit: bool,
    /// The reason for an error above the limit, or for the lack of our number.
    #[serde(rename = "why")]
    reason_of_error_or_absence: Option<&'static str>,
}

impl ComparedNumber {
    pub(crate) fn new(
        published: &'static PublishedNumber,
        ours: Option<&OurNumber>,
        why: Option<&'static str>,
    ) -> ComparedNumber {
        let relation = ours.map_or(PublishedRelation::Equal, |ours| ours.relation);
        let error = ours.map(|ours| relative_error(published.value, ours));
        let off = ours.zip(error).is_some_and(|(ours, error)| {
            error.abs() > ours.kind.relative_error_limit()
                && !rounds_to_printed(ours.value, published.value)
        });
        ComparedNumber {
            id: published.id,
            nic: published.nic,
            published: published.value,
            unit: published.unit,
            place_in_publication: published.place_in_publication,
            ours: ours.map(|ours| ours.value),
            error,
            value_with_original_loops: None,
            error_with_original_loops: None,
            kind: ours.map(|ours| ours.kind),
            fitted_parameters: Vec::new(),
            relation,
            source_of_ours: ours.map(|ours| ours.source),
            exceeds_error_limit: off,
            reason_of_error_or_absence: why.filter(|_| off || ours.is_none()),
        }
    }

    /// Returns this line with the result of a simulation that uses the loops of the authors' benchmark.
    pub(crate) fn with_original_loops(self, value: Option<f64>) -> ComparedNumber {
        ComparedNumber {
            value_with_original_loops: value,
            error_with_original_loops: value.map(|value| value / self.published - 1.0),
            ..self
        }
    }

    /// Returns this line with the numbers of the profiles that were fitted to the published number.
    pub(crate) fn with_parameters(self, fitted_parameters: Vec<String>) -> ComparedNumber {
        ComparedNumber {
            fitted_parameters,
            ..self
        }
    }

    /// The numbers of the profiles that were fitted to the published number.
    pub(crate) fn fitted_parameters(&self) -> &[String] {
        &self.fitted_parameters
    }

    /// Returns the result of a simulation with the loops of the authors' benchmark, and its error.
    pub(crate) fn original_loops_result(&self) -> Option<(f64, f64)> {
        self.value_with_original_loops
            .zip(self.error_with_original_loops)
    }

    pub(crate) fn id(&self) -> &'static str {
        self.id
    }

    pub(crate) fn nic(&self) -> &'static str {
        self.nic
    }

    pub(crate) fn unit(&self) -> &'static str {
        self.unit
    }

    pub(crate) fn place_in_publication(&self) -> &'static str {
        self.place_in_publication
    }

    pub(crate) fn published(&self) -> f64 {
        self.published
    }

    pub(crate) fn ours(&self) -> Option<f64> {
        self.ours
    }

    pub(crate) fn relative_error(&self) -> Option<f64> {
        self.error
    }

    pub(crate) fn kind(&self) -> Option<OurNumberKind> {
        self.kind
    }

    pub(crate) fn relation(&self) -> PublishedRelation {
        self.relation
    }

    pub(crate) fn from(&self) -> Option<&'static str> {
        self.source_of_ours
    }

    pub(crate) fn exceeds_error_limit(&self) -> bool {
        self.exceeds_error_limit
    }

    pub(crate) fn reason_of_error_or_absence(&self) -> Option<&'static str> {
        self.reason_of_error_or_absence
    }
}

fn relative_error(published: f64, ours: &OurNumber) -> f64 {
    let holds = match ours.relation {
        PublishedRelation::Equal => false,
        PublishedRelation::AtMost => ours.value <= published,
        PublishedRelation::AtLeast => ours.value >= published,
    };
    if holds || ours.value == published {
        0.0
    } else {
        ours.value / published - 1.0
    }
}

/// Returns true if `ours`, rounded to the printed decimals, is `printed`.
fn rounds_to_printed(ours: f64, printed: f64) -> bool {
    let text = printed.to_string();
    let decimals = text.split_once('.').map_or(0, |(_, digits)| digits.len());
    let half = 0.5 * 0.1f64.powi(i32::try_from(decimals).unwrap_or(i32::MAX));
    (ours - printed).abs() <= half * (1.0 + 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(value: f64) -> &'static PublishedNumber {
        Box::leak(Box::new(PublishedNumber {
            id: "an_id",
            nic: "CIB",
            value,
            unit: "M/s",
            place_in_publication: "nowhere",
        }))
    }

    fn line(printed: f64, ours: OurNumber) -> ComparedNumber {
        ComparedNumber::new(published(printed), Some(&ours), Some("because"))
    }

    #[test]
    fn each_kind_has_its_limit() {
        for (kind, right, wrong) in [
            (OurNumberKind::Arithmetic, 100.4, 100.6),
            (OurNumberKind::Fitted, 102.9, 103.1),
            (OurNumberKind::Predicted, 90.1, 89.9),
        ] {
            let number = |value| line(100.0, OurNumber::new(value, kind, "model"));
            assert!(!number(right).exceeds_error_limit(), "{kind:?}");
            assert!(number(wrong).exceeds_error_limit(), "{kind:?}");
            assert_eq!(number(right).reason_of_error_or_absence(), None);
            assert_eq!(number(wrong).reason_of_error_or_absence(), Some("because"));
        }
    }

    #[test]
    fn printed_digits_decide_what_is_exact() {
        assert!(rounds_to_printed(13_443.28, 13_443.0) && !rounds_to_printed(13_443.6, 13_443.0));
        assert!(rounds_to_printed(87.52, 87.5) && !rounds_to_printed(87.56, 87.5));
        assert!(!rounds_to_printed(3e-10, 2.328_306_436_538_696_3e-10));
    }

    #[test]
    fn bounds_hold_or_are_off() {
        let at_most = |value| {
            line(
                5.0,
                OurNumber::arithmetic(value).with_relation(PublishedRelation::AtMost),
            )
        };
        assert_eq!(
            (
                at_most(3.3).relative_error(),
                at_most(3.3).exceeds_error_limit()
            ),
            (Some(0.0), false)
        );
        assert!(at_most(5.6).exceeds_error_limit());
        let at_least = |value| {
            line(
                10.0,
                OurNumber::arithmetic(value).with_relation(PublishedRelation::AtLeast),
            )
        };
        assert!(!at_least(23.2).exceeds_error_limit() && at_least(9.0).exceeds_error_limit());
        assert_eq!(
            line(0.0, OurNumber::arithmetic(0.0)).relative_error(),
            Some(0.0)
        );
    }
}
