//! Connection management of the software NIC as `librdmacm.so.1`, which unmodified programs load instead of
//! the system's, beside the drop-in `libibverbs.so.1`.
//!
//! - `symbols.txt` lists the exported symbols with their versions; `build.rs` makes labels from it that jump
//!   to the functions in `rdmacm::abi` and `rsocket::abi`.
//! - `traced` has the traced functions.
//! - `verbs` finds the verbs of the `libibverbs.so.1` that the program uses, because a program has one
//!   software NIC.
//!
//! No panic crosses the C ABI. The functions return errors; should one panic nevertheless, `extern "C"` ends
//! the process with a message rather than unwinding into C.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod entry;
#[allow(unsafe_code)]
mod traced;
#[allow(unsafe_code)]
mod verbs;
