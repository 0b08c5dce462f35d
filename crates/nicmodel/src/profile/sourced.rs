//! A number together with the evidence for it.

use std::fmt;
use std::ops::Range;

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Spanned;

/// The evidence for a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Printed in a publication, a specification or a data sheet.
    Published {
        /// The publication and the place in it.
        place: String,
    },
    /// Follows from published numbers or a specification.
    Derived {
        /// The derivation.
        how: String,
    },
    /// Chosen so that the model reproduces published values.
    Fitted {
        /// The published values, by name.
        to: Vec<String>,
        /// The fitting method, if not obvious.
        how: Option<String>,
    },
    /// A plausible value without a source.
    Assumed {
        /// The reason for this value.
        why: String,
    },
}

impl Evidence {
    /// The kind as profiles spell it: `published`, `derived`, `fitted` or `assumed`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Published { .. } => "published",
            Self::Derived { .. } => "derived",
            Self::Fitted { .. } => "fitted",
            Self::Assumed { .. } => "assumed",
        }
    }
}

impl Evidence {
    /// Returns the ids of the published values that the number was fitted to: the first word of each entry.
    pub fn fitted_to(&self) -> impl Iterator<Item = &str> {
        let to: &[String] = match self {
            Self::Fitted { to, .. } => to,
            _ => &[],
        };
        to.iter().filter_map(|name| name.split_whitespace().next())
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Published { place } => write!(f, "published: {place}"),
            Self::Derived { how } => write!(f, "derived: {how}"),
            Self::Fitted { to, how } => {
                write!(f, "fitted to {}", to.join(", "))?;
                how.as_ref().map_or(Ok(()), |how| write!(f, ": {how}"))
            }
            Self::Assumed { why } => write!(f, "assumed: {why}"),
        }
    }
}

/// A value of a profile and its evidence; in TOML
/// `{ value = 16, source = "published", where = "data sheet, page 3" }`.
///
/// The evidence is `where` for `published`, `how` for `derived`, `to` (and optionally `how`) for `fitted`, `why` for
/// `assumed`. A value without evidence is refused.
#[derive(Clone, Debug)]
pub struct Sourced<T> {
    /// The value, in the unit with which its key ends.
    pub value: T,
    /// The evidence for the value.
    pub evidence: Evidence,
    /// Byte range in the text, for error messages.
    pub(super) span: Range<usize>,
}

impl Sourced<f64> {
    /// Returns another number, which is derived from this one and others of the profile.
    pub(super) fn derive(&self, value: f64, how: &str) -> Self {
        Self {
            value,
            evidence: Evidence::Derived {
                how: how.to_owned(),
            },
            span: self.span.clone(),
        }
    }
}

impl<T: PartialEq> PartialEq for Sourced<T> {
    /// Equality ignores the place in the text.
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value && self.evidence == other.evidence
    }
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a number with its evidence, such as { value = 16, source = \"published\", where = \"data sheet, page 3\" }"
)]
struct RawSourced<T> {
    value: T,
    source: Option<String>,
    r#where: Option<String>,
    how: Option<String>,
    to: Option<Vec<String>>,
    why: Option<String>,
}

impl<T> RawSourced<T> {
    fn evidence(&self) -> Result<Evidence, String> {
        let text = |field: &Option<String>, key: &str, says: &str| {
            let text = field.as_deref().map(str::trim).filter(|t| !t.is_empty());
            text.map(str::to_owned)
                .ok_or_else(|| format!("no evidence: `{key} = \"…\"` must say {says}"))
        };
        let none = |others: &[(&str, bool)]| match others.iter().find(|(_, given)| *given) {
            Some((key, _)) => Err(format!(
                "`{key}` does not go with this source (published: where; derived: how; fitted: \
                 to, how; assumed: why)"
            )),
            None => Ok(()),
        };
        let r#where = ("where", self.r#where.is_some());
        let how = ("how", self.how.is_some());
        let to = ("to", self.to.is_some());
        let why = ("why", self.why.is_some());
        match self.source.as_deref() {
            Some("published") => {
                none(&[how, to, why])?;
                let place = text(
                    &self.r#where,
                    "where",
                    "in which publication, and where in it",
                )?;
                Ok(Evidence::Published { place })
            }
            Some("derived") => {
                none(&[r#where, to, why])?;
                let how = text(&self.how, "how", "from what and by which steps")?;
                Ok(Evidence::Derived { how })
            }
            Some("fitted") => {
                none(&[r#where, why])?;
                let to = self.to.clone().unwrap_or_default();
                if to.is_empty() || to.iter().any(|name| name.trim().is_empty()) {
                    return Err(
                        "no evidence: `to = [\"…\"]` must name the published values that it was \
                         fitted to"
                            .to_owned(),
                    );
                }
                let how = self.how.clone();
                Ok(Evidence::Fitted { to, how })
            }
            Some("assumed") => {
                none(&[r#where, how, to])?;
                let why = text(&self.why, "why", "why this value")?;
                Ok(Evidence::Assumed { why })
            }
            Some(other) => Err(format!(
                "the source `{other}` is none of published, derived, fitted, assumed"
            )),
            None => Err(
                "no evidence: add source = \"published\" (and where), \"derived\" (and how), \
                 \"fitted\" (and to) or \"assumed\" (and why)"
                    .to_owned(),
            ),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Sourced<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Spanned::<RawSourced<T>>::deserialize(deserializer)?;
        let evidence = raw.get_ref().evidence().map_err(D::Error::custom)?;
        let span = raw.span();
        let value = raw.into_inner().value;
        Ok(Self {
            value,
            evidence,
            span,
        })
    }
}

impl<T: Serialize> Serialize for Sourced<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("value", &self.value)?;
        map.serialize_entry("source", self.evidence.kind())?;
        match &self.evidence {
            Evidence::Published { place } => map.serialize_entry("where", place)?,
            Evidence::Derived { how } => map.serialize_entry("how", how)?,
            Evidence::Fitted { to, how } => {
                map.serialize_entry("to", to)?;
                if let Some(how) = how {
                    map.serialize_entry("how", how)?;
                }
            }
            Evidence::Assumed { why } => map.serialize_entry("why", why)?,
        }
        map.end()
    }
}
