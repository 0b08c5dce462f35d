//! NCCL's network plugin interface, versions 6 to 12, as Rust types.
//!
//! Source: the headers of NCCL's example plugin (`plugins/net/example/nccl/net_v6.h` to `net_v12.h`, NCCL 2.30). Their
//! sizes and offsets are checked below. The macros also give the text of a C header, which the C program of
//! `tests/driver` includes: see `c_header`.

use std::ffi::{c_char, c_int, c_ulong, c_void};

#[cfg(test)]
use crate::c_header;

/// `ncclResult_t`.
pub(crate) type NcclResult = c_int;
/// `ncclSuccess`.
pub(crate) const SUCCESS: NcclResult = 0;
/// `ncclSystemError`: the machine refused a request.
pub(crate) const SYSTEM_ERROR: NcclResult = 2;
/// `ncclInternalError`: a defect of the plugin.
pub(crate) const INTERNAL_ERROR: NcclResult = 3;
/// `ncclInvalidArgument`.
pub(crate) const INVALID_ARGUMENT: NcclResult = 4;
/// `ncclRemoteError`: the peer or the network failed.
pub(crate) const REMOTE_ERROR: NcclResult = 6;

/// `NCCL_NET_HANDLE_MAXSIZE`.
pub(crate) const HANDLE_BYTES: usize = 128;
/// `NCCL_PTR_HOST`.
pub(crate) const PTR_HOST: c_int = 1;
/// `NCCL_LOG_WARN`.
pub(crate) const LOG_WARN: c_int = 2;
/// `NCCL_LOG_INFO`.
pub(crate) const LOG_INFO: c_int = 3;
/// `NCCL_INIT | NCCL_NET`.
pub(crate) const LOG_SUBSYSTEMS: c_ulong = 1 | 16;

/// `ncclDebugLogger_t`; NULL is `None`.
pub(crate) type Logger =
    Option<unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...)>;
/// `ncclProfilerCallback_t`; never called.
pub(crate) type Profiler = *const c_void;
/// `ncclNetDeviceHandle_v*_t**`: the place for the handle of a plugin that offloads to the GPU.
pub(crate) type DeviceHandle = *mut *mut c_void;

/// Defines structures of data, each with the name that it has in C.
macro_rules! data_structs {
    ($($(#[$doc:meta])* $name:ident = $c_name:literal { $($field:ident: $type:ty,)* })*) => {
        $(#[doc = concat!("`", $c_name, "`.")]
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }

        #[cfg(test)]
        impl c_header::CStruct for $name {
            const C_NAME: &'static str = $c_name;
            fn fields() -> Vec<c_header::CField> {
                vec![$(c_header::CField {
                    name: c_header::camel_case(stringify!($field)),
                    declaration: c_header::declare::<$type>(stringify!($field)),
                    offset_bytes: std::mem::offset_of!($name, $field),
                },)*]
            }
        })*
    };
}

data_structs! {
    VDeviceV9 = "ncclNetVDeviceProps_v9_t" { ndevs: c_int, devs: [c_int; 4], }
    VDeviceV12 = "ncclNetVDeviceProps_v12_t" { ndevs: c_int, devs: [c_int; 8], }
    /// The traffic class -1 lets the plugin choose. Version 10 has the same structure.
    CommConfig = "ncclNetCommConfig_v11_t" { traffic_class: c_int, }
    PropertiesV6 = "ncclNetProperties_v6_t" {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, speed: c_int, port: c_int,
        latency: f32, max_comms: c_int, max_recvs: c_int,
    }
    PropertiesV7 = "ncclNetProperties_v7_t" {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, speed: c_int, port: c_int,
        latency: f32, max_comms: c_int, max_recvs: c_int, net_device_type: c_int, net_device_version: c_int,
    }
    PropertiesV8 = "ncclNetProperties_v8_t" {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, reg_is_global: c_int,
        speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int, net_device_type: c_int,
        net_device_version: c_int,
    }
    /// Version 10 has the same structure.
    PropertiesV9 = "ncclNetProperties_v9_t" {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, reg_is_global: c_int,
        force_flush: c_int, speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int,
        net_device_type: c_int, net_device_version: c_int, v_props: VDeviceV9, max_p2p_bytes: usize,
        max_coll_bytes: usize,
    }
    PropertiesV11 = "ncclNetProperties_v11_t" {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, reg_is_global: c_int,
        force_flush: c_int, speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int,
        net_device_type: c_int, net_device_version: c_int, v_props: VDeviceV9, max_p2p_bytes: usize,
        max_coll_bytes: usize, max_multi_request_size: c_int,
    }
    PropertiesV12 = "ncclNetProperties_v12_t" {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, reg_is_global: c_int,
        force_flush: c_int, speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int,
        net_device_type: c_int, net_device_version: c_int, v_props: VDeviceV12, max_p2p_bytes: usize,
        max_coll_bytes: usize, max_multi_request_size: c_int, rail_id: i16, plane_id: i16,
    }
}

type VoidPtr = *mut c_void;
type VoidPtrPtr = *mut *mut c_void;

/// Defines tables of functions, each with the name that it has in C: the functions whose arguments differ between
/// versions, and what the version has in addition. Functions with the same arguments in all versions are here.
macro_rules! function_tables {
    ($($(#[$doc:meta])* $name:ident = $c_name:literal {
        init: $init:tt, get_properties: $get_properties:tt, listen: $listen:tt, connect: $connect:tt, accept: $accept:tt,
        reg_mr: $reg_mr:tt, isend: $isend:tt, irecv: $irecv:tt,
        $($more:ident: $more_args:tt,)*
    })*) => {
        $(function_tables! {
            @table $(#[$doc])* $name = $c_name {
                init: $init, devices: (ndev: *mut c_int), get_properties: $get_properties, listen: $listen,
                connect: $connect, accept: $accept, reg_mr: $reg_mr,
                reg_mr_dma_buf: (comm: VoidPtr, data: VoidPtr, size: usize, kind: c_int, offset: u64, fd: c_int, mhandle: VoidPtrPtr),
                dereg_mr: (comm: VoidPtr, mhandle: VoidPtr), isend: $isend, irecv: $irecv,
                iflush: (recv_comm: VoidPtr, n: c_int, data: VoidPtrPtr, sizes: *mut c_int, mhandles: VoidPtrPtr, request: VoidPtrPtr),
                test: (request: VoidPtr, done: *mut c_int, sizes: *mut c_int), close_send: (send_comm: VoidPtr),
                close_recv: (recv_comm: VoidPtr), close_listen: (listen_comm: VoidPtr),
                $($more: $more_args,)*
            }
        })*
    };
    (@table $(#[$doc:meta])* $name:ident = $c_name:literal {
        $($field:ident: ($($arg:ident: $type:ty),*),)*
    }) => {
        #[doc = concat!("`", $c_name, "`.")]
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct $name {
            pub(crate) name: *const c_char,
            $(pub(crate) $field: Option<unsafe extern "C" fn($($arg: $type),*) -> NcclResult>,)*
        }

        // SAFETY: function pointers and the address of a constant string.
        unsafe impl Sync for $name {}

        #[cfg(test)]
        impl c_header::CStruct for $name {
            const C_NAME: &'static str = $c_name;
            fn fields() -> Vec<c_header::CField> {
                vec![
                    c_header::CField {
                        name: "name".to_owned(),
                        declaration: c_header::declare::<*const c_char>("name"),
                        offset_bytes: std::mem::offset_of!($name, name),
                    },
                    $(c_header::CField {
                        name: c_header::camel_case(stringify!($field)),
                        declaration: c_header::declare_function(
                            stringify!($field),
                            &[$(c_header::declare::<$type>(stringify!($arg))),*],
                        ),
                        offset_bytes: std::mem::offset_of!($name, $field),
                    },)*
                ]
            }
        }
    };
}

function_tables! {
    NetV6 = "ncclNet_v6_t" {
        init: (log: Logger),
        get_properties: (dev: c_int, props: *mut PropertiesV6),
        listen: (dev: c_int, handle: VoidPtr, listen_comm: VoidPtrPtr),
        connect: (dev: c_int, handle: VoidPtr, send_comm: VoidPtrPtr),
        accept: (listen_comm: VoidPtr, recv_comm: VoidPtrPtr),
        reg_mr: (comm: VoidPtr, data: VoidPtr, size: c_int, kind: c_int, mhandle: VoidPtrPtr),
        isend: (send_comm: VoidPtr, data: VoidPtr, size: c_int, tag: c_int, mhandle: VoidPtr, request: VoidPtrPtr),
        irecv: (recv_comm: VoidPtr, n: c_int, data: VoidPtrPtr, sizes: *mut c_int, tags: *mut c_int, mhandles: VoidPtrPtr, request: VoidPtrPtr),
    }
    NetV7 = "ncclNet_v7_t" {
        init: (log: Logger),
        get_properties: (dev: c_int, props: *mut PropertiesV7),
        listen: (dev: c_int, handle: VoidPtr, listen_comm: VoidPtrPtr),
        connect: (dev: c_int, handle: VoidPtr, send_comm: VoidPtrPtr, send_dev_comm: DeviceHandle),
        accept: (listen_comm: VoidPtr, recv_comm: VoidPtrPtr, recv_dev_comm: DeviceHandle),
        reg_mr: (comm: VoidPtr, data: VoidPtr, size: c_int, kind: c_int, mhandle: VoidPtrPtr),
        isend: (send_comm: VoidPtr, data: VoidPtr, size: c_int, tag: c_int, mhandle: VoidPtr, request: VoidPtrPtr),
        irecv: (recv_comm: VoidPtr, n: c_int, data: VoidPtrPtr, sizes: *mut c_int, tags: *mut c_int, mhandles: VoidPtrPtr, request: VoidPtrPtr),
        get_device_mr: (comm: VoidPtr, mhandle: VoidPtr, dptr_mhandle: VoidPtrPtr),
        irecv_consumed: (recv_comm: VoidPtr, n: c_int, request: VoidPtr),
    }
    NetV8 = "ncclNet_v8_t" {
        init: (log: Logger),
        get_properties: (dev: c_int, props: *mut PropertiesV8),
        listen: (dev: c_int, handle: VoidPtr, listen_comm: VoidPtrPtr),
        connect: (dev: c_int, handle: VoidPtr, send_comm: VoidPtrPtr, send_dev_comm: DeviceHandle),
        accept: (listen_comm: VoidPtr, recv_comm: VoidPtrPtr, recv_dev_comm: DeviceHandle),
        reg_mr: (comm: VoidPtr, data: VoidPtr, size: usize, kind: c_int, mhandle: VoidPtrPtr),
        isend: (send_comm: VoidPtr, data: VoidPtr, size: c_int, tag: c_int, mhandle: VoidPtr, request: VoidPtrPtr),
        irecv: (recv_comm: VoidPtr, n: c_int, data: VoidPtrPtr, sizes: *mut c_int, tags: *mut c_int, mhandles: VoidPtrPtr, request: VoidPtrPtr),
        get_device_mr: (comm: VoidPtr, mhandle: VoidPtr, dptr_mhandle: VoidPtrPtr),
        irecv_consumed: (recv_comm: VoidPtr, n: c_int, request: VoidPtr),
    }
    NetV9 = "ncclNet_v9_t" {
        init: (log: Logger),
        get_properties: (dev: c_int, props: *mut PropertiesV9),
        listen: (dev: c_int, handle: VoidPtr, listen_comm: VoidPtrPtr),
        connect: (dev: c_int, handle: VoidPtr, send_comm: VoidPtrPtr, send_dev_comm: DeviceHandle),
        accept: (listen_comm: VoidPtr, recv_comm: VoidPtrPtr, recv_dev_comm: DeviceHandle),
        reg_mr: (comm: VoidPtr, data: VoidPtr, size: usize, kind: c_int, mhandle: VoidPtrPtr),
        isend: (send_comm: VoidPtr, data: VoidPtr, size: usize, tag: c_int, mhandle: VoidPtr, request: VoidPtrPtr),
        irecv: (recv_comm: VoidPtr, n: c_int, data: VoidPtrPtr, sizes: *mut usize, tags: *mut c_int, mhandles: VoidPtrPtr, request: VoidPtrPtr),
        get_device_mr: (comm: VoidPtr, mhandle: VoidPtr, dptr_mhandle: VoidPtrPtr),
        irecv_consumed: (recv_comm: VoidPtr, n: c_int, request: VoidPtr),
        make_v_device: (d: *mut c_int, props: *mut VDeviceV9),
    }
    NetV10 = "ncclNet_v10_t" {
        init: (log: Logger, profile: Profiler),
        get_properties: (dev: c_int, props: *mut PropertiesV9),
        listen: (dev: c_int, handle: VoidPtr, listen_comm: VoidPtrPtr),
        connect: (dev: c_int, config: *mut CommConfig, handle: VoidPtr, send_comm: VoidPtrPtr, send_dev_comm: DeviceHandle),
        accept: (listen_comm: VoidPtr, recv_comm: VoidPtrPtr, recv_dev_comm: DeviceHandle),
        reg_mr: (comm: VoidPtr, data: VoidPtr, size: usize, kind: c_int, mhandle: VoidPtrPtr),
        isend: (send_comm: VoidPtr, data: VoidPtr, size: usize, tag: c_int, mhandle: VoidPtr, phandle: VoidPtr, request: VoidPtrPtr),
        irecv: (recv_comm: VoidPtr, n: c_int, data: VoidPtrPtr, sizes: *mut usize, tags: *mut c_int, mhandles: VoidPtrPtr, phandles: VoidPtrPtr, request: VoidPtrPtr),
        get_device_mr: (comm: VoidPtr, mhandle: VoidPtr, dptr_mhandle: VoidPtrPtr),
        irecv_consumed: (recv_comm: VoidPtr, n: c_int, request: VoidPtr),
        make_v_device: (d: *mut c_int, props: *mut VDeviceV9),
    }
    NetV11 = "ncclNet_v11_t" {
        init: (ctx: VoidPtrPtr, comm_id: u64, config: *mut CommConfig, log: Logger, profile: Profiler),
        get_properties: (dev: c_int, props: *mut PropertiesV11),
        listen: (ctx: VoidPtr, dev: c_int, handle: VoidPtr, listen_comm: VoidPtrPtr),
        connect: (ctx: VoidPtr, dev: c_int, handle: VoidPtr, send_comm: VoidPtrPtr, send_dev_comm: DeviceHandle),
        accept: (listen_comm: VoidPtr, recv_comm: VoidPtrPtr, recv_dev_comm: DeviceHandle),
        reg_mr: (comm: VoidPtr, data: VoidPtr, size: usize, kind: c_int, mhandle: VoidPtrPtr),
        isend: (send_comm: VoidPtr, data: VoidPtr, size: usize, tag: c_int, mhandle: VoidPtr, phandle: VoidPtr, request: VoidPtrPtr),
        irecv: (recv_comm: VoidPtr, n: c_int, data: VoidPtrPtr, sizes: *mut usize, tags: *mut c_int, mhandles: VoidPtrPtr, phandles: VoidPtrPtr, request: VoidPtrPtr),
        get_device_mr: (comm: VoidPtr, mhandle: VoidPtr, dptr_mhandle: VoidPtrPtr),
        irecv_consumed: (recv_comm: VoidPtr, n: c_int, request: VoidPtr),
        make_v_device: (d: *mut c_int, props: *mut VDeviceV9),
        finalize: (ctx: VoidPtr),
        set_net_attr: (ctx: VoidPtr, net_attr: VoidPtr),
    }
    NetV12 = "ncclNet_v12_t" {
        init: (ctx: VoidPtrPtr, comm_id: u64, config: *mut CommConfig, log: Logger, profile: Profiler),
        get_properties: (dev: c_int, props: *mut PropertiesV12),
        listen: (ctx: VoidPtr, dev: c_int, handle: VoidPtr, listen_comm: VoidPtrPtr),
        connect: (ctx: VoidPtr, dev: c_int, handle: VoidPtr, send_comm: VoidPtrPtr, send_dev_comm: DeviceHandle),
        accept: (listen_comm: VoidPtr, recv_comm: VoidPtrPtr, recv_dev_comm: DeviceHandle),
        reg_mr: (comm: VoidPtr, data: VoidPtr, size: usize, kind: c_int, mhandle: VoidPtrPtr),
        isend: (send_comm: VoidPtr, data: VoidPtr, size: usize, tag: c_int, mhandle: VoidPtr, phandle: VoidPtr, request: VoidPtrPtr),
        irecv: (recv_comm: VoidPtr, n: c_int, data: VoidPtrPtr, sizes: *mut usize, tags: *mut c_int, mhandles: VoidPtrPtr, phandles: VoidPtrPtr, request: VoidPtrPtr),
        get_device_mr: (comm: VoidPtr, mhandle: VoidPtr, dptr_mhandle: VoidPtrPtr),
        irecv_consumed: (recv_comm: VoidPtr, n: c_int, request: VoidPtr),
        make_v_device: (d: *mut c_int, props: *mut VDeviceV12),
        finalize: (ctx: VoidPtr),
        set_net_attr: (ctx: VoidPtr, net_attr: VoidPtr),
    }
}

// The layouts of NCCL's headers, on machines with 8-byte pointers.
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<PropertiesV6>() == 48 && offset_of!(PropertiesV6, max_recvs) == 44);
    assert!(size_of::<PropertiesV7>() == 56 && offset_of!(PropertiesV7, net_device_version) == 52);
    assert!(size_of::<PropertiesV8>() == 64 && offset_of!(PropertiesV8, reg_is_global) == 28);
    assert!(offset_of!(PropertiesV8, net_device_version) == 56);
    assert!(size_of::<PropertiesV9>() == 104 && offset_of!(PropertiesV9, v_props) == 64);
    assert!(offset_of!(PropertiesV9, max_p2p_bytes) == 88);
    assert!(size_of::<PropertiesV11>() == 112);
    assert!(offset_of!(PropertiesV11, max_multi_request_size) == 104);
    assert!(size_of::<PropertiesV12>() == 128 && offset_of!(PropertiesV12, max_p2p_bytes) == 104);
    assert!(
        offset_of!(PropertiesV12, rail_id) == 124 && offset_of!(PropertiesV12, plane_id) == 126
    );
    assert!(size_of::<NetV6>() == 8 * 17 && size_of::<NetV7>() == 8 * 19);
    assert!(size_of::<NetV8>() == 8 * 19 && size_of::<NetV9>() == 8 * 20);
    assert!(size_of::<NetV10>() == 8 * 20 && size_of::<NetV11>() == 8 * 22);
    assert!(size_of::<NetV12>() == 8 * 22 && offset_of!(NetV12, set_net_attr) == 8 * 21);
};
