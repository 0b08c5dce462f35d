//! The path of queue pairs, as the user selects it.

/// The environment variable that selects the path between queue pairs.
pub(crate) const PATH_VAR: &str = "VERBATIM_PATH";

/// The choice of paths by [`PATH_VAR`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathMode {
    /// Shared memory if the peer is a port of this host, else packets.
    Auto,
    /// Shared memory only; peers on other hosts cannot be reached.
    Local,
    /// Packets, also on one host.
    Packets,
    /// Packets, also on one host, for queue pairs that packets carry; shared memory for the rest. The mode has no name
    /// in [`PATH_VAR`]: it is for processes that write a capture.
    PacketsWherePossible,
}

/// The reason why a value of [`PATH_VAR`] cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{PATH_VAR} is {0:?}; set it to `auto` (shared memory on this host, packets elsewhere: the default), \
     `local` (shared memory only) or `packets` (RoCEv2 packets, also on this host)"
)]
pub struct InvalidPathMode(String);

impl PathMode {
    /// Reads the mode from the environment. `captured` tells whether packets are captured.
    ///
    /// # Errors
    /// The variable has none of the values that the error names.
    pub(crate) fn from_env(captured: bool) -> Result<Self, InvalidPathMode> {
        let value = std::env::var_os(PATH_VAR).unwrap_or_default();
        Self::parse(&value.to_string_lossy(), captured)
    }

    /// Returns the mode's name as a value of [`PATH_VAR`].
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto | Self::PacketsWherePossible => "auto",
            Self::Local => "local",
            Self::Packets => "packets",
        }
    }

    fn parse(value: &str, captured: bool) -> Result<Self, InvalidPathMode> {
        match value {
            "" if captured => Ok(Self::PacketsWherePossible),
            "" | "auto" => Ok(Self::Auto),
            "local" => Ok(Self::Local),
            "packets" => Ok(Self::Packets),
            _ => Err(InvalidPathMode(value.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read() {
        assert_eq!(PathMode::parse("", false), Ok(PathMode::Auto));
        assert_eq!(PathMode::parse("packets", false), Ok(PathMode::Packets));
        let wrong = PathMode::parse("loopback", false);
        assert_eq!(wrong, Err(InvalidPathMode("loopback".to_owned())));
    }

    #[test]
    fn a_capture_has_packets_unless_a_path_is_asked_for() {
        assert_eq!(
            PathMode::parse("", true),
            Ok(PathMode::PacketsWherePossible)
        );
        for (value, mode) in [
            ("auto", PathMode::Auto),
            ("local", PathMode::Local),
            ("packets", PathMode::Packets),
        ] {
            assert_eq!(PathMode::parse(value, true), Ok(mode));
        }
    }
}
