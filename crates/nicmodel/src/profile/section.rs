//! One table of a profile: its fields, what they mean, and the range of each.

use serde::Serialize;

use super::sourced::{Evidence, Sourced};

/// One number of a profile, as a list of all of them shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileNumber<'a> {
    /// Table and field, such as `pcie.lanes`.
    pub key: String,
    /// Meaning of the number: the documentation of its field.
    pub meaning: &'static str,
    /// Its value, in the unit that the key ends with.
    pub value: f64,
    /// `published`, `derived`, `fitted` or `assumed`.
    pub source: &'static str,
    /// The evidence in words.
    #[serde(serialize_with = "serialize_evidence_in_words")]
    pub evidence: &'a Evidence,
}

fn serialize_evidence_in_words<S: serde::Serializer>(
    evidence: &&Evidence,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(evidence)
}

/// A field that holds a number, or may.
pub(super) trait NumberField {
    /// Returns the value, the evidence, and the byte offset in the text; `None` if the number is unknown.
    fn number(&self) -> Option<(f64, &Evidence, usize)>;

    /// Sets another value; returns false if the number is unknown.
    fn set_value(&mut self, value: f64) -> bool;
}

/// A type of numbers in profiles.
pub(super) trait ProfileValue: Copy + Into<f64> {
    /// Returns the nearest value of the type.
    fn from_nearest_f64(value: f64) -> Self;
}

impl ProfileValue for f64 {
    fn from_nearest_f64(value: f64) -> Self {
        value
    }
}

impl ProfileValue for u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates"
    )]
    fn from_nearest_f64(value: f64) -> Self {
        value.round() as Self
    }
}

impl<T: ProfileValue> NumberField for Sourced<T> {
    fn number(&self) -> Option<(f64, &Evidence, usize)> {
        Some((self.value.into(), &self.evidence, self.span.start))
    }

    fn set_value(&mut self, value: f64) -> bool {
        self.value = T::from_nearest_f64(value);
        true
    }
}

impl<T: ProfileValue> NumberField for Option<Sourced<T>> {
    fn number(&self) -> Option<(f64, &Evidence, usize)> {
        self.as_ref().and_then(NumberField::number)
    }

    fn set_value(&mut self, value: f64) -> bool {
        self.as_mut().is_some_and(|number| number.set_value(value))
    }
}

/// A number outside its range.
pub(super) struct OutOfRange {
    pub(super) key: String,
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Byte offset in the text.
    pub(super) byte_offset: usize,
}

/// Defines a table of the profile: each field with its documentation, type and range.
macro_rules! section {
    (
        $(#[$outer:meta])*
        pub struct $name:ident in $table:literal {
            $( $(#[doc = $doc:literal])+ $field:ident: $type:ty = $low:literal to $high:literal, )+
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )+
        }

        impl $name {
            pub(in crate::profile) fn numbers<'a>(&'a self, into: &mut Vec<$crate::profile::ProfileNumber<'a>>) {
                $(
                    if let Some((value, evidence, _)) = $crate::profile::section::NumberField::number(&self.$field) {
                        into.push($crate::profile::ProfileNumber {
                            key: concat!($table, ".", stringify!($field)).to_owned(),
                            meaning: concat!($($doc),+).trim_ascii(),
                            value,
                            source: evidence.kind(),
                            evidence,
                        });
                    }
                )+
            }

            /// Gives a field another value; false if there is no such field, or it is unknown.
            pub(in crate::profile) fn set(&mut self, field: &str, value: f64) -> bool {
                $(
                    if field == stringify!($field) {
                        return $crate::profile::section::NumberField::set_value(&mut self.$field, value);
                    }
                )+
                false
            }

            /// The range of a field.
            pub(in crate::profile) fn range(field: &str) -> Option<(f64, f64)> {
                $(
                    if field == stringify!($field) {
                        return Some((f64::from($low), f64::from($high)));
                    }
                )+
                None
            }

            pub(in crate::profile) fn out_of_range(&self, into: &mut Vec<$crate::profile::section::OutOfRange>) {
                $(
                    if let Some((value, _, at)) = $crate::profile::section::NumberField::number(&self.$field)
                        && !(f64::from($low)..=f64::from($high)).contains(&value)
                    {
                        into.push($crate::profile::section::OutOfRange {
                            key: concat!($table, ".", stringify!($field)).to_owned(),
                            value,
                            low: f64::from($low),
                            high: f64::from($high),
                            byte_offset: at,
                        });
                    }
                )+
            }
        }
    };
}

pub(super) use section;
