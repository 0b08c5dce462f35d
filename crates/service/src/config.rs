//! Checks of configurations.

use std::ops::RangeInclusive;

use verbs::Capabilities;

use crate::design::Unsupported;
use crate::nic::NicConfig;

/// The part of a server's configuration that every service has.
pub trait ServerConfig {
    /// Refuses a value that cannot work.
    ///
    /// # Errors
    /// Which one, and what it may be.
    fn check(&self) -> Result<(), String>;

    /// Refuses a device that cannot run it.
    ///
    /// # Errors
    /// What the device lacks.
    fn check_device(&self, device: &Capabilities) -> Result<(), Unsupported>;

    /// The TCP address where clients find it.
    fn listen(&self) -> &str;

    /// The NIC.
    fn nic(&self) -> &NicConfig;

    /// The largest window that a client may ask for.
    fn max_window(&self) -> usize;
}

/// Refuses a value out of its range.
///
/// # Errors
/// The name, the value and the range.
pub fn in_range(name: &str, value: usize, range: RangeInclusive<usize>) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    let (from, to) = (range.start(), range.end());
    Err(format!("{name} is {value}: it must be {from} to {to}"))
}
