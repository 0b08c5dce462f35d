//! The software NIC as `libibverbs.so.1`: what unmodified programs load instead of the system's.
//!
//! The library is named, versioned and laid out as rdma-core's, so that programs which are linked to that one
//! run on the software NIC, with no RDMA hardware, no kernel module and no root. `verbatim run` sets up the
//! environment in which the loader finds it.
//!
//! - `symbols.txt` says what is exported under which version; `build.rs` makes labels of it that jump to the
//!   functions in `entry`.
//! - `nic` hands the verbs to the software NIC, whose functions check and answer as their man pages say.
//! - `bypass` tells of a process that was to use the software NIC and did not.
//! - `newest` has the functions of the newest releases.
//! - `rate`, `sysfs` and `kernel` are the functions of libibverbs that need no device.
//! - `fabric` is for the drop-in's own `librdmacm.so.1`, which stands on this library.
//! - `refusal` is how provider libraries are answered that expect a kernel.
//!
//! No panic crosses the C ABI: the functions return errors, and should one panic all the same, `extern "C"`
//! ends the process with a message rather than unwinding into C.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod bypass;
#[allow(unsafe_code)]
mod entry;
#[allow(unsafe_code)]
mod fabric;
#[allow(unsafe_code)]
mod kernel;
#[allow(unsafe_code)]
mod newest;
#[allow(unsafe_code)]
mod nic;
mod rate;
#[allow(unsafe_code)]
mod refusal;
#[allow(unsafe_code)]
mod sysfs;
