//! Devices, contexts, and what they say of themselves.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use verbs_abi::*;

use super::*;
use crate::context::Context;
use crate::device;
use crate::identity::Identity;
use crate::nic::{self, Nic, NicError};
use crate::strings;
use crate::sysfs::UVERBS_NAME;
use shm::fabric::Peer;

/// The one device. Programs read it; nobody writes.
struct Device(verbs_device);
// SAFETY: written before it is shared, then only read.
unsafe impl Sync for Device {}
// SAFETY: as above; its pointers are NULL.
unsafe impl Send for Device {}

pub(super) fn the_device() -> *mut ibv_device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let mut d = verbs_device::zeroed();
        d.device.node_type = IBV_NODE_CA;
        d.device.transport_type = IBV_TRANSPORT_IB;
        // Where the environment asks for nonsense there is no list and no context either: the NIC has said so.
        let identity = Identity::from_env().unwrap_or_default();
        let name = identity.name();
        set_text(&mut d.device.name, name);
        set_text(&mut d.device.dev_name, UVERBS_NAME);
        set_text(
            &mut d.device.dev_path,
            "/sys/class/infiniband_verbs/uverbs0",
        );
        set_text(
            &mut d.device.ibdev_path,
            &format!("/sys/class/infiniband/{name}"),
        );
        Device(d)
    });
    std::ptr::from_ref(&device.0.device).cast_mut()
}

fn set_text(field: &mut [c_char], text: &str) {
    for (c, b) in field.iter_mut().zip(text.bytes()) {
        *c = b.cast_signed();
    }
}

pub(super) fn errno_of_nic(e: &NicError) -> c_int {
    match e {
        NicError::Fabric(shm::fabric::FabricError::Io { source, .. })
        | NicError::Engine(source) => errno_of(source),
        NicError::Fabric(shm::fabric::FabricError::Foreign { .. }) => libc::EACCES,
        NicError::Fabric(shm::fabric::FabricError::Version { .. }) => libc::EPROTONOSUPPORT,
        NicError::Fabric(shm::fabric::FabricError::Full { .. }) => libc::EUSERS,
        NicError::Fabric(
            shm::fabric::FabricError::BadName(_) | shm::fabric::FabricError::BadFabric(_),
        ) => libc::EINVAL,
        NicError::Port { errno, .. } => *errno,
        NicError::Device(_) => libc::EINVAL,
    }
}

pub(super) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if let Err(e) = nic::get() {
        set_errno(errno_of_nic(&e));
        return std::ptr::null_mut();
    }
    if !count.is_null() {
        // SAFETY: not NULL, so a place for the count.
        unsafe { *count = 1 };
    }
    Box::into_raw(Box::new([the_device(), std::ptr::null_mut()])).cast()
}

pub(super) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: made by `ibv_get_device_list` (contract).
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
    }
}

pub(super) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return std::ptr::null();
    }
    // SAFETY: a device of ours; its name ends with a zero byte.
    unsafe { (&raw const (*device).name).cast() }
}

pub(super) unsafe extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    u64::from_ne_bytes(device::node_guid())
}

pub(super) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let fd = nic::get()
        .map_err(|e| errno_of_nic(&e))
        .and_then(Nic::cmd_fd);
    let made = fd.and_then(|fd| new_context(device, fd, None));
    or_null(made.map(hand_out))
}

/// Makes the handle of a context.
pub(super) fn hand_out(context: &'static Context) -> *mut ibv_context {
    // SAFETY: a field of it; nobody else looks at the context yet.
    let c = unsafe { &raw mut (*context.abi.get()).context };
    live::hand_out_leaked(context, c)
}

/// Opens the device; `cmd_fd` is what the program sees as the context's descriptor. An imported one is that of `home`.
pub(super) fn new_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    home: Option<Arc<Peer>>,
) -> Result<&'static Context, c_int> {
    if device != the_device() {
        return Err(libc::ENODEV);
    }
    let nic = nic::get().map_err(|e| errno_of_nic(&e))?;
    let mut abi = verbs_context::zeroed();
    abi.query_port = Some(query_port_ex);
    abi.query_device_ex = Some(device_ex::query_device_ex);
    abi.query_rt_values = Some(device_ex::query_rt_values);
    abi.create_cq_ex = Some(cq_ex::create_cq_ex);
    abi.create_qp_ex = Some(qp_ex::create_qp_ex);
    abi.create_srq_ex = Some(objects::create_srq_ex);
    abi.post_srq_ops = Some(srq_ops::post_srq_ops);
    abi.modify_cq = Some(objects::modify_cq);
    abi.open_xrcd = Some(xrc::open_xrcd);
    abi.close_xrcd = Some(xrc::close_xrcd);
    abi.get_srq_num = Some(xrc::get_srq_num);
    abi.open_qp = Some(xrc::open_qp);
    abi.alloc_td = Some(domain::alloc_td);
    abi.dealloc_td = Some(domain::dealloc_td);
    abi.alloc_parent_domain = Some(domain::alloc_parent_domain);
    abi.alloc_dm = Some(dm::alloc_dm);
    abi.free_dm = Some(dm::free_dm);
    abi.reg_dm_mr = Some(dm::reg_dm_mr);
    abi.advise_mr = Some(mr::advise_mr);
    abi.alloc_null_mr = Some(mr::alloc_null_mr);
    abi.ibv_create_flow = Some(flow::create_flow);
    abi.ibv_destroy_flow = Some(flow::destroy_flow);
    abi.create_wq = Some(wq::create_wq);
    abi.modify_wq = Some(wq::modify_wq);
    abi.destroy_wq = Some(wq::destroy_wq);
    abi.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    abi.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    abi.sz = size_of::<verbs_context>();
    let c = &mut abi.context;
    c.device = device;
    c.ops.poll_cq = Some(fast::poll_cq);
    c.ops.req_notify_cq = Some(fast::req_notify_cq);
    c.ops.post_send = Some(fast::post_send);
    c.ops.post_recv = Some(fast::post_recv);
    c.ops.alloc_mw = Some(mw::alloc_mw);
    c.ops.bind_mw = Some(mw::bind_mw);
    c.ops.dealloc_mw = Some(mw::dealloc_mw);
    c.ops.post_srq_recv = Some(fast::post_srq_recv);
    c.cmd_fd = cmd_fd;
    c.num_comp_vectors = 1;
    // "The context is preceded by a verbs_context": verbs.h, `verbs_get_ctx`.
    c.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    let context = Context::new(nic, abi, home).map_err(|e| errno_of(&e))?;
    let context: &'static Context = Box::leak(Box::new(context));
    // SAFETY: a field of it; nobody else has seen the context yet.
    unsafe { (*context.abi.get()).context.async_fd = context.async_fd() };
    Ok(context)
}

/// The context behind a handle.
///
/// # Safety
/// None: contexts are never freed, and a handle that is none is told by [`live`].
pub(super) unsafe fn context_of(handle: *mut ibv_context) -> Option<&'static Context> {
    if !live::is_live::<Context, _>(handle) {
        return None;
    }
    // SAFETY: contract of this function, and live.
    Some(unsafe { context_behind(handle) })
}

/// The context behind a handle that is or was one.
///
/// # Safety
/// `handle` was made from a [`Context`].
unsafe fn context_behind(handle: *mut ibv_context) -> &'static Context {
    let before = std::mem::offset_of!(verbs_context, context);
    // SAFETY: the handle is the field `context` of the `verbs_context` at the start of a leaked `Context`.
    unsafe { &*handle.byte_sub(before).cast::<Context>() }
}

/// The NIC behind a handle, to ask it about device and port, which a forked child may do with its parent's.
pub(super) fn nic_of(handle: *mut ibv_context) -> Result<&'static Nic, c_int> {
    if !live::is_known::<Context, _>(handle) {
        return Err(libc::EINVAL);
    }
    // SAFETY: known, so it was made from a context.
    Ok(unsafe { context_behind(handle) }.nic)
}

pub(super) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    if !live::take_back_leaked::<Context, _>(context) {
        return libc::EINVAL;
    }
    // SAFETY: it was live until now, and contexts are never freed.
    unsafe {
        context_behind(context).close();
        import::close(context_behind(context), (*context).cmd_fd);
    }
    0
}

pub(super) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: a handle of ours.
    let Some(c) = (unsafe { context_of(context) }).filter(|_| !event.is_null()) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    match c.next_event() {
        Ok(e) => {
            // SAFETY: a place for the event; the element's handle is of an object that counts it.
            unsafe {
                *event = e;
                objects::count_async_event(&e, 1);
            }
            0
        }
        Err(e) => {
            set_errno(errno_of(&e));
            -1
        }
    }
}

pub(super) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    if !event.is_null() {
        // SAFETY: an event that was got from us and whose object still exists (`ibv_get_async_event(3)`).
        unsafe { objects::count_async_event(&*event, -1) };
    }
}

pub(super) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    or_errno(nic_of(context).and_then(|nic| {
        // SAFETY: NULL or a place for the attributes.
        let attr = unsafe { attr.as_mut() }.ok_or(libc::EINVAL)?;
        *attr = device::device_attr(&nic.identity, nic.port.link_layer);
        Ok(())
    }))
}

pub(super) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    /// What the symbol may write: the structure as it was before its last field.
    const COMPAT: usize = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: the program's place has at least that many bytes.
    unsafe { query_port_ex(context, port_num, attr, COMPAT) }
}

unsafe extern "C" fn query_port_ex(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    let _hold_off = cancellation::HoldOff::new();
    or_errno(nic_of(context).and_then(|nic| {
        if port_num != device::PORT_NUM || attr.is_null() {
            return Err(libc::EINVAL);
        }
        let all = nic.port.attr();
        let n = len.min(size_of::<ibv_port_attr>());
        // SAFETY: the place has `len` bytes (contract); the attributes are plain data.
        unsafe {
            attr.cast::<u8>()
                .copy_from_nonoverlapping((&raw const all).cast(), n);
        }
        Ok(())
    }))
}

pub(super) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let found = nic_of(context).ok().and_then(|nic| {
        if port_num != device::PORT_NUM || gid.is_null() {
            return None;
        }
        nic.port.gid(u32::try_from(index).ok()?)
    });
    match found {
        Some(raw) => {
            // SAFETY: a place for the GID.
            unsafe { (*gid).raw = raw };
            0
        }
        None => {
            set_errno(libc::EINVAL);
            -1
        }
    }
}

pub(super) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let found = nic_of(context).ok().and_then(|nic| {
        if port_num != device::PORT_NUM || pkey.is_null() {
            return None;
        }
        nic.port.pkey(u32::try_from(index).ok()?)
    });
    match found {
        Some(value) => {
            // SAFETY: a place for the P_Key, in network order.
            unsafe { *pkey = value.to_be() };
            0
        }
        None => {
            set_errno(libc::EINVAL);
            -1
        }
    }
}

pub(super) unsafe extern "C" fn ibv_fork_init() -> c_int {
    // Registered memory is not pinned, so there is nothing that a fork could break.
    0
}

fn text(s: &'static CStr) -> *const c_char {
    s.as_ptr()
}

pub(super) unsafe extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    text(strings::wc_status_str(status))
}

pub(super) unsafe extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    text(strings::event_type_str(event))
}

pub(super) unsafe extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    text(strings::node_type_str(node_type))
}

pub(super) unsafe extern "C" fn ibv_port_state_str(state: ibv_port_state) -> *const c_char {
    text(strings::port_state_str(state))
}

pub(super) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    let made = nic_of(context).and_then(|nic| {
        if wc.is_null() || attr.is_null() {
            return Err(libc::EINVAL);
        }
        let mut bytes = [0u8; 40];
        if !grh.is_null() {
            // SAFETY: a GRH is 40 bytes.
            bytes = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
        }
        // SAFETY: checked for NULL.
        device::init_ah_from_wc(&nic.port, port_num, unsafe { &*wc }, &bytes)
    });
    match made {
        Ok(a) => {
            // SAFETY: checked for NULL.
            unsafe { *attr = a };
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

pub(super) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::zeroed();
    if pd.is_null() {
        return or_null(Err(libc::EINVAL));
    }
    // SAFETY: a handle of ours, and the program's arguments passed on.
    unsafe {
        if ibv_init_ah_from_wc((*pd).context, port_num, wc, grh, &raw mut attr) != 0 {
            return std::ptr::null_mut();
        }
        objects::ibv_create_ah(pd, &raw mut attr)
    }
}
