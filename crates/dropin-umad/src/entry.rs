//! The labels that export the functions.

use crate::abi::*;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
