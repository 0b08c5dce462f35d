//! Facts about a machine that need no measurement.

use nicmodel::profile::LinkLayer;

/// A machine and its NIC.
#[derive(Clone, Debug)]
pub struct MachineFacts {
    /// Name of the profile.
    pub profile_name: String,
    /// NIC and machine, in one line.
    pub profile_title: String,
    /// Further remarks for a reader of the profile.
    pub remarks: String,
    /// Link layer of the NIC's port.
    pub link_layer: LinkLayer,
    /// Published numbers: key, value, and source.
    pub published_numbers: Vec<(&'static str, f64, String)>,
    /// Number of cores that post.
    pub posting_core_count: usize,
}
