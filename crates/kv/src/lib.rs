//! Key-value stores over the verbs.
//!
//! [`store`] is the storage engine, without a network.

#![deny(unsafe_code)]

mod prefetch;
pub mod store;
