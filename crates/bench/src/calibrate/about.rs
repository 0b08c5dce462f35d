//! What is known of a machine without measuring.

use nicmodel::profile::LinkLayer;

/// A machine and its NIC.
#[derive(Clone, Debug)]
pub struct About {
    /// Name of the profile.
    pub name: String,
    /// NIC and machine in a line.
    pub title: String,
    /// What else a reader should know.
    pub about: String,
    /// What its port speaks.
    pub link_layer: LinkLayer,
    /// Numbers that somebody says: key, value, who.
    pub said: Vec<(&'static str, f64, String)>,
    /// Cores that post.
    pub cores: usize,
}
