//! The identity that a NIC reports to programs.

use serde::{Deserialize, Serialize};

use super::sourced::Sourced;

/// The identity that a NIC reports. Programs choose features by it, such as the size of inline data.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Name of the device as its driver reports it: `mlx5_0`.
    pub device: Sourced<String>,
    /// `vendor_id` of `ibv_query_device(3)`: an OUI of the IEEE, of 24 bits.
    pub vendor_id: Sourced<u32>,
    /// `vendor_part_id` of `ibv_query_device(3)`: the PCI device id.
    pub part_id: Sourced<u32>,
    /// `board_id` in sysfs, the PSID of Mellanox's boards; unknown if absent.
    pub board_id: Option<Sourced<String>>,
    /// `fw_ver` of `ibv_query_device(3)`; unknown if absent.
    pub firmware: Option<Sourced<String>>,
    /// `phys_port_cnt` of `ibv_query_device(3)`; 1 if absent.
    pub ports: Option<Sourced<u32>>,
}

impl Identity {
    /// Returns the problems: the place in the text, the key, and the permitted values.
    pub(super) fn problems(&self) -> Vec<(usize, &'static str, &'static str)> {
        /// Longest text: the fields have 64 bytes with a terminating zero (`IBV_SYSFS_NAME_MAX`, `fw_ver`).
        const MAX_TEXT_BYTES: usize = 63;
        let letter = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
        let length = |text: &str| (1..=MAX_TEXT_BYTES).contains(&text.len());
        let mut problems = Vec::new();
        let device = &self.device;
        if !length(&device.value) || !device.value.bytes().all(letter) {
            let message = "a device's name has 1 to 63 letters, digits or '_'";
            problems.push((device.span.start, "device", message));
        }
        if let Some(ports) = &self.ports
            && !(1..=4).contains(&ports.value)
        {
            problems.push((ports.span.start, "ports", "a device has 1 to 4 ports"));
        }
        if self.vendor_id.value >= 1 << 24 {
            let message = "a vendor's number, an OUI of the IEEE, is below 2^24";
            problems.push((self.vendor_id.span.start, "vendor_id", message));
        }
        for (key, text) in [("board_id", &self.board_id), ("firmware", &self.firmware)] {
            let Some(text) = text else { continue };
            let word = |c| letter(c) || matches!(c, b'-' | b'.');
            if !length(&text.value) || !text.value.bytes().all(word) {
                let message = "it has 1 to 63 letters, digits, '_', '-' or '.'";
                problems.push((text.span.start, key, message));
            }
        }
        problems
    }
}
