//! The functions of libibumad (`rdma-core:libibumad/umad.h`, and its man pages). Those that fail return a negative
//! error number unless they say otherwise.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use rdma_netlink::{Device, sysfs};

use crate::lookup::{self, PortNotFound};
use crate::port::{self, ReceiveFailure, UMAD_HEADER_BYTES};
use crate::{devices, mad_names};

pub(crate) const NAME_BYTES: usize = 20;
const MAX_PORTS: usize = 10;

/// `umad_port_t`.
#[repr(C)]
pub(crate) struct UmadPort {
    ca_name: [c_char; NAME_BYTES],
    portnum: c_int,
    base_lid: c_uint,
    lmc: c_uint,
    sm_lid: c_uint,
    sm_sl: c_uint,
    state: c_uint,
    phys_state: c_uint,
    rate: c_uint,
    capmask: u32,
    gid_prefix: u64,
    port_guid: u64,
    pkeys_size: c_uint,
    pkeys: *mut u16,
    link_layer: [c_char; NAME_BYTES],
}

/// `umad_ca_t`.
#[repr(C)]
pub(crate) struct UmadCa {
    ca_name: [c_char; NAME_BYTES],
    node_type: c_uint,
    numports: c_int,
    fw_ver: [c_char; 20],
    ca_type: [c_char; 40],
    hw_ver: [c_char; 20],
    node_guid: u64,
    system_guid: u64,
    ports: [*mut UmadPort; MAX_PORTS],
}

/// `struct umad_device_node`.
#[repr(C)]
pub(crate) struct DeviceNode {
    next: *mut DeviceNode,
    ca_name: *const c_char,
}

/// `struct umad_reg_attr`.
#[repr(C)]
pub(crate) struct RegAttr {
    mgmt_class: u8,
    mgmt_class_version: u8,
    flags: u32,
    method_mask: [u64; 2],
    oui: u32,
    rmpp_version: u8,
}

pub(crate) fn set_errno_and_negate(errno: c_int) -> c_int {
    // SAFETY: the pointer is to this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    -errno
}

/// Returns the low 16 bits of an argument, the low byte first.
fn low_16_bits_little_endian(value: c_int) -> [u8; 2] {
    let [low, high, ..] = value.to_le_bytes();
    [low, high]
}

/// Stores as much of `text` as fits with a terminating zero.
pub(crate) fn store_c_string(to: &mut [c_char], text: &str) {
    to.fill(0);
    let room = to.len().saturating_sub(1);
    for (to, from) in to.iter_mut().take(room).zip(text.bytes()) {
        *to = from.cast_signed();
    }
}

/// Returns a string of the program, or `None` for NULL.
///
/// # Safety
/// `text` is NULL or a string.
pub(crate) unsafe fn c_string_or_none<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: contract of this function.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// `umad_init(3)`.
pub(crate) extern "C" fn umad_init() -> c_int {
    0
}

/// `umad_done(3)`.
pub(crate) extern "C" fn umad_done() -> c_int {
    0
}

/// `umad_get_cas_names(3)`. Returns the number of names.
///
/// # Safety
/// `names` has room for `max` names.
pub(crate) unsafe extern "C" fn umad_get_cas_names(
    names: *mut [c_char; NAME_BYTES],
    max: c_int,
) -> c_int {
    let max = usize::try_from(max).unwrap_or(0);
    let mut count = 0;
    for (at, device) in devices::all_devices().iter().take(max).enumerate() {
        // SAFETY: contract of this function.
        store_c_string(unsafe { &mut *names.add(at) }, &device.name);
        count += 1;
    }
    count
}

/// `umad_get_ca_portguids(3)`. Returns the number of stored GUIDs; that of port 0, which only switches have, is 0.
///
/// # Safety
/// `guids` is NULL or has room for `max` GUIDs; `name` is NULL or a string.
pub(crate) unsafe extern "C" fn umad_get_ca_portguids(
    name: *const c_char,
    guids: *mut u64,
    max: c_int,
) -> c_int {
    // SAFETY: contract of this function.
    let Some(device) = (unsafe { lookup::find_device_or_default(c_string_or_none(name)) }) else {
        set_errno_and_negate(libc::ENOENT);
        return -1;
    };
    if guids.is_null() {
        return 0;
    }
    let count = device.ports.len() + 1;
    if usize::try_from(max).unwrap_or(0) < count {
        return set_errno_and_negate(libc::ENOMEM);
    }
    for (at, number) in (0..count).zip(0..=u8::MAX) {
        let guid = match number {
            0 => 0,
            _ => devices::port_guid(&device, number),
        };
        // SAFETY: contract of this function.
        unsafe { *guids.add(at) = guid.to_be() };
    }
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// Fills in the attributes of a port.
fn fill_port(to: &mut UmadPort, device: &Device, number: u8, info: &rdma_netlink::Port) {
    let folder = devices::port_folder(device, number);
    let subnet = info.subnet_attributes.as_ref();
    let text = |file| sysfs::read_trimmed(&folder.join(file)).unwrap_or_default();
    store_c_string(&mut to.ca_name, &device.name);
    to.portnum = number.into();
    to.base_lid = subnet.and_then(|subnet| subnet.lid).unwrap_or(0).into();
    to.lmc = subnet
        .and_then(|subnet| subnet.lid_mask_control)
        .unwrap_or(0)
        .into();
    to.sm_lid = subnet.and_then(|subnet| subnet.sm_lid).unwrap_or(0).into();
    to.sm_sl = text("sm_sl").parse().unwrap_or(0);
    to.state = info.state.unwrap_or(0).into();
    to.phys_state = info.physical_state.unwrap_or(0).into();
    let rate = text("rate");
    to.rate = rate
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    let capability_mask = sysfs::read_hexadecimal(&folder.join("cap_mask")).unwrap_or(0);
    to.capmask = capability_mask.to_be();
    let prefix = text("gids/0");
    let prefix = prefix.get(..19).and_then(sysfs::parse_guid).unwrap_or(0);
    to.gid_prefix = prefix.to_be();
    to.port_guid = devices::port_guid(device, number).to_be();
    let pkeys = devices::read_pkey_table(device, number);
    // SAFETY: `calloc` takes any sizes.
    to.pkeys = unsafe { libc::calloc(pkeys.len().max(1), size_of::<u16>()) }.cast();
    to.pkeys_size = 0;
    if !to.pkeys.is_null() {
        // SAFETY: the array has room for all of them.
        unsafe { ptr::copy_nonoverlapping(pkeys.as_ptr(), to.pkeys, pkeys.len()) };
        to.pkeys_size = c_uint::try_from(pkeys.len()).unwrap_or(0);
    }
    store_c_string(&mut to.link_layer, &text("link_layer"));
}

/// `umad_get_ca(3)`.
///
/// # Safety
/// `name` is NULL or a string; `ca` has room.
pub(crate) unsafe extern "C" fn umad_get_ca(name: *const c_char, ca: *mut UmadCa) -> c_int {
    // SAFETY: contract of this function.
    let Some(device) = (unsafe { lookup::find_device_or_default(c_string_or_none(name)) }) else {
        return set_errno_and_negate(libc::ENOENT);
    };
    // SAFETY: contract of this function; zeroes are a value of the structure.
    let ca = unsafe {
        ca.write_bytes(0, 1);
        &mut *ca
    };
    let folder = devices::device_folder(&device);
    let text = |file| sysfs::read_trimmed(&folder.join(file)).unwrap_or_default();
    store_c_string(&mut ca.ca_name, &device.name);
    ca.node_type = device.node_type.unwrap_or(1).into();
    store_c_string(
        &mut ca.fw_ver,
        device.firmware.as_deref().unwrap_or_default(),
    );
    store_c_string(&mut ca.ca_type, &text("hca_type"));
    store_c_string(&mut ca.hw_ver, &text("hw_rev"));
    ca.node_guid = device.node_guid.unwrap_or(0).to_be();
    ca.system_guid = device.sys_image_guid.unwrap_or(0).to_be();
    for (number, info) in (1..=9_u8).zip(&device.ports) {
        // SAFETY: `calloc` takes any sizes.
        let port: *mut UmadPort = unsafe { libc::calloc(1, size_of::<UmadPort>()) }.cast();
        // SAFETY: zeroed memory of the structure's size, if it is there.
        let Some(filled) = (unsafe { port.as_mut() }) else {
            return set_errno_and_negate(libc::ENOMEM);
        };
        fill_port(filled, &device, number, info);
        ca.ports[usize::from(number)] = port;
        ca.numports = number.into();
    }
    0
}

/// `umad_release_ca(3)`.
///
/// # Safety
/// `ca` was filled by [`umad_get_ca`].
pub(crate) unsafe extern "C" fn umad_release_ca(ca: *mut UmadCa) -> c_int {
    // SAFETY: contract of this function.
    let Some(ca) = (unsafe { ca.as_mut() }) else {
        return set_errno_and_negate(libc::ENODEV);
    };
    for port in &mut ca.ports {
        if !port.is_null() {
            // SAFETY: `umad_get_ca` has allocated and filled the port.
            unsafe {
                umad_release_port(*port);
                libc::free(port.cast());
            }
            *port = ptr::null_mut();
        }
    }
    0
}

/// `umad_get_port(3)`.
///
/// # Safety
/// `name` is NULL or a string; `to` has room.
pub(crate) unsafe extern "C" fn umad_get_port(
    name: *const c_char,
    number: c_int,
    to: *mut UmadPort,
) -> c_int {
    // SAFETY: contract of this function.
    let (device, number) =
        match unsafe { lookup::find_device_and_port(c_string_or_none(name), number) } {
            Ok(found) => found,
            Err(PortNotFound::NoDevice) => return set_errno_and_negate(libc::ENODEV),
            Err(PortNotFound::NoPort) => return set_errno_and_negate(libc::EIO),
        };
    let Some(info) = device.ports.get(usize::from(number) - 1) else {
        return set_errno_and_negate(libc::EIO);
    };
    // SAFETY: contract of this function; zeroes are a value of the structure.
    let to = unsafe {
        to.write_bytes(0, 1);
        &mut *to
    };
    fill_port(to, &device, number, info);
    0
}

/// `umad_release_port(3)`.
///
/// # Safety
/// `port` was filled by [`umad_get_port`] or [`umad_get_ca`].
pub(crate) unsafe extern "C" fn umad_release_port(port: *mut UmadPort) -> c_int {
    // SAFETY: contract of this function.
    let Some(port) = (unsafe { port.as_mut() }) else {
        return set_errno_and_negate(libc::ENODEV);
    };
    // SAFETY: the array was allocated by `calloc`.
    unsafe { libc::free(port.pkeys.cast()) };
    port.pkeys = ptr::null_mut();
    port.pkeys_size = 0;
    0
}

/// `umad_get_issm_path(3)`. No program can be the subnet manager of this subnet.
///
/// # Safety
/// `name` is NULL or a string.
pub(crate) unsafe extern "C" fn umad_get_issm_path(
    name: *const c_char,
    number: c_int,
    _path: *mut c_char,
    _max: c_int,
) -> c_int {
    // SAFETY: contract of this function.
    match unsafe { lookup::find_device_and_port(c_string_or_none(name), number) } {
        Err(PortNotFound::NoPort) => set_errno_and_negate(libc::EINVAL),
        Ok(_) | Err(PortNotFound::NoDevice) => set_errno_and_negate(libc::ENODEV),
    }
}

/// `umad_open_port(3)`. Returns the descriptor of the port.
///
/// # Safety
/// `name` is NULL or a string.
pub(crate) unsafe extern "C" fn umad_open_port(name: *const c_char, number: c_int) -> c_int {
    // SAFETY: contract of this function.
    let (device, number) =
        match unsafe { lookup::find_device_and_port(c_string_or_none(name), number) } {
            Ok(found) => found,
            Err(PortNotFound::NoDevice) => return set_errno_and_negate(libc::ENODEV),
            Err(PortNotFound::NoPort) => return set_errno_and_negate(libc::EINVAL),
        };
    let info = device.ports.get(usize::from(number) - 1);
    // An Ethernet port has no subnet manager and no LID.
    let Some(lid) = info.and_then(|port| port.subnet_attributes.as_ref()?.lid) else {
        return set_errno_and_negate(libc::ENODEV);
    };
    match port::open_port(lid) {
        Ok(fd) => fd,
        Err(e) => set_errno_and_negate(e.raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// `umad_close_port(3)`.
pub(crate) extern "C" fn umad_close_port(fd: c_int) -> c_int {
    if port::close_port(fd) {
        0
    } else {
        set_errno_and_negate(libc::EINVAL)
    }
}

/// `umad_get_fd(3)`.
pub(crate) extern "C" fn umad_get_fd(fd: c_int) -> c_int {
    fd
}

/// `umad_get_mad(3)`: the datagram behind the header.
pub(crate) extern "C" fn umad_get_mad(umad: *mut c_void) -> *mut c_void {
    umad.wrapping_byte_add(UMAD_HEADER_BYTES)
}

/// `umad_size(3)`: bytes of the header.
pub(crate) extern "C" fn umad_size() -> usize {
    UMAD_HEADER_BYTES
}

/// `umad_status(3)`.
///
/// # Safety
/// `umad` is a header; as for all functions here with this argument.
pub(crate) unsafe extern "C" fn umad_status(umad: *mut c_void) -> c_int {
    // SAFETY: contract of this function.
    unsafe { umad.byte_add(4).cast::<c_int>().read_unaligned() }
}

/// `umad_get_mad_addr(3)`.
pub(crate) extern "C" fn umad_get_mad_addr(umad: *mut c_void) -> *mut c_void {
    umad.wrapping_byte_add(20)
}

/// `umad_set_addr_net(3)`: as [`umad_set_addr`], in network byte order.
///
/// # Safety
/// As [`umad_status`].
pub(crate) unsafe extern "C" fn umad_set_addr_net(
    umad: *mut c_void,
    lid: u16,
    qpn: u32,
    sl: c_int,
    qkey: u32,
) -> c_int {
    // SAFETY: contract of this function.
    unsafe {
        umad.byte_add(20).cast::<u32>().write_unaligned(qpn);
        umad.byte_add(24).cast::<u32>().write_unaligned(qkey);
        umad.byte_add(28).cast::<u16>().write_unaligned(lid);
        umad.byte_add(30)
            .cast::<u8>()
            .write(low_16_bits_little_endian(sl)[0] & 0xf);
    }
    0
}

/// `umad_set_addr(3)`.
///
/// # Safety
/// As [`umad_status`].
pub(crate) unsafe extern "C" fn umad_set_addr(
    umad: *mut c_void,
    lid: c_int,
    qpn: c_int,
    sl: c_int,
    qkey: c_int,
) -> c_int {
    let (qpn, qkey) = (qpn.cast_unsigned().to_be(), qkey.cast_unsigned().to_be());
    let lid = u16::from_le_bytes(low_16_bits_little_endian(lid)).to_be();
    // SAFETY: contract of this function.
    unsafe { umad_set_addr_net(umad, lid, qpn, sl, qkey) }
}

/// `umad_set_grh(3)`. The path within a subnet needs none, so the address is only stored.
///
/// # Safety
/// As [`umad_status`]; `address` is NULL or an `ib_mad_addr_t`.
pub(crate) unsafe extern "C" fn umad_set_grh(umad: *mut c_void, address: *mut c_void) -> c_int {
    // SAFETY: contract of this function: hop limit to flow label of the one, and of the other.
    unsafe {
        let present = umad.byte_add(32).cast::<u8>();
        if address.is_null() {
            *present = 0;
        } else {
            *present = 1;
            ptr::copy_nonoverlapping(
                address.byte_add(13).cast::<u8>(),
                umad.byte_add(33).cast::<u8>(),
                23,
            );
        }
    }
    0
}

/// `umad_set_pkey(3)`: stores an index.
///
/// # Safety
/// As [`umad_status`].
pub(crate) unsafe extern "C" fn umad_set_pkey(umad: *mut c_void, index: c_int) -> c_int {
    let index = u16::from_le_bytes(low_16_bits_little_endian(index));
    // SAFETY: contract of this function.
    unsafe { umad.byte_add(56).cast::<u16>().write_unaligned(index) };
    0
}

/// `umad_get_pkey(3)`: the index.
///
/// # Safety
/// As [`umad_status`].
pub(crate) unsafe extern "C" fn umad_get_pkey(umad: *mut c_void) -> c_int {
    // SAFETY: contract of this function.
    unsafe { umad.byte_add(56).cast::<u16>().read_unaligned() }.into()
}

/// `umad_send(3)`.
///
/// # Safety
/// `umad` has a header and `length` bytes.
pub(crate) unsafe extern "C" fn umad_send(
    fd: c_int,
    agent: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    let Ok(length) = usize::try_from(length) else {
        return set_errno_and_negate(libc::EINVAL);
    };
    // SAFETY: contract of this function.
    let umad = unsafe { std::slice::from_raw_parts_mut(umad.cast(), UMAD_HEADER_BYTES + length) };
    match port::send_mad(fd, agent, umad, timeout_ms, retries) {
        Ok(()) => 0,
        Err(errno) => set_errno_and_negate(errno),
    }
}

/// `umad_recv(3)`. Returns the agent.
///
/// # Safety
/// `umad` has room for a header and `*length` bytes.
pub(crate) unsafe extern "C" fn umad_recv(
    fd: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout_ms: c_int,
) -> c_int {
    if umad.is_null() || length.is_null() {
        return set_errno_and_negate(libc::EINVAL);
    }
    if timeout_ms != 0 {
        match umad_poll(fd, timeout_ms) {
            0 => {}
            failed => return failed,
        }
    }
    // SAFETY: contract of this function.
    let room = usize::try_from(unsafe { *length }).unwrap_or(0);
    // SAFETY: contract of this function.
    let bytes = unsafe { std::slice::from_raw_parts_mut(umad.cast(), UMAD_HEADER_BYTES + room) };
    let set_length = |n| {
        // SAFETY: contract of this function.
        unsafe { *length = c_int::try_from(n).unwrap_or(c_int::MAX) };
    };
    match port::receive_mad(fd, bytes) {
        Ok((agent, len)) => {
            set_length(len);
            agent
        }
        Err(ReceiveFailure::BufferTooShort(len)) => {
            set_length(len);
            set_errno_and_negate(libc::ENOSPC)
        }
        Err(ReceiveFailure::Errno(errno)) => set_errno_and_negate(errno),
    }
}

/// `umad_poll(3)`.
pub(crate) extern "C" fn umad_poll(fd: c_int, timeout_ms: c_int) -> c_int {
    if !port::is_open(fd) {
        return set_errno_and_negate(libc::EINVAL);
    }
    let mut polled = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure.
    match unsafe { libc::poll(&raw mut polled, 1, timeout_ms) } {
        1 if polled.revents == libc::POLLIN => 0,
        0 => set_errno_and_negate(libc::ETIMEDOUT),
        _ => set_errno_and_negate(libc::EIO),
    }
}

/// Returns true if a mask of methods names one.
///
/// # Safety
/// `mask` is NULL or has 128 bits.
unsafe fn mask_names_any_method(mask: *const c_long) -> bool {
    // SAFETY: contract of this function.
    !mask.is_null() && unsafe { *mask != 0 || *mask.add(1) != 0 }
}

fn register_agent(fd: c_int, class: u8, gets_requests: bool) -> c_int {
    port::register_agent(fd, class, gets_requests).unwrap_or_else(set_errno_and_negate)
}

/// `umad_register(3)`. Returns the agent.
///
/// # Safety
/// `mask` is NULL or has 128 bits.
pub(crate) unsafe extern "C" fn umad_register(
    fd: c_int,
    class: c_int,
    _version: c_int,
    _rmpp_version: u8,
    mask: *const c_long,
) -> c_int {
    match u8::try_from(class) {
        // SAFETY: contract of this function.
        Ok(class) => register_agent(fd, class, unsafe { mask_names_any_method(mask) }),
        Err(_) => set_errno_and_negate(libc::EINVAL),
    }
}

/// `umad_register_oui(3)`. Returns the agent.
///
/// # Safety
/// As [`umad_register`].
pub(crate) unsafe extern "C" fn umad_register_oui(
    fd: c_int,
    class: c_int,
    _rmpp_version: u8,
    _oui: *const u8,
    mask: *const c_long,
) -> c_int {
    match u8::try_from(class) {
        // The classes of vendors with an identifier.
        Ok(class @ 0x30..=0x4f) => {
            // SAFETY: contract of this function.
            let has_methods = unsafe { mask_names_any_method(mask) };
            register_agent(fd, class, has_methods)
        }
        _ => set_errno_and_negate(libc::EINVAL),
    }
}

/// `umad_register2(3)`. Returns an error number.
///
/// # Safety
/// The pointers are valid.
pub(crate) unsafe extern "C" fn umad_register2(
    fd: c_int,
    attr: *const RegAttr,
    agent: *mut u32,
) -> c_int {
    // SAFETY: contract of this function.
    let Some(attr) = (unsafe { attr.as_ref() }) else {
        return libc::EINVAL;
    };
    if agent.is_null() {
        return libc::EINVAL;
    }
    match port::register_agent(fd, attr.mgmt_class, attr.method_mask != [0; 2]) {
        Ok(number) => {
            // SAFETY: contract of this function.
            unsafe { *agent = number.cast_unsigned() };
            0
        }
        Err(errno) => errno,
    }
}

/// `umad_unregister(3)`.
pub(crate) extern "C" fn umad_unregister(fd: c_int, agent: c_int) -> c_int {
    if port::unregister_agent(fd, agent) {
        0
    } else {
        set_errno_and_negate(libc::EINVAL)
    }
}

static DEBUG_LEVEL: AtomicI32 = AtomicI32::new(0);

/// `umad_debug(3)`. Returns the previous level, which has no effect.
pub(crate) extern "C" fn umad_debug(level: c_int) -> c_int {
    let level = if level >= 0 {
        level
    } else {
        DEBUG_LEVEL.load(Ordering::Relaxed)
    };
    DEBUG_LEVEL.swap(level, Ordering::Relaxed)
}

/// `umad_addr_dump(3)`.
///
/// # Safety
/// `address` is an `ib_mad_addr_t`.
pub(crate) unsafe extern "C" fn umad_addr_dump(address: *const u8) {
    // SAFETY: contract of this function.
    let bytes = unsafe { std::slice::from_raw_parts(address, 44) };
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
    eprintln!(
        "qpn {} qkey 0x{:x} lid {} sl {} grh_present {}",
        word(0),
        word(4),
        u16::from_be_bytes([bytes[8], bytes[9]]),
        bytes[10],
        bytes[12],
    );
}

/// `umad_dump(3)`.
///
/// # Safety
/// As [`umad_status`].
pub(crate) unsafe extern "C" fn umad_dump(umad: *const u8) {
    // SAFETY: contract of this function.
    unsafe {
        let words = umad.cast::<u32>();
        eprintln!(
            "agent id {} status {:x} timeout {}",
            words.read_unaligned(),
            words.add(1).read_unaligned(),
            words.add(2).read_unaligned(),
        );
        umad_addr_dump(umad.add(20));
    }
}

/// `umad_class_str(3)`.
pub(crate) extern "C" fn umad_class_str(class: u8) -> *const c_char {
    mad_names::class_name(class).as_ptr()
}

/// `umad_method_str(3)`.
pub(crate) extern "C" fn umad_method_str(class: u8, method: u8) -> *const c_char {
    mad_names::method_name(class, method).as_ptr()
}

/// `umad_attribute_str(3)`.
pub(crate) extern "C" fn umad_attribute_str(class: u8, attribute: u16) -> *const c_char {
    mad_names::attribute_name(class, u16::from_be(attribute)).as_ptr()
}

/// `umad_common_mad_status_str(3)`.
pub(crate) extern "C" fn umad_common_mad_status_str(status: u16) -> *const c_char {
    mad_names::status_text(u16::from_be(status)).as_ptr()
}

/// `umad_sa_mad_status_str(3)`.
pub(crate) extern "C" fn umad_sa_mad_status_str(status: u16) -> *const c_char {
    mad_names::sa_status_text(u16::from_be(status)).as_ptr()
}

/// `umad_get_ca_device_list(3)`. Returns NULL and sets errno to 0 if there is no device.
pub(crate) extern "C" fn umad_get_ca_device_list() -> *mut DeviceNode {
    let mut head = ptr::null_mut();
    for device in devices::all_devices().into_iter().rev() {
        let Ok(name) = std::ffi::CString::new(device.name) else {
            continue;
        };
        head = Box::into_raw(Box::new(DeviceNode {
            next: head,
            ca_name: name.into_raw(),
        }));
    }
    if head.is_null() {
        // SAFETY: the pointer is to this thread's errno.
        unsafe { *libc::__errno_location() = 0 };
    }
    head
}

/// `umad_free_ca_device_list(3)`.
///
/// # Safety
/// `head` is a list of [`umad_get_ca_device_list`].
pub(crate) unsafe extern "C" fn umad_free_ca_device_list(mut head: *mut DeviceNode) {
    while !head.is_null() {
        // SAFETY: the nodes and names of such a list were made by `into_raw`.
        let node = unsafe { Box::from_raw(head) };
        head = node.next;
        // SAFETY: as above.
        drop(unsafe { std::ffi::CString::from_raw(node.ca_name.cast_mut()) });
    }
}

/// `umad_sort_ca_device_list(3)`: by name. Returns 0, or an error number.
///
/// # Safety
/// `head` points to a list of [`umad_get_ca_device_list`], `size` is its length, or 0 to count it.
pub(crate) unsafe extern "C" fn umad_sort_ca_device_list(
    head: *mut *mut DeviceNode,
    size: usize,
) -> c_int {
    if head.is_null() {
        return libc::EINVAL;
    }
    let mut nodes = Vec::new();
    // SAFETY: contract of this function.
    unsafe {
        let mut node = *head;
        while !node.is_null() {
            nodes.push(node);
            node = (*node).next;
        }
        if size != 0 && nodes.len() != size {
            return libc::EINVAL;
        }
        nodes.sort_by_key(|node| CStr::from_ptr((**node).ca_name));
        let mut next = ptr::null_mut();
        for node in nodes.into_iter().rev() {
            (*node).next = next;
            next = node;
        }
        *head = next;
    }
    0
}
