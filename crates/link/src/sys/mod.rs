//! System calls without a safe wrapper in another crate: options of UDP sockets, several messages per call, control
//! messages.
//!
//! All unsafe code of this crate is here, behind safe functions.
#![allow(unsafe_code)]

pub(crate) mod address;
pub(crate) mod epoll;
pub(crate) mod options;
pub(crate) mod receive;
pub(crate) mod send;

/// A buffer for control messages, aligned like the kernel's `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct ControlBuffer<const N: usize>(pub(crate) [u8; N]);
