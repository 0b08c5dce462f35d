//! The C ABI of libibverbs and librdmacm as Rust types.
//!
//! Names are those of C, so that `man 3 ibv_post_send`, the specification and any RDMA program use
//! the same words as this crate. The crate has almost no behaviour, and links no library. A
//! *provider* is a filled [`Symbols`] table: the software NIC, or the machine's own libibverbs
//! opened at run time. Every object of a provider (`ibv_context`, `ibv_qp` …) has the layout of
//! `<infiniband/verbs.h>` of rdma-core 44. The only behaviour of the crate is that of the inline
//! functions in that header ([`ibv_post_send`], [`ibv_poll_cq`] …), and the texts of codes
//! ([`strings`]). The inline functions call the object's own table of operations, as in C.
//!
//! C enums are integer aliases with constants, so that an unknown value is never undefined
//! behaviour. Every type has `zeroed()`. The test `layout` compiles a C program against the
//! installed headers and compares each size, offset and constant.
//!
//! Big-endian fields are plain integers with a comment; all other fields are in host order.

#![allow(non_camel_case_types, non_snake_case, reason = "C spelling")]

#[macro_use]
mod macros;
mod gsi;
mod inline;
mod later;
pub mod layout;
mod newest;
pub mod strings;
mod symbols;
mod tables;

pub use gsi::Gsi;
pub use inline::*;
pub use later::*;
pub use newest::*;
pub use symbols::{LaterSymbols, Symbols};

/// Declares the modules of the ABI, re-exports them and collects their tables.
macro_rules! families {
    ($( $module:ident; )*) => {
        $(
            mod $module;
            pub use $module::*;
        )*
        const TYPES: &[&[layout::TypeLayout]] = &[$($module::TYPES,)*];
        const CONSTS: &[&[layout::ConstantValue]] = &[$($module::CONSTS,)*];
    };
}

families! {
    context;
    counters;
    cq;
    device;
    event;
    flow;
    gid;
    mr;
    mw;
    pd;
    port;
    qp;
    rdma_cma;
    rsocket;
    srq;
    wc;
    wq;
    wr;
}
