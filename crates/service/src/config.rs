//! Configuration of servers, and checks of values.

use std::ops::RangeInclusive;

use verbs::{Capabilities, Context, PortAndGidIndex};

use crate::design::UnsupportedDesign;
use crate::nic::{NicConfig, OpenError, listen_ip};

/// The part of a server's configuration that every service has.
pub trait ServerConfig {
    /// Fails if a value is invalid.
    ///
    /// # Errors
    /// Names the invalid value and its valid range.
    fn check(&self) -> Result<(), String>;

    /// Fails if the device cannot run the service.
    ///
    /// # Errors
    /// Names what the device lacks.
    fn check_device(&self, device: &Capabilities) -> Result<(), UnsupportedDesign>;

    /// Returns the TCP address on which the server listens.
    fn listen_address(&self) -> &str;

    /// Returns the configuration of the NIC.
    fn nic(&self) -> &NicConfig;

    /// Returns the port of the server's NIC, and the GID index: that of the address on which the server listens, unless
    /// the configuration has another one.
    ///
    /// # Errors
    /// As [`NicConfig::port_and_gid`].
    fn port_and_gid(&self, context: &Context) -> Result<PortAndGidIndex, OpenError> {
        let address = listen_ip(self.listen_address());
        self.nic().port_and_gid(context, address)
    }

    /// Returns the largest window that a client may request.
    fn max_window(&self) -> usize;
}

/// Fails if a value is out of its range.
///
/// # Errors
/// Names the value, and states its range.
pub fn check_in_range(
    name: &str,
    value: usize,
    range: RangeInclusive<usize>,
) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    let (from, to) = (range.start(), range.end());
    Err(format!("{name} is {value}: it must be {from} to {to}"))
}
