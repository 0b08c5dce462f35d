//! Connection management of the software NIC as `librdmacm.so.1`, which unmodified programs load instead of
//! the system's, beside the drop-in `libibverbs.so.1`.
//!
//! - `symbols.txt` lists the exported symbols with their versions. From this list `build.rs` makes labels
//!   that jump to the functions in `rdmacm::abi` and `rsocket::abi`.
//! - `traced` has the functions that write a trace line.
//! - `verbs` finds the verbs of the `libibverbs.so.1` that the program uses, because a program has one
//!   software NIC.
//!
//! No panic crosses the C ABI. The functions return errors. If a function panics nevertheless, `extern "C"`
//! ends the process with a message rather than unwinding into C.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod entry;
#[allow(unsafe_code)]
mod traced;
#[allow(unsafe_code)]
mod verbs;
