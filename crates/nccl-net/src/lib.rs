//! NCCL's network plugin over the verbs: `libnccl-net-verbatim.so`.
//!
//! NCCL looks for a symbol `ncclNetPlugin_v12`, then for older ones, and finds a table of functions. All tables here lead
//! to one implementation: the receiver-driven transport of crate `collective`. Memory is the host's; NCCL stages through
//! it.
//!
//! - `abi`: tables and properties as the headers of the plugin interface have them.
//! - `entry`: the functions; `comm`: what their opaque pointers point to; `device`: the ports; `log`: NCCL's logger.

mod abi;
mod comm;
mod device;
mod entry;
mod log;
mod properties;
mod tables;
