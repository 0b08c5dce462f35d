//! The congestion control of queue pairs that reach their peers by packets, as the user sets it.

use roce::dcqcn::DcqcnParameters;
use roce::dcqcn_setting::BadDcqcnSetting;

/// The environment variable with the parameters of DCQCN.
pub const DCQCN_VAR: &str = "VERBATIM_DCQCN";

/// The reason why the value of [`DCQCN_VAR`] cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{DCQCN_VAR}: {0}")]
pub struct BadCongestionControl(#[from] BadDcqcnSetting);

/// Reads the parameters of DCQCN from the environment; `None` if it is turned off.
///
/// # Errors
/// The variable has an unknown name or a value that is not possible.
pub(super) fn congestion_control_from_env() -> Result<Option<DcqcnParameters>, BadCongestionControl>
{
    let text = std::env::var_os(DCQCN_VAR).unwrap_or_default();
    Ok(DcqcnParameters::parse_setting(&text.to_string_lossy())?)
}

/// Checks a value of [`DCQCN_VAR`].
///
/// # Errors
/// The message about a name that is unknown, or about a value that is not possible.
pub fn check_dcqcn_setting(text: &str) -> Result<String, BadDcqcnSetting> {
    DcqcnParameters::parse_setting(text).map(|_| text.to_owned())
}
