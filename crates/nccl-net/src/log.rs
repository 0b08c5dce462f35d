//! Messages through NCCL's logger.

use std::ffi::{CString, c_int};
use std::sync::Mutex;

use crate::abi::{LOG_INFO, LOG_SUBSYSTEMS, LOG_WARN, Logger};

/// The logger of NCCL's latest `init`.
static LOGGER: Mutex<Logger> = Mutex::new(None);

/// Sets the logger; `None` disables logging.
pub(crate) fn set_logger(logger: Logger) {
    if let Ok(mut current) = LOGGER.lock() {
        *current = logger;
    }
}

/// Logs an error and its cause.
pub(crate) fn warn(text: &str) {
    log(LOG_WARN, text);
}

/// Logs a piece of information.
pub(crate) fn info(text: &str) {
    log(LOG_INFO, text);
}

fn log(level: c_int, text: &str) {
    let Some(logger) = LOGGER.lock().ok().and_then(|logger| *logger) else {
        return;
    };
    let Ok(text) = CString::new(format!("NET/Verbatim : {text}")) else {
        return;
    };
    // SAFETY: NCCL's logger takes these arguments. The format has one string, which lives until the
    // call returns.
    unsafe {
        logger(
            level,
            LOG_SUBSYSTEMS,
            c"nccl-net-verbatim".as_ptr(),
            0,
            c"%s".as_ptr(),
            text.as_ptr(),
        );
    }
}
