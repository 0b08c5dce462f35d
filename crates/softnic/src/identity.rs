//! The identity that the device reports: its name, its vendor, its board.
//!
//! Programs choose features by the identity: perftest the amount of inline data, UCX the transports that it tries. The
//! software NIC reports its own identity, unless `VERBATIM_DEVICE` asks for another one.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::str::FromStr;

/// The environment variable that sets the identity of the device: an [`Identity`] in its written form.
pub const DEVICE_VAR: &str = "VERBATIM_DEVICE";

/// The identity that the device reports.
///
/// Its written form is `NAME:VENDOR:PART:BOARD:FIRMWARE`, the numbers in decimal, the board perhaps empty:
/// `mlx4_0:713:4099:MT_1100120019:2.42.5000`.
///
/// ```
/// let cib: softnic::Identity = "mlx5_0:713:4113::1.0".parse()?;
/// assert_eq!((cib.name(), cib.vendor_id()), ("mlx5_0", 0x02c9));
/// assert_eq!(cib.to_string(), "mlx5_0:713:4113::1.0");
/// # Ok::<(), softnic::BadIdentity>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(crate) name: String,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) board_id: String,
    pub(crate) firmware: String,
}

/// The reason why a text or a set of values is not a valid [`Identity`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadIdentity(&'static str);

impl Default for Identity {
    /// Returns the software NIC's own identity.
    ///
    /// The kernel names a device by its driver and a number from 0 on (`mlx5_0`, `rxe0`); so does this crate. No vendor
    /// has the OUI ff:ff:ff, which Soft-RoCE reports too (`RXE_VENDOR_ID`). No program thus mistakes the device for one
    /// whose private interface it knows. There is no firmware, but programs expect a version.
    fn default() -> Self {
        Self {
            name: "softnic0".to_owned(),
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            board_id: String::new(),
            firmware: "1.0".to_owned(),
        }
    }
}

impl Identity {
    /// Makes the identity of a device with this name, vendor and part. The name is as in `ibv_get_device_name(3)`: 1 to
    /// 63 letters, digits and `_`. The vendor is an OUI of the IEEE, 24 bits. The identity has no name of a board, and
    /// the firmware version of the software NIC.
    ///
    /// # Errors
    /// The name or the vendor is not valid.
    pub fn new(name: &str, vendor_id: u32, vendor_part_id: u32) -> Result<Self, BadIdentity> {
        let own = Self::default();
        let name = name.to_owned();
        Self {
            name,
            vendor_id,
            vendor_part_id,
            ..own
        }
        .checked()
    }

    /// Sets the name of the board, as in sysfs (`board_id`): up to 63 letters, digits, `_`, `-` and `.`.
    ///
    /// # Errors
    /// The name has other characters, or too many.
    pub fn with_board(self, board_id: &str) -> Result<Self, BadIdentity> {
        let board_id = board_id.to_owned();
        Self { board_id, ..self }.checked()
    }

    /// Sets the version of the firmware: 1 to 63 letters, digits, `_`, `-` and `.`.
    ///
    /// # Errors
    /// The version has other characters, none, or too many.
    pub fn with_firmware(self, firmware: &str) -> Result<Self, BadIdentity> {
        let firmware = firmware.to_owned();
        Self { firmware, ..self }.checked()
    }

    /// Reads the identity from the environment.
    pub(crate) fn from_env() -> Result<Self, BadDeviceVariable> {
        Self::parse_env_value(std::env::var_os(DEVICE_VAR).as_deref())
    }

    fn parse_env_value(value: Option<&OsStr>) -> Result<Self, BadDeviceVariable> {
        let Some(value) = value else {
            return Ok(Self::default());
        };
        let read = value.to_str().map(str::parse);
        read.unwrap_or(Err(BadIdentity("it is no text in UTF-8")))
            .map_err(|why| BadDeviceVariable {
                value: value.to_owned(),
                why,
            })
    }

    fn checked(self) -> Result<Self, BadIdentity> {
        // `char fw_ver[64]` and `char name[IBV_SYSFS_NAME_MAX]` (64) of verbs.h, with a zero behind the text.
        const MAX: usize = 63;
        let letter = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
        let word = |text: &str| {
            text.len() <= MAX && text.bytes().all(|c| letter(c) || matches!(c, b'-' | b'.'))
        };
        if !(1..=MAX).contains(&self.name.len()) || !self.name.bytes().all(letter) {
            Err(BadIdentity(
                "a device's name has 1 to 63 letters, digits or '_'",
            ))
        } else if self.vendor_id >= 1 << 24 {
            Err(BadIdentity(
                "a vendor's number, an OUI of the IEEE, is below 2^24",
            ))
        } else if !word(&self.board_id) {
            Err(BadIdentity(
                "a board's name has up to 63 letters, digits, '_', '-' or '.'",
            ))
        } else if self.firmware.is_empty() || !word(&self.firmware) {
            Err(BadIdentity(
                "a firmware's version has 1 to 63 letters, digits, '_', '-' or '.'",
            ))
        } else {
            Ok(self)
        }
    }

    /// Returns the name that `ibv_get_device_name(3)` returns and programs take as `-d`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of device `number`, from 0: the number at the end of the name counts up.
    #[must_use]
    pub fn name_of_device(&self, number: u8) -> String {
        let letters = self.name.trim_end_matches(|c: char| c.is_ascii_digit());
        match self.name[letters.len()..].parse::<u64>() {
            _ if number == 0 => self.name.clone(),
            Ok(first) => format!("{letters}{}", first.saturating_add(number.into())),
            Err(_) => format!("{}{number}", self.name),
        }
    }

    /// Returns the `vendor_id` of `ibv_query_device(3)`: an OUI of the IEEE.
    #[must_use]
    pub fn vendor_id(&self) -> u32 {
        self.vendor_id
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            vendor_id,
            vendor_part_id,
            board_id,
            firmware,
        } = self;
        write!(
            f,
            "{name}:{vendor_id}:{vendor_part_id}:{board_id}:{firmware}"
        )
    }
}

impl FromStr for Identity {
    type Err = BadIdentity;

    fn from_str(text: &str) -> Result<Self, BadIdentity> {
        let parts: Vec<&str> = text.split(':').collect();
        let [name, vendor_id, vendor_part_id, board_id, firmware] = parts[..] else {
            return Err(BadIdentity("it must be NAME:VENDOR:PART:BOARD:FIRMWARE"));
        };
        let number = |text: &str| {
            text.parse()
                .map_err(|_| BadIdentity("VENDOR and PART are decimal numbers of 32 bits"))
        };
        Self::new(name, number(vendor_id)?, number(vendor_part_id)?)?
            .with_board(board_id)?
            .with_firmware(firmware)
    }
}

/// [`DEVICE_VAR`] has a value that is not an identity.
#[derive(Debug, thiserror::Error)]
#[error(
    "{DEVICE_VAR} is {value:?}: {why}, such as mlx5_0:713:4113::1.0; leave it unset for the software NIC itself"
)]
pub struct BadDeviceVariable {
    value: OsString,
    why: BadIdentity,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_form_is_read_back() {
        let text = "mlx4_0:713:4099:MT_1100120019:2.42.5000";
        let read: Identity = text.parse().expect("an identity");
        assert_eq!(read.to_string(), text);
        assert_eq!(
            (read.name(), read.vendor_id(), read.vendor_part_id),
            ("mlx4_0", 713, 4099)
        );
        let own = Identity::default();
        assert_eq!(own.to_string().parse(), Ok(own));
    }

    #[test]
    fn names_of_further_devices_count_up() {
        let names = |name: &str| {
            let first = Identity::new(name, 0, 0).expect("an identity");
            [0, 1, 7].map(|number| first.name_of_device(number))
        };
        assert_eq!(names("softnic0"), ["softnic0", "softnic1", "softnic7"]);
        assert_eq!(names("mlx5_9"), ["mlx5_9", "mlx5_10", "mlx5_16"]);
        assert_eq!(names("siw"), ["siw", "siw1", "siw7"]);
    }

    #[test]
    fn what_is_none_is_refused() {
        let long = "x".repeat(64);
        for wrong in [
            "",
            "mlx5_0",
            "mlx5_0:713:4113:",
            "mlx5_0:713:4113::1.0:more",
            ":713:4113::1.0",
            "../x:713:4113::1.0",
            "a:0x2c9:4113::1.0",
            "a:-1:4113::1.0",
            "a:16777216:4113::1.0",
            "a:713:99999999999::1.0",
            "a:713:4113:b/c:1.0",
            "a:713:4113::",
            &format!("{long}:713:4113::1.0"),
            &format!("a:713:4113:{long}:1.0"),
            &format!("a:713:4113::{long}"),
        ] {
            let err = Identity::parse_env_value(Some(OsStr::new(wrong))).expect_err(wrong);
            assert!(err.to_string().contains(DEVICE_VAR), "{err}");
        }
        assert_eq!(
            Identity::parse_env_value(None).expect("unset"),
            Identity::default()
        );
    }
}
