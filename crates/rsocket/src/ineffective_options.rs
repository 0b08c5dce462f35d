//! Options of stream sockets that are stored without effect.

use std::ffi::c_int;

/// Options that are stored and returned without effect.
#[derive(Clone, Copy, Default)]
pub(crate) struct IneffectiveOptions {
    pub(crate) keep_alive: c_int,
    pub(crate) keep_idle: c_int,
    pub(crate) keep_interval: c_int,
    pub(crate) keep_count: c_int,
    pub(crate) no_delay: c_int,
    pub(crate) max_segment: c_int,
    pub(crate) oob_inline: c_int,
    pub(crate) linger_on_and_seconds: (c_int, c_int),
}
