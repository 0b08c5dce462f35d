//! The result of a collective for one message size.

use bench::collective::{CollectiveParameters, CollectiveResult as Ran};
use nicmodel::bounds::Resource;
use serde::Serialize;

/// A line of the table: one message size.
#[derive(Serialize)]
pub(super) struct Row {
    #[serde(rename = "kind")]
    pub(super) nic_kind: &'static str,
    pub(super) nic: String,
    #[serde(flatten)]
    pub(super) setup: CollectiveParameters,
    #[serde(flatten)]
    #[serde(rename = "ran")]
    pub(super) run_result: Ran,
    /// The bus bandwidth that the model allows on simulated NICs, in 10^9 bytes a second.
    pub(super) bound_gb_s: Option<f64>,
    pub(super) bound_by: Option<Resource>,
    /// The rate at which one core of this machine copies as many bytes, in 10^9 bytes a second.
    pub(super) memcpy_gb_s: Option<f64>,
}
