//! Every exported function under its C name, and the labels in assembly that export the functions.

pub(crate) use crate::fabric::*;
pub(crate) use crate::kernel::*;
pub(crate) use crate::newest::*;
pub(crate) use crate::nic::*;
pub(crate) use crate::rate::*;
pub(crate) use crate::sysfs::*;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
