//! Devices and ports: each host and each DPU has one device with one port.

use std::ffi::{c_char, c_int};

use nicmodel::profile::CorePlace;
use verbs_abi::*;

use super::data_path;
use super::handle::{ObjectHandle, pointer_or_set_errno, set_errno, with_object, zero_or_errno};
use crate::machine::{gid_of_machine, guid_of_machine, lid_of_machine};
use crate::post_and_poll::{MAX_READ_SGE, MAX_SGE};
use crate::simulation::Simulation;
use crate::threads::with_simulation;

/// Largest number of work requests in a queue.
pub(super) const MAX_WR_PER_QUEUE: u32 = 1 << 15;
/// A completion counts the slots of a send queue that it frees in 16 bits.
const _: () = assert!(MAX_WR_PER_QUEUE <= u16::MAX as u32);
/// Largest number of entries in a CQ.
pub(super) const MAX_CQE_PER_CQ: c_int = 1 << 22;
/// Largest number of queue pairs: their numbers have 24 bits.
pub(super) const MAX_QP: usize = (1 << 24) - 1;

pub(super) unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut ibv_device {
    let listed = with_simulation(|world| {
        let count = u32::try_from(world.machines.len()).unwrap_or(0);
        let devices = (0..count)
            .map(|index| ObjectHandle::into_pointer(device_of_machine(world, index), world, index));
        devices.chain([std::ptr::null_mut()]).collect::<Vec<_>>()
    });
    let list = listed.unwrap_or_else(|| vec![std::ptr::null_mut()]);
    // SAFETY: NULL or a place for the number.
    if let Some(num) = unsafe { num.as_mut() } {
        *num = c_int::try_from(list.len() - 1).unwrap_or(c_int::MAX);
    }
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// Returns the device of a host, named `sim3`, or of a DPU, named `sim3_dpu`.
fn device_of_machine(world: &Simulation, machine: u32) -> ibv_device {
    let mut device = ibv_device::zeroed();
    device.node_type = IBV_NODE_CA;
    device.transport_type = IBV_TRANSPORT_IB;
    let name = match world.machines.get(machine as usize) {
        Some(dpu) if dpu.place == CorePlace::Dpu => format!("sim{}_dpu", dpu.nic_index),
        _ => format!("sim{machine}"),
    };
    for (place, byte) in device.name.iter_mut().zip(name.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    device
}

/// Frees the list and its devices; a context has its own copy of its device.
pub(super) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    // SAFETY: `ibv_get_device_list` made the list: devices, followed by NULL.
    unsafe {
        let mut len = 0;
        while !(*list.add(len)).is_null() {
            drop(ObjectHandle::take_back_from_c(*list.add(len)));
            len += 1;
        }
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            list,
            len + 1,
        )));
    }
}

pub(super) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device of this provider.
    unsafe { (*device).name.as_ptr() }
}

pub(super) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: a device of this provider.
    unsafe { with_object(device, |_, machine| Ok(guid_of_machine(machine).to_be())) }.unwrap_or(0)
}

pub(super) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: a device of this provider.
    let opened = unsafe {
        with_object(device, |world, machine| {
            let mut context = ibv_context::zeroed();
            context.device =
                ObjectHandle::into_pointer(device_of_machine(world, machine), world, machine);
            context.ops.post_send = Some(data_path::post_send);
            context.ops.post_recv = Some(data_path::post_recv);
            context.ops.post_srq_recv = Some(data_path::post_srq_recv);
            context.ops.poll_cq = Some(data_path::poll_cq);
            context.ops.req_notify_cq = Some(data_path::req_notify_cq);
            context.cmd_fd = -1;
            context.async_fd = -1;
            context.num_comp_vectors = 1;
            Ok(ObjectHandle::into_pointer(context, world, machine))
        })
    };
    pointer_or_set_errno(opened)
}

pub(super) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    if context.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a context of this provider, closed once.
    unsafe {
        let context = ObjectHandle::take_back_from_c(context);
        drop(ObjectHandle::take_back_from_c(context.c_struct.device));
    }
    0
}

pub(super) unsafe extern "C" fn ibv_get_async_event(
    _: *mut ibv_context,
    _: *mut ibv_async_event,
) -> c_int {
    // Asynchronous events are not simulated.
    set_errno(libc::EOPNOTSUPP);
    -1
}

pub(super) unsafe extern "C" fn ibv_ack_async_event(_: *mut ibv_async_event) {}

pub(super) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: a context of this provider, and a place for the attributes.
    let (queried, place) = unsafe {
        (
            with_object(context, |world, machine| {
                Ok(device_attributes(world, machine))
            }),
            attr.as_mut(),
        )
    };
    match (queried, place) {
        (Ok(attributes), Some(place)) => {
            *place = attributes;
            0
        }
        (Err(errno), _) => errno,
        (_, None) => libc::EINVAL,
    }
}

fn device_attributes(world: &Simulation, machine: u32) -> ibv_device_attr {
    let mut attr = ibv_device_attr::zeroed();
    let most = |count: u32| c_int::try_from(count).unwrap_or(c_int::MAX);
    attr.node_guid = guid_of_machine(machine).to_be();
    attr.sys_image_guid = attr.node_guid;
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = 4096;
    attr.max_qp = c_int::try_from(MAX_QP).unwrap_or(c_int::MAX);
    attr.max_qp_wr = most(MAX_WR_PER_QUEUE);
    attr.max_sge = c_int::try_from(MAX_SGE).unwrap_or(1);
    attr.max_sge_rd = MAX_READ_SGE.cast_signed();
    attr.max_cq = c_int::MAX;
    attr.max_cqe = MAX_CQE_PER_CQ;
    attr.max_mr = c_int::MAX;
    attr.max_srq = c_int::MAX;
    attr.max_srq_wr = most(MAX_WR_PER_QUEUE);
    attr.max_srq_sge = attr.max_sge;
    attr.max_pd = c_int::MAX;
    attr.max_ah = c_int::MAX;
    // The number of outstanding READs and atomics of a queue pair is not limited.
    attr.max_qp_rd_atom = 128;
    attr.max_res_rd_atom = c_int::MAX;
    attr.max_qp_init_rd_atom = 128;
    attr.atomic_cap = if world.nic_parameters.has_atomics {
        IBV_ATOMIC_HCA
    } else {
        IBV_ATOMIC_NONE
    };
    attr.max_pkeys = 1;
    attr.phys_port_cnt = 1;
    attr
}

/// Queries port 1, which represents all ports of the machine's NIC.
pub(super) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: a context of this provider, and a place for the attributes.
    let (queried, place) = unsafe {
        let queried = with_object(context, |world, machine| {
            Ok((world.nic_parameters.mtu, machine))
        });
        (queried, attr.as_mut())
    };
    let (Ok((mtu, machine)), Some(place), 1) = (queried, place, port_num) else {
        return libc::EINVAL;
    };
    let mut port = ibv_port_attr::zeroed();
    port.state = IBV_PORT_ACTIVE;
    port.max_mtu = match mtu {
        ..512 => IBV_MTU_256,
        512..1024 => IBV_MTU_512,
        1024..2048 => IBV_MTU_1024,
        2048..4096 => IBV_MTU_2048,
        4096.. => IBV_MTU_4096,
    };
    port.active_mtu = port.max_mtu;
    port.gid_tbl_len = 1;
    port.max_msg_sz = 1 << 31;
    port.pkey_tbl_len = 1;
    port.lid = lid_of_machine(machine);
    port.sm_lid = 1;
    port.link_layer = IBV_LINK_LAYER_INFINIBAND;
    port.active_width = 2;
    port.active_speed = 16;
    *place = port;
    0
}

pub(super) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: a context of this provider, and a place for the GID.
    let (queried, place) =
        unsafe { (with_object(context, |_, machine| Ok(machine)), gid.as_mut()) };
    let (Ok(machine), Some(place), 1, 0) = (queried, place, port_num, index) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    place.raw = gid_of_machine(machine);
    0
}

pub(super) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: a context of this provider, and a place for the P_Key.
    let (queried, place) = unsafe { (with_object(context, |_, _| Ok(())), pkey.as_mut()) };
    let (Ok(()), Some(place), 1, 0) = (queried, place, port_num, index) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    *place = 0xffff;
    0
}

pub(super) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let mut pd = ibv_pd::zeroed();
    pd.context = context;
    // SAFETY: a context of this provider.
    pointer_or_set_errno(unsafe {
        with_object(context, |world, machine| {
            Ok(ObjectHandle::into_pointer(pd, world, machine))
        })
    })
}

pub(super) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    if pd.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a protection domain of this provider, released once.
    drop(unsafe { ObjectHandle::take_back_from_c(pd) });
    zero_or_errno(Ok(()))
}
