//! Functions that libibverbs got in rdma-core 59 to 65. The table of entry points does not have them, so that a layer
//! over a provider need not know them.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shm::errno::errno_of;
use shm::mem::{SharedMemory, alloc_shared};
use verbs_abi::*;

use super::context::{context_of, device_of, nic_of};
use super::edge::{In, Out, c_functions};
use super::require_unused::require_unused;
use crate::abi_cell::AbiCell;
use crate::comp_cntr::{self, CompCntr, CountedQp};
use crate::live_handles;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::qp_attributes::QpState;

type HandleResult<T> = Result<*mut T, c_int>;
type VerbResult = Result<(), c_int>;

c_functions! {
    /// Makes a DMA handle: `ibv_alloc_dmah(3)`. The handle is a hint that this NIC does not use.
    pub ibv_alloc_dmah => alloc_dmah, (context: *mut ibv_context, attr: In<'_, ibv_dmah_init_attr>) -> HandleResult<ibv_dmah>;
    /// Frees a DMA handle; regions that were made with it stay as they are.
    pub ibv_dealloc_dmah => dealloc_dmah, (dmah: *mut ibv_dmah) -> VerbResult;

    /// Returns the speed of a port in units of 100 Mbit/s: `ibv_query_port_speed(3)`.
    pub ibv_query_port_speed => query_port_speed, (context: *mut ibv_context, port_num: u32, speed: Out<'_, u64>) -> VerbResult;

    /// Allocates a buffer: `ibv_alloc_buf(3)`. Peers of this host can map its memory.
    pub ibv_alloc_buf => alloc_buf, (pd: *mut ibv_pd, size: usize, buf: Out<'_, *mut ibv_buf>) -> HandleResult<c_void>;
    /// Frees a buffer.
    pub ibv_free_buf => free_buf, (buf: *mut ibv_buf) -> ();

    /// Returns the capabilities of completion counters, for the inline `ibv_query_comp_cntr_caps`. Inferred: that the
    /// size of the structure is passed, as it is to the other functions of this form.
    pub _ibv_query_comp_cntr_caps => query_comp_cntr_caps,
        (context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, size: usize) -> VerbResult;
    /// Makes a completion counter: `ibv_create_comp_cntr(3)`.
    pub ibv_create_comp_cntr => create_comp_cntr,
        (context: *mut ibv_context, attr: In<'_, ibv_comp_cntr_init_attr>) -> HandleResult<ibv_comp_cntr>;
    /// Destroys a completion counter.
    pub ibv_destroy_comp_cntr => destroy_comp_cntr, (counter: *mut ibv_comp_cntr) -> VerbResult;
    /// Attaches a completion counter: `ibv_qp_attach_comp_cntr(3)`.
    pub ibv_qp_attach_comp_cntr => attach_comp_cntr,
        (qp: *mut ibv_qp, counter: *mut ibv_comp_cntr, attr: In<'_, ibv_qp_attach_comp_cntr_attr>) -> VerbResult;
    /// Sets the count of successes.
    pub ibv_set_comp_cntr => set_comp_cntr, (counter: *mut ibv_comp_cntr, value: u64) -> VerbResult;
    /// Sets the count of errors.
    pub ibv_set_err_comp_cntr => set_err_comp_cntr, (counter: *mut ibv_comp_cntr, value: u64) -> VerbResult;
    /// Adds to the count of successes.
    pub ibv_inc_comp_cntr => inc_comp_cntr, (counter: *mut ibv_comp_cntr, amount: u64) -> VerbResult;
    /// Adds to the count of errors.
    pub ibv_inc_err_comp_cntr => inc_err_comp_cntr, (counter: *mut ibv_comp_cntr, amount: u64) -> VerbResult;
    /// Reads the count of successes.
    pub ibv_read_comp_cntr => read_comp_cntr, (counter: *mut ibv_comp_cntr, value: Out<'_, u64>) -> VerbResult;
    /// Reads the count of errors.
    pub ibv_read_err_comp_cntr => read_err_comp_cntr, (counter: *mut ibv_comp_cntr, value: Out<'_, u64>) -> VerbResult;

    /// Returns the name of an opcode of work requests. Inferred: the form of the name.
    pub ibv_wr_opcode_str => wr_opcode_str, (opcode: ibv_wr_opcode) -> *const c_char;
}

/// A DMA handle; the program's handle points to its first field.
#[repr(C)]
struct DmaHandle {
    abi: AbiCell<ibv_dmah>,
}

live_handles::object!(DmaHandle, ibv_dmah);

fn alloc_dmah(
    context: *mut ibv_context,
    attr: In<'_, ibv_dmah_init_attr>,
) -> HandleResult<ibv_dmah> {
    const KNOWN_DMAH_FLAGS: u32 = IBV_DMAH_INIT_ATTR_MASK_CPU_ID
        | IBV_DMAH_INIT_ATTR_MASK_PH
        | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;
    /// PCIe has two bits for the processing hint.
    const MAX_PH: u8 = 3;
    context_of(context)?;
    let attr = attr.get()?;
    if attr.comp_mask & !KNOWN_DMAH_FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let set = |bit| attr.comp_mask & bit != 0;
    if set(IBV_DMAH_INIT_ATTR_MASK_PH) && attr.ph > MAX_PH
        || set(IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE) && attr.tph_mem_type > IBV_TPH_MEM_TYPE_PM
    {
        return Err(libc::EINVAL);
    }
    let abi = AbiCell::new(ibv_dmah { context });
    Ok(live_handles::make_handle(Arc::new(DmaHandle { abi })))
}

fn dealloc_dmah(dmah: *mut ibv_dmah) -> VerbResult {
    live_handles::take_back_handle::<DmaHandle>(dmah)
        .ok_or(libc::EINVAL)
        .map(drop)
}

fn query_port_speed(context: *mut ibv_context, port_num: u32, speed: Out<'_, u64>) -> VerbResult {
    let port = device_of(context)?.1.port(port_num)?.attr();
    // Codes of IBTA vol. 1, 14.2.5.6: lanes, and 100 Mbit/s a lane.
    let lanes = match port.active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return Err(libc::EOPNOTSUPP),
    };
    let per_lane = match port.active_speed {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => return Err(libc::EOPNOTSUPP),
    };
    speed.get()?.write(lanes * per_lane);
    Ok(())
}

/// A buffer; the program's handle points to its first field.
#[repr(C)]
struct Buf {
    abi: AbiCell<usize>,
    memory: SharedMemory,
    pd: Arc<Pd>,
}

const _: () = assert!(std::mem::offset_of!(Buf, abi) == 0);
const _: () = assert!(size_of::<usize>() == size_of::<ibv_buf>());

impl live_handles::VerbsObject for Buf {
    type C = ibv_buf;
    const C_STRUCT_NAME: &'static str = "ibv_buf";
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.pd.remove_user();
    }
}

fn alloc_buf(pd: *mut ibv_pd, size: usize, buf: Out<'_, *mut ibv_buf>) -> HandleResult<c_void> {
    let pd = Pd::find_usable(pd).ok_or(libc::EINVAL)?;
    let place = buf.get()?;
    if size == 0 {
        return Err(libc::EINVAL);
    }
    let memory = alloc_shared(size).map_err(|e| errno_of(&e))?;
    let addr = memory.as_ptr().cast();
    pd.add_user();
    let abi = AbiCell::new(size);
    place.write(live_handles::make_handle(Arc::new(Buf { abi, memory, pd })));
    Ok(addr)
}

fn free_buf(buf: *mut ibv_buf) {
    drop(live_handles::take_back_handle::<Buf>(buf));
}

/// Checks that memory lies in a buffer that was allocated from that domain.
///
/// # Errors
/// `EINVAL` if the memory does not, or if the buffer is not live.
pub fn check_in_allocated_buf(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
) -> VerbResult {
    let buf = live_handles::find_object::<Buf>(buf).ok_or(libc::EINVAL)?;
    let start = addr.addr().checked_sub(buf.memory.as_ptr().addr());
    let end = start.and_then(|start| start.checked_add(length));
    let fits = end.is_some_and(|end| end <= buf.memory.len());
    if fits && std::ptr::eq(buf.pd.handle(), pd) {
        Ok(())
    } else {
        Err(libc::EINVAL)
    }
}

/// Checks that a DMA handle is live.
///
/// # Errors
/// `EINVAL` if it is not.
pub fn check_dmah(dmah: *mut ibv_dmah) -> VerbResult {
    live_handles::find_object::<DmaHandle>(dmah)
        .ok_or(libc::EINVAL)
        .map(drop)
}

fn query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    size: usize,
) -> VerbResult {
    nic_of(context)?;
    if caps.is_null() {
        return Err(libc::EINVAL);
    }
    let all = ibv_comp_cntr_caps {
        max_value: u64::MAX,
        max_counters: comp_cntr::MAX_COUNTERS,
        supported_qp_attach_ops: comp_cntr::SUPPORTED_OPS,
    };
    let n = size.min(size_of::<ibv_comp_cntr_caps>());
    // SAFETY: not NULL (above), so the program's place of `size` bytes; no more bytes are written than it and `all`
    // have.
    unsafe {
        caps.cast::<u8>()
            .copy_from_nonoverlapping((&raw const all).cast(), n);
    }
    Ok(())
}

fn create_comp_cntr(
    context: *mut ibv_context,
    attr: In<'_, ibv_comp_cntr_init_attr>,
) -> HandleResult<ibv_comp_cntr> {
    context_of(context)?;
    let attr = attr.get()?;
    if attr.comp_mask != 0 || attr.kind != IBV_COMP_CNTR_TYPE_WRS {
        return Err(libc::EOPNOTSUPP);
    }
    // "Reserved for future use, for now must be 0."
    if attr.flags != 0 {
        return Err(libc::EINVAL);
    }
    let counter = CompCntr::new(context).ok_or(libc::ENOMEM)?;
    Ok(live_handles::make_handle(Arc::new(counter)))
}

fn find_comp_cntr(counter: *mut ibv_comp_cntr) -> Result<Arc<CompCntr>, c_int> {
    live_handles::find_object::<CompCntr>(counter).ok_or(libc::EINVAL)
}

fn destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> VerbResult {
    require_unused(&find_comp_cntr(counter)?.attach_count)?;
    live_handles::take_back_handle::<CompCntr>(counter)
        .ok_or(libc::EINVAL)
        .map(drop)
}

fn attach_comp_cntr(
    qp: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attr: In<'_, ibv_qp_attach_comp_cntr_attr>,
) -> VerbResult {
    let qp = live_handles::find_object::<Qp>(qp).ok_or(libc::EINVAL)?;
    let counter = find_comp_cntr(counter)?;
    let attr = attr.get()?;
    if attr.comp_mask != 0 || attr.op_mask & !comp_cntr::SUPPORTED_OPS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if attr.op_mask == 0 || !matches!(qp.state(), QpState::Reset | QpState::Init) {
        return Err(libc::EINVAL);
    }
    let qpn = qp.qpn;
    let qp: Arc<dyn CountedQp> = qp;
    comp_cntr::attach_counter(qpn, Arc::downgrade(&qp), &counter, attr.op_mask)
}

impl CountedQp for Qp {
    fn poll_both_queues(&self) {
        self.send_cq.move_completions_to_buffer();
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.move_completions_to_buffer();
        }
    }
}

fn set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> VerbResult {
    find_comp_cntr(counter)?
        .succeeded_wr_count
        .store(value, Ordering::Release);
    Ok(())
}

fn set_err_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> VerbResult {
    find_comp_cntr(counter)?
        .failed_wr_count
        .store(value, Ordering::Release);
    Ok(())
}

fn inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> VerbResult {
    find_comp_cntr(counter)?
        .succeeded_wr_count
        .fetch_add(amount, Ordering::Release);
    Ok(())
}

fn inc_err_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> VerbResult {
    find_comp_cntr(counter)?
        .failed_wr_count
        .fetch_add(amount, Ordering::Release);
    Ok(())
}

fn read_comp_cntr(counter: *mut ibv_comp_cntr, value: Out<'_, u64>) -> VerbResult {
    let (counter, place) = (find_comp_cntr(counter)?, value.get()?);
    comp_cntr::poll_counted_qps(&counter);
    place.write(counter.succeeded_wr_count.load(Ordering::Acquire));
    Ok(())
}

fn read_err_comp_cntr(counter: *mut ibv_comp_cntr, value: Out<'_, u64>) -> VerbResult {
    let (counter, place) = (find_comp_cntr(counter)?, value.get()?);
    comp_cntr::poll_counted_qps(&counter);
    place.write(counter.failed_wr_count.load(Ordering::Acquire));
    Ok(())
}

fn wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    strings::wr_opcode_str(opcode).as_ptr()
}
