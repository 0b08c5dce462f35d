//! The function tables that NCCL finds by their symbols. Versions differ only in names, arguments
//! and properties.

use std::ffi::c_char;

use crate::abi::*;
use crate::entry::*;

/// The name by which `NCCL_NET` and `ncclConfig_t.netName` choose this network.
const NETWORK_NAME: *const c_char = c"Verbatim".as_ptr();

/// Defines a table: the functions of all versions, and the given functions of this version.
macro_rules! table {
    ($(#[$doc:meta])* $symbol:ident: $net:ident, $properties:ident { $($field:ident: $function:expr,)* }) => {
        $(#[$doc])*
        // SAFETY: these are NCCL's symbol names, which are looked up by the handle of this library
        // only.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "NCCL's name")]
        pub(crate) static $symbol: $net = $net {
            name: NETWORK_NAME,
            devices: Some(devices),
            get_properties: Some(get_properties::<$properties>),
            reg_mr_dma_buf: None,
            dereg_mr: Some(dereg_mr),
            iflush: Some(iflush),
            test: Some(test),
            close_send: Some(close_comm),
            close_recv: Some(close_comm),
            close_listen: Some(close_listen),
            $($field: $function,)*
        };
    };
}

table! {
    /// `ncclNet_v6_t`.
    ncclNetPlugin_v6: NetV6, PropertiesV6 {
        init: Some(init), listen: Some(listen), connect: Some(connect_v6), accept: Some(accept_v6),
        reg_mr: Some(reg_mr_v6), isend: Some(isend), irecv: Some(irecv),
    }
}
table! {
    /// `ncclNet_v7_t`.
    ncclNetPlugin_v7: NetV7, PropertiesV7 {
        init: Some(init), listen: Some(listen), connect: Some(connect), accept: Some(accept),
        reg_mr: Some(reg_mr_v6), isend: Some(isend), irecv: Some(irecv), get_device_mr: None, irecv_consumed: None,
    }
}
table! {
    /// `ncclNet_v8_t`.
    ncclNetPlugin_v8: NetV8, PropertiesV8 {
        init: Some(init), listen: Some(listen), connect: Some(connect), accept: Some(accept),
        reg_mr: Some(reg_mr), isend: Some(isend), irecv: Some(irecv), get_device_mr: None, irecv_consumed: None,
    }
}
table! {
    /// `ncclNet_v9_t`.
    ncclNetPlugin_v9: NetV9, PropertiesV9 {
        init: Some(init), listen: Some(listen), connect: Some(connect), accept: Some(accept),
        reg_mr: Some(reg_mr), isend: Some(isend_v9), irecv: Some(irecv_v9), get_device_mr: None,
        irecv_consumed: None, make_v_device: None,
    }
}
table! {
    /// `ncclNet_v10_t`.
    ncclNetPlugin_v10: NetV10, PropertiesV9 {
        init: Some(init_v10), listen: Some(listen), connect: Some(connect_v10), accept: Some(accept),
        reg_mr: Some(reg_mr), isend: Some(isend_v10), irecv: Some(irecv_v10), get_device_mr: None,
        irecv_consumed: None, make_v_device: None,
    }
}
table! {
    /// `ncclNet_v11_t`.
    ncclNetPlugin_v11: NetV11, PropertiesV11 {
        init: Some(init_v11), listen: Some(listen_v11), connect: Some(connect_v11), accept: Some(accept),
        reg_mr: Some(reg_mr), isend: Some(isend_v10), irecv: Some(irecv_v10), get_device_mr: None,
        irecv_consumed: None, make_v_device: None, finalize: Some(finalize), set_net_attr: Some(set_net_attr),
    }
}
table! {
    /// `ncclNet_v12_t`.
    ncclNetPlugin_v12: NetV12, PropertiesV12 {
        init: Some(init_v11), listen: Some(listen_v11), connect: Some(connect_v11), accept: Some(accept),
        reg_mr: Some(reg_mr), isend: Some(isend_v10), irecv: Some(irecv_v10), get_device_mr: None,
        irecv_consumed: None, make_v_device: None, finalize: Some(finalize), set_net_attr: Some(set_net_attr),
    }
}
