//! Connection management of the software NIC as `librdmacm.so.1`: what unmodified programs load instead of the
//! system's, beside the drop-in `libibverbs.so.1`.
//!
//! - `symbols.txt` says what is exported under which version; `build.rs` makes labels of it that jump to the
//!   functions in `rdmacm::abi` and `rsocket::abi`.
//! - `traced` has those that are traced.
//! - `verbs` finds the verbs: those of the `libibverbs.so.1` that the program uses, because a program has one
//!   software NIC.
//!
//! No panic crosses the C ABI: the functions return errors, and should one panic all the same, `extern "C"`
//! ends the process with a message rather than unwinding into C.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod entry;
#[allow(unsafe_code)]
mod traced;
#[allow(unsafe_code)]
mod verbs;
