//! The software NIC as `libibverbs.so.1`, which unmodified programs load instead of the system's library.
//!
//! The library has the name, versions and layout of rdma-core's libibverbs, so programs linked to rdma-core
//! run on the software NIC. Such programs need no RDMA hardware, no kernel module and no root. `verbatim run` sets up
//! the environment in which the loader finds the library.
//!
//! - `symbols.txt` lists the exported symbols with their versions. From this list `build.rs` makes labels
//!   that jump to the functions in `entry`.
//! - `nic` passes the verbs to the software NIC, whose functions check and answer as their man pages say.
//! - `bypass` reports a process that loaded the drop-in and did not use the software NIC.
//! - `newest` has the functions of the newest releases.
//! - `rate`, `sysfs` and `kernel` are the functions of libibverbs that need no device.
//! - `fabric` is for the drop-in `librdmacm.so.1`, which depends on this library.
//! - `refusal` has the answers for provider libraries that expect a kernel driver.
//!
//! No panic crosses the C ABI. The functions return errors. If a function panics nevertheless, `extern "C"`
//! ends the process with a message rather than unwinding into C.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod entry;
#[allow(unsafe_code)]
mod functions_for_librdmacm;
#[allow(unsafe_code)]
mod kernel_structs;
#[allow(unsafe_code)]
mod newest;
mod rate;
#[allow(unsafe_code)]
mod refusal;
#[allow(unsafe_code)]
mod report_unused_nic;
#[allow(unsafe_code)]
mod sysfs;
#[allow(unsafe_code)]
mod verbs_to_softnic;
