//! Which path queue pairs take, as the user asks for it.

/// The environment variable that chooses how queue pairs reach each other.
pub(crate) const PATH_VAR: &str = "VERBATIM_PATH";

/// What [`PATH_VAR`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Shared memory where the peer is a port of this host, packets elsewhere.
    Auto,
    /// Shared memory; nobody on another host is reached.
    Local,
    /// Packets, also on one host.
    Packets,
}

/// Why a value of [`PATH_VAR`] cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{PATH_VAR} is {0:?}; set it to `auto` (shared memory on this host, packets elsewhere: the default), \
     `local` (shared memory only) or `packets` (RoCEv2 packets, also on this host)"
)]
pub struct BadPath(String);

impl Mode {
    /// What the environment asks for.
    ///
    /// # Errors
    /// Where the variable has none of the values that the error names.
    pub(crate) fn from_env() -> Result<Self, BadPath> {
        match std::env::var_os(PATH_VAR) {
            None => Ok(Self::Auto),
            Some(value) => Self::parse(&value.to_string_lossy()),
        }
    }

    fn parse(value: &str) -> Result<Self, BadPath> {
        match value {
            "" | "auto" => Ok(Self::Auto),
            "local" => Ok(Self::Local),
            "packets" => Ok(Self::Packets),
            _ => Err(BadPath(value.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read() {
        assert_eq!(Mode::parse(""), Ok(Mode::Auto));
        assert_eq!(Mode::parse("packets"), Ok(Mode::Packets));
        assert_eq!(Mode::parse("loopback"), Err(BadPath("loopback".to_owned())));
    }
}
