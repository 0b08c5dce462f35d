//! The labels that export the functions.

use crate::abi::*;
use crate::smi_gsi::*;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
