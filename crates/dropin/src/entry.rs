//! Every exported function under its C name, and the labels in assembly that export the functions.

pub(crate) use crate::functions_for_librdmacm::*;
pub(crate) use crate::kernel_structs::*;
pub(crate) use crate::newest::*;
pub(crate) use crate::rate::*;
pub(crate) use crate::sysfs::*;
pub(crate) use crate::verbs_to_softnic::*;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
