//! The software NIC (being written).
#![deny(unsafe_code)]
#[allow(unsafe_code)]
pub(crate) mod fabric;
#[allow(unsafe_code)]
pub(crate) mod sync;
