//! NCCL's network plugin interface, versions 6 to 12, as Rust types.
//!
//! Source: the headers of NCCL's example plugin (`plugins/net/example/nccl/net_v6.h` to `net_v12.h`, NCCL 2.30). Sizes and
//! offsets are checked below; `tests/driver` is a C program against the same layouts.

use std::ffi::{c_char, c_int, c_ulong, c_void};

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

/// `ncclNetVDeviceProps_t` with room for `N` devices: 4 up to version 11, then 8.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct VDevice<const N: usize> {
    /// The number of physical devices of this virtual device.
    pub(crate) ndevs: c_int,
    /// The numbers of the physical devices.
    pub(crate) devs: [c_int; N],
}

/// `ncclNetCommConfig_v*_t`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CommConfig {
    /// The traffic class; -1 lets the plugin choose.
    pub(crate) traffic_class: c_int,
}

macro_rules! properties {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* })*
    };
}

properties! {
    /// `ncclNetProperties_v6_t`.
    PropertiesV6 {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, speed: c_int, port: c_int,
        latency: f32, max_comms: c_int, max_recvs: c_int,
    }
    /// `ncclNetProperties_v7_t`.
    PropertiesV7 {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, speed: c_int, port: c_int,
        latency: f32, max_comms: c_int, max_recvs: c_int, net_device_type: c_int, net_device_version: c_int,
    }
    /// `ncclNetProperties_v8_t`.
    PropertiesV8 {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, reg_is_global: c_int,
        speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int, net_device_type: c_int,
        net_device_version: c_int,
    }
    /// `ncclNetProperties_v9_t`, also used by version 10.
    PropertiesV9 {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, reg_is_global: c_int,
        force_flush: c_int, speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int,
        net_device_type: c_int, net_device_version: c_int, v_props: VDevice<4>, max_p2p_bytes: usize,
        max_coll_bytes: usize,
    }
    /// `ncclNetProperties_v11_t`.
    PropertiesV11 {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, reg_is_global: c_int,
        force_flush: c_int, speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int,
        net_device_type: c_int, net_device_version: c_int, v_props: VDevice<4>, max_p2p_bytes: usize,
        max_coll_bytes: usize, max_multi_request_size: c_int,
    }
    /// `ncclNetProperties_v12_t`.
    PropertiesV12 {
        name: *const c_char, pci_path: *const c_char, guid: u64, ptr_support: c_int, reg_is_global: c_int,
        force_flush: c_int, speed: c_int, port: c_int, latency: f32, max_comms: c_int, max_recvs: c_int,
        net_device_type: c_int, net_device_version: c_int, v_props: VDevice<8>, max_p2p_bytes: usize,
        max_coll_bytes: usize, max_multi_request_size: c_int, rail_id: i16, plane_id: i16,
    }
}

type P = *mut c_void;
type Pp = *mut *mut c_void;
type R = NcclResult;

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: ($($arg:ty),*),)* })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct $name {
            pub(crate) name: *const c_char,
            $(pub(crate) $field: Option<unsafe extern "C" fn($($arg),*) -> R>,)*
        }
        // SAFETY: function pointers and the address of a constant string.
        unsafe impl Sync for $name {})*
    };
}

functions! {
    /// `ncclNet_v6_t`.
    NetV6 {
        init: (Logger), devices: (*mut c_int), get_properties: (c_int, *mut PropertiesV6), listen: (c_int, P, Pp),
        connect: (c_int, P, Pp), accept: (P, Pp), reg_mr: (P, P, c_int, c_int, Pp),
        reg_mr_dma_buf: (P, P, usize, c_int, u64, c_int, Pp), dereg_mr: (P, P),
        isend: (P, P, c_int, c_int, P, Pp), irecv: (P, c_int, Pp, *mut c_int, *mut c_int, Pp, Pp),
        iflush: (P, c_int, Pp, *mut c_int, Pp, Pp), test: (P, *mut c_int, *mut c_int), close_send: (P),
        close_recv: (P), close_listen: (P),
    }
    /// `ncclNet_v7_t`.
    NetV7 {
        init: (Logger), devices: (*mut c_int), get_properties: (c_int, *mut PropertiesV7), listen: (c_int, P, Pp),
        connect: (c_int, P, Pp, DeviceHandle), accept: (P, Pp, DeviceHandle), reg_mr: (P, P, c_int, c_int, Pp),
        reg_mr_dma_buf: (P, P, usize, c_int, u64, c_int, Pp), dereg_mr: (P, P),
        isend: (P, P, c_int, c_int, P, Pp), irecv: (P, c_int, Pp, *mut c_int, *mut c_int, Pp, Pp),
        iflush: (P, c_int, Pp, *mut c_int, Pp, Pp), test: (P, *mut c_int, *mut c_int), close_send: (P),
        close_recv: (P), close_listen: (P), get_device_mr: (P, P, Pp), irecv_consumed: (P, c_int, P),
    }
    /// `ncclNet_v8_t`.
    NetV8 {
        init: (Logger), devices: (*mut c_int), get_properties: (c_int, *mut PropertiesV8), listen: (c_int, P, Pp),
        connect: (c_int, P, Pp, DeviceHandle), accept: (P, Pp, DeviceHandle), reg_mr: (P, P, usize, c_int, Pp),
        reg_mr_dma_buf: (P, P, usize, c_int, u64, c_int, Pp), dereg_mr: (P, P),
        isend: (P, P, c_int, c_int, P, Pp), irecv: (P, c_int, Pp, *mut c_int, *mut c_int, Pp, Pp),
        iflush: (P, c_int, Pp, *mut c_int, Pp, Pp), test: (P, *mut c_int, *mut c_int), close_send: (P),
        close_recv: (P), close_listen: (P), get_device_mr: (P, P, Pp), irecv_consumed: (P, c_int, P),
    }
    /// `ncclNet_v9_t`.
    NetV9 {
        init: (Logger), devices: (*mut c_int), get_properties: (c_int, *mut PropertiesV9), listen: (c_int, P, Pp),
        connect: (c_int, P, Pp, DeviceHandle), accept: (P, Pp, DeviceHandle), reg_mr: (P, P, usize, c_int, Pp),
        reg_mr_dma_buf: (P, P, usize, c_int, u64, c_int, Pp), dereg_mr: (P, P),
        isend: (P, P, usize, c_int, P, Pp), irecv: (P, c_int, Pp, *mut usize, *mut c_int, Pp, Pp),
        iflush: (P, c_int, Pp, *mut c_int, Pp, Pp), test: (P, *mut c_int, *mut c_int), close_send: (P),
        close_recv: (P), close_listen: (P), get_device_mr: (P, P, Pp), irecv_consumed: (P, c_int, P),
        make_v_device: (*mut c_int, *mut VDevice<4>),
    }
    /// `ncclNet_v10_t`.
    NetV10 {
        init: (Logger, Profiler), devices: (*mut c_int), get_properties: (c_int, *mut PropertiesV9),
        listen: (c_int, P, Pp), connect: (c_int, *mut CommConfig, P, Pp, DeviceHandle),
        accept: (P, Pp, DeviceHandle), reg_mr: (P, P, usize, c_int, Pp),
        reg_mr_dma_buf: (P, P, usize, c_int, u64, c_int, Pp), dereg_mr: (P, P),
        isend: (P, P, usize, c_int, P, P, Pp), irecv: (P, c_int, Pp, *mut usize, *mut c_int, Pp, Pp, Pp),
        iflush: (P, c_int, Pp, *mut c_int, Pp, Pp), test: (P, *mut c_int, *mut c_int), close_send: (P),
        close_recv: (P), close_listen: (P), get_device_mr: (P, P, Pp), irecv_consumed: (P, c_int, P),
        make_v_device: (*mut c_int, *mut VDevice<4>),
    }
    /// `ncclNet_v11_t`.
    NetV11 {
        init: (Pp, u64, *mut CommConfig, Logger, Profiler), devices: (*mut c_int),
        get_properties: (c_int, *mut PropertiesV11), listen: (P, c_int, P, Pp),
        connect: (P, c_int, P, Pp, DeviceHandle), accept: (P, Pp, DeviceHandle),
        reg_mr: (P, P, usize, c_int, Pp), reg_mr_dma_buf: (P, P, usize, c_int, u64, c_int, Pp), dereg_mr: (P, P),
        isend: (P, P, usize, c_int, P, P, Pp), irecv: (P, c_int, Pp, *mut usize, *mut c_int, Pp, Pp, Pp),
        iflush: (P, c_int, Pp, *mut c_int, Pp, Pp), test: (P, *mut c_int, *mut c_int), close_send: (P),
        close_recv: (P), close_listen: (P), get_device_mr: (P, P, Pp), irecv_consumed: (P, c_int, P),
        make_v_device: (*mut c_int, *mut VDevice<4>), finalize: (P), set_net_attr: (P, P),
    }
    /// `ncclNet_v12_t`.
    NetV12 {
        init: (Pp, u64, *mut CommConfig, Logger, Profiler), devices: (*mut c_int),
        get_properties: (c_int, *mut PropertiesV12), listen: (P, c_int, P, Pp),
        connect: (P, c_int, P, Pp, DeviceHandle), accept: (P, Pp, DeviceHandle),
        reg_mr: (P, P, usize, c_int, Pp), reg_mr_dma_buf: (P, P, usize, c_int, u64, c_int, Pp), dereg_mr: (P, P),
        isend: (P, P, usize, c_int, P, P, Pp), irecv: (P, c_int, Pp, *mut usize, *mut c_int, Pp, Pp, Pp),
        iflush: (P, c_int, Pp, *mut c_int, Pp, Pp), test: (P, *mut c_int, *mut c_int), close_send: (P),
        close_recv: (P), close_listen: (P), get_device_mr: (P, P, Pp), irecv_consumed: (P, c_int, P),
        make_v_device: (*mut c_int, *mut VDevice<8>), finalize: (P), set_net_attr: (P, P),
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
