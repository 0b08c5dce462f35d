//! The functions that create and destroy verbs objects, and the tap's record of these objects.

use std::ffi::{c_int, c_uint, c_void};

use verbs_abi::*;

use crate::objects::{
    CONTEXTS, CQS, Context, Cq, QPS, QPS_BY_HANDLE, Qp, SRQS, Srq, key_of_handle,
    lock_object_tables, qp_key,
};
use crate::peer_machines::{address_hash, machine_id, record_ah_machine};
use crate::provider::Provider;
use crate::{data_path, extended_verbs, mapped_counter_file, registered_bytes, trace};

/// Installs the counting operations in a device that was just opened.
///
/// # Safety
/// `handle` is a context that the provider has just returned and no other code has seen.
unsafe fn install_counting_in_device<P: Provider>(handle: *mut ibv_context) {
    // A second open of the same device may return the same context, which counts already. A new context may have
    // the address of a closed one.
    // SAFETY: contract of this function.
    let counts = unsafe { handle.as_ref() }.map(|context| data_path::is_counting(&context.ops));
    let known = CONTEXTS.find(key_of_handle(handle)).is_some();
    if counts.is_none_or(|counts| counts && known) {
        return;
    }
    let Some(session) = mapped_counter_file::counter_file_of_process_or_begin(P::NAME) else {
        return;
    };
    // SAFETY: contract of this function; the extended operations lie where the context says.
    unsafe {
        let extended = verbs_get_ctx(handle);
        let own = extended.as_ref();
        let context: &'static Context = Box::leak(Box::new(Context {
            ops: (*handle).ops,
            create_qp_ex: own.and_then(|own| own.create_qp_ex),
            create_cq_ex: own.and_then(|own| own.create_cq_ex),
            create_srq_ex: own.and_then(|own| own.create_srq_ex),
            counter_file: session,
            qpn_process_shift: P::QPN_PROCESS_SHIFT,
        }));
        let _one = lock_object_tables();
        CONTEXTS.remove(key_of_handle(handle));
        if !CONTEXTS.insert_unless_full(key_of_handle(handle), context) {
            return;
        }
        data_path::install_counting_ops(&mut (*handle).ops);
        if let Some(all) = extended.as_mut() {
            all.create_qp_ex = context.create_qp_ex.and(Some(create_qp_ex));
            all.create_cq_ex = context.create_cq_ex.and(Some(create_cq_ex));
            all.create_srq_ex = context.create_srq_ex.and(Some(create_srq_ex));
        }
        if trace::is_tracing_on() {
            trace::install_tracing_operations(
                key_of_handle(handle),
                &mut (*handle).ops,
                extended.as_mut(),
            );
        }
    }
}

/// Records a queue pair that was just created.
///
/// # Safety
/// `handle` is NULL or a new queue pair.
unsafe fn record_created_qp(handle: *mut ibv_qp, cap: ibv_qp_cap, sq_sig_all: bool) -> *mut ibv_qp {
    // SAFETY: contract of this function.
    let Some(qp) = (unsafe { handle.as_ref() }) else {
        return handle;
    };
    if let Some(context) = CONTEXTS.find(key_of_handle(qp.context)) {
        let new = Box::leak(Box::new(Qp::new(context, qp, cap, sq_sig_all)));
        let _one = lock_object_tables();
        QPS.remove(qp_key(qp.context, qp.qp_num));
        QPS.insert_unless_full(qp_key(qp.context, qp.qp_num), new);
        QPS_BY_HANDLE.remove(key_of_handle(handle));
        QPS_BY_HANDLE.insert_unless_full(key_of_handle(handle), new);
    }
    handle
}

/// Records a completion queue that was just created.
///
/// # Safety
/// `handle` is NULL or a new completion queue.
unsafe fn record_created_cq(handle: *mut ibv_cq) -> Option<&'static Cq> {
    // SAFETY: contract of this function.
    let cq = unsafe { handle.as_ref() }?;
    let context = CONTEXTS.find(key_of_handle(cq.context))?;
    let new: &'static Cq = Box::leak(Box::new(Cq::new(context, cq.context, cq.cqe)));
    let _one = lock_object_tables();
    CQS.remove(key_of_handle(handle));
    CQS.insert_unless_full(key_of_handle(handle), new)
        .then_some(new)
}

/// Records a shared receive queue that was just created.
///
/// # Safety
/// `handle` is NULL or a new shared receive queue.
unsafe fn record_created_srq(handle: *mut ibv_srq) -> *mut ibv_srq {
    // SAFETY: contract of this function.
    let Some(srq) = (unsafe { handle.as_ref() }) else {
        return handle;
    };
    if let Some(context) = CONTEXTS.find(key_of_handle(srq.context)) {
        let new = Box::leak(Box::new(Srq::new(context)));
        let _one = lock_object_tables();
        SRQS.remove(key_of_handle(handle));
        SRQS.insert_unless_full(key_of_handle(handle), new);
    }
    handle
}

unsafe extern "C" fn create_qp_ex(
    handle: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let own = CONTEXTS
        .find(key_of_handle(handle))
        .and_then(|own| own.create_qp_ex);
    // SAFETY: the caller promises `ibv_create_qp_ex(3)`; after the call the attributes hold the granted
    // values.
    unsafe {
        let Some(create) = own else {
            return null_with_eopnotsupp();
        };
        let qp = create(handle, init);
        let Some(init) = init.as_ref().filter(|_| !qp.is_null()) else {
            return qp;
        };
        record_created_qp(qp, init.cap, init.sq_sig_all != 0);
        let extended = init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        if let Some(known) = QPS
            .find(qp_key((*qp).context, (*qp).qp_num))
            .filter(|_| extended)
        {
            // `verbs.h` places the extended queue pair so that the queue pair is its first field.
            let handle: *mut ibv_qp_ex_with_flush = qp.cast();
            // The field `wr_flush` exists only in queue pairs that were created with this flag.
            let flush = init.send_ops_flags & IBV_QP_EX_WITH_FLUSH != 0;
            let flush = flush.then(|| &mut (*handle).wr_flush);
            extended_verbs::install_post(known, &mut (*handle).ex, flush);
        }
        qp
    }
}

unsafe extern "C" fn create_cq_ex(
    handle: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let own = CONTEXTS
        .find(key_of_handle(handle))
        .and_then(|own| own.create_cq_ex);
    // SAFETY: the caller promises `ibv_create_cq_ex(3)`.
    unsafe {
        let Some(create) = own else {
            return null_with_eopnotsupp();
        };
        let cq = create(handle, init);
        if let Some(known) = record_created_cq(cq.cast()) {
            let wc_flags = init.as_ref().map_or(0, |init| init.wc_flags);
            extended_verbs::install_poll_counting(known, &mut *cq, wc_flags);
        }
        cq
    }
}

unsafe extern "C" fn create_srq_ex(
    handle: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let own = CONTEXTS
        .find(key_of_handle(handle))
        .and_then(|own| own.create_srq_ex);
    // SAFETY: the caller promises `ibv_create_srq_ex(3)`.
    unsafe {
        match own {
            Some(create) => record_created_srq(create(handle, init)),
            None => null_with_eopnotsupp(),
        }
    }
}

/// Sets errno to EOPNOTSUPP and returns NULL, as the header's functions do if a provider lacks an
/// operation.
fn null_with_eopnotsupp<T>() -> *mut T {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    std::ptr::null_mut()
}

/// Records a region that was just registered.
///
/// # Safety
/// `mr` is NULL or a new region.
unsafe fn record_registered_mr(mr: *mut ibv_mr) -> *mut ibv_mr {
    // SAFETY: contract of this function.
    if let Some(region) = unsafe { mr.as_ref() }
        && let Some(context) = CONTEXTS.find(key_of_handle(region.context))
    {
        let (addr, len) = (region.addr.addr(), region.length);
        registered_bytes::record_registered_region(context.counter_file, mr.addr(), addr, len);
    }
    mr
}

/// Returns the provider's table of entry points with the tap's functions in it.
pub(crate) fn symbols<P: Provider>() -> Symbols {
    Symbols {
        ibv_open_device: open_device::<P>,
        ibv_reg_mr: reg_mr::<P>,
        ibv_rereg_mr: rereg_mr::<P>,
        ibv_dereg_mr: dereg_mr::<P>,
        ibv_create_cq: create_cq::<P>,
        ibv_destroy_cq: destroy_cq::<P>,
        ibv_create_srq: create_srq::<P>,
        ibv_destroy_srq: destroy_srq::<P>,
        ibv_create_qp: create_qp::<P>,
        ibv_modify_qp: modify_qp::<P>,
        ibv_destroy_qp: destroy_qp::<P>,
        ibv_create_ah: create_ah::<P>,
        ibv_create_ah_from_wc: create_ah_from_wc::<P>,
        ..*P::symbols()
    }
}

/// Returns the provider's table of later entry points with the tap's functions in it; `None` if the
/// provider has none.
pub(crate) fn later_symbols<P: Provider>() -> Option<LaterSymbols> {
    Some(LaterSymbols {
        ibv_reg_mr_iova: reg_mr_iova::<P>,
        ibv_reg_mr_iova2: reg_mr_iova2::<P>,
        ibv_import_device: import_device::<P>,
        ..*P::later_symbols()?
    })
}

unsafe extern "C" fn open_device<P: Provider>(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the caller promises what the function's man page requires, here and in all functions below.
    unsafe {
        let context = (P::symbols().ibv_open_device)(device);
        install_counting_in_device::<P>(context);
        context
    }
}

unsafe extern "C" fn import_device<P: Provider>(cmd_fd: c_int) -> *mut ibv_context {
    let Some(later) = P::later_symbols() else {
        return null_with_eopnotsupp();
    };
    // SAFETY: as above.
    unsafe {
        let context = (later.ibv_import_device)(cmd_fd);
        install_counting_in_device::<P>(context);
        context
    }
}

unsafe extern "C" fn reg_mr<P: Provider>(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as above.
    unsafe { record_registered_mr((P::symbols().ibv_reg_mr)(pd, addr, length, access)) }
}

unsafe extern "C" fn reg_mr_iova<P: Provider>(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    let Some(later) = P::later_symbols() else {
        return null_with_eopnotsupp();
    };
    // SAFETY: as above.
    unsafe { record_registered_mr((later.ibv_reg_mr_iova)(pd, addr, length, iova, access)) }
}

unsafe extern "C" fn reg_mr_iova2<P: Provider>(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let Some(later) = P::later_symbols() else {
        return null_with_eopnotsupp();
    };
    // SAFETY: as above.
    unsafe { record_registered_mr((later.ibv_reg_mr_iova2)(pd, addr, length, iova, access)) }
}

unsafe extern "C" fn rereg_mr<P: Provider>(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: as above; the region is live whatever the result.
    unsafe {
        let result = (P::symbols().ibv_rereg_mr)(mr, flags, pd, addr, length, access);
        if result == 0 {
            record_registered_mr(mr);
        }
        result
    }
}

unsafe extern "C" fn dereg_mr<P: Provider>(mr: *mut ibv_mr) -> c_int {
    // SAFETY: as above; the handle is read before the call destroys it.
    unsafe {
        let context = mr
            .as_ref()
            .and_then(|mr| CONTEXTS.find(key_of_handle(mr.context)));
        let handle = mr.addr();
        let result = (P::symbols().ibv_dereg_mr)(mr);
        if let Some(context) = context.filter(|_| result == 0) {
            registered_bytes::record_deregistered_region(context.counter_file, handle);
        }
        result
    }
}

unsafe extern "C" fn create_cq<P: Provider>(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: as above.
    unsafe {
        let cq = (P::symbols().ibv_create_cq)(context, cqe, cq_context, channel, comp_vector);
        record_created_cq(cq);
        cq
    }
}

unsafe extern "C" fn destroy_cq<P: Provider>(cq: *mut ibv_cq) -> c_int {
    let known = CQS.find(key_of_handle(cq));
    // Remove the object before the call, because the handle's address may be reused at once.
    let forget = || {
        let _one = lock_object_tables();
        CQS.remove(key_of_handle(cq));
    };
    forget();
    // SAFETY: as above.
    let result = unsafe { (P::symbols().ibv_destroy_cq)(cq) };
    if let Some(known) = known.filter(|_| result != 0) {
        let _one = lock_object_tables();
        CQS.insert_unless_full(key_of_handle(cq), known);
    }
    result
}

unsafe extern "C" fn create_srq<P: Provider>(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: as above.
    unsafe { record_created_srq((P::symbols().ibv_create_srq)(pd, init)) }
}

unsafe extern "C" fn destroy_srq<P: Provider>(srq: *mut ibv_srq) -> c_int {
    let known = SRQS.find(key_of_handle(srq));
    {
        let _one = lock_object_tables();
        SRQS.remove(key_of_handle(srq));
    }
    // SAFETY: as above.
    let result = unsafe { (P::symbols().ibv_destroy_srq)(srq) };
    if let Some(known) = known.filter(|_| result != 0) {
        let _one = lock_object_tables();
        SRQS.insert_unless_full(key_of_handle(srq), known);
    }
    result
}

unsafe extern "C" fn create_qp<P: Provider>(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: as above; after the call the attributes hold the granted values.
    unsafe {
        let qp = (P::symbols().ibv_create_qp)(pd, init);
        match init.as_ref() {
            Some(init) => record_created_qp(qp, init.cap, init.sq_sig_all != 0),
            None => qp,
        }
    }
}

unsafe extern "C" fn modify_qp<P: Provider>(
    handle: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let result = (P::symbols().ibv_modify_qp)(handle, attr, mask);
        if result == 0
            && let (Some(qp), Some(attr)) = (handle.as_ref(), attr.as_ref())
            && let Some(known) = QPS.find(qp_key(qp.context, qp.qp_num))
        {
            if mask & IBV_QP_AV != 0 {
                let machine = machine_id(
                    known.context.qpn_process_shift,
                    &attr.ah_attr,
                    attr.dest_qp_num,
                );
                known.thread_entry_or_create().add_peer(machine);
            }
            if mask & IBV_QP_STATE != 0 && attr.qp_state == IBV_QPS_RESET {
                data_path::forget_outstanding_wrs(known);
            }
        }
        result
    }
}

unsafe extern "C" fn destroy_qp<P: Provider>(handle: *mut ibv_qp) -> c_int {
    // SAFETY: as above; the handle is read before the call destroys it.
    unsafe {
        let Some(qp) = handle.as_ref() else {
            return (P::symbols().ibv_destroy_qp)(handle);
        };
        let key = qp_key(qp.context, qp.qp_num);
        let known = QPS.find(key);
        {
            let _one = lock_object_tables();
            QPS.remove(key);
            QPS_BY_HANDLE.remove(key_of_handle(handle));
        }
        let result = (P::symbols().ibv_destroy_qp)(handle);
        if let Some(known) = known.filter(|_| result != 0) {
            let _one = lock_object_tables();
            QPS.insert_unless_full(key, known);
            QPS_BY_HANDLE.insert_unless_full(key_of_handle(handle), known);
        }
        result
    }
}

unsafe extern "C" fn create_ah<P: Provider>(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: as above.
    unsafe {
        let ah = (P::symbols().ibv_create_ah)(pd, attr);
        if let Some(attr) = attr.as_ref().filter(|_| !ah.is_null()) {
            record_ah_machine(ah, address_hash(attr));
        }
        ah
    }
}

unsafe extern "C" fn create_ah_from_wc<P: Provider>(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    // SAFETY: as above.
    unsafe {
        let ah = (P::symbols().ibv_create_ah_from_wc)(pd, wc, grh, port_num);
        if let Some(pd) = pd.as_ref().filter(|_| !ah.is_null()) {
            let mut attr = ibv_ah_attr::zeroed();
            if (P::symbols().ibv_init_ah_from_wc)(pd.context, port_num, wc, grh, &mut attr) == 0 {
                record_ah_machine(ah, address_hash(&attr));
            }
        }
        ah
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A provider of which only the name is used.
    struct NamedProvider;

    impl Provider for NamedProvider {
        const NAME: &'static str = "test";
        const QPN_PROCESS_SHIFT: Option<u32> = None;

        fn symbols() -> &'static Symbols {
            unreachable!("no verb is called")
        }

        fn later_symbols() -> Option<&'static LaterSymbols> {
            None
        }
    }

    unsafe extern "C" fn poll_nothing(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
        0
    }

    #[test]
    fn a_device_that_is_reopened_at_the_same_address_is_counted() {
        // SAFETY: zeros are NULL pointers, absent operations and numbers.
        let mut memory: Box<ibv_context> = Box::new(unsafe { std::mem::zeroed() });
        let handle: *mut ibv_context = &raw mut *memory;
        for _open in 0..2 {
            // SAFETY: the context lives until the end of the test, and no other thread uses it.
            unsafe {
                handle.write(std::mem::zeroed());
                (*handle).ops.poll_cq = Some(poll_nothing);
                install_counting_in_device::<NamedProvider>(handle);
                assert!(data_path::is_counting(&(*handle).ops));
                // A second open of the same context.
                install_counting_in_device::<NamedProvider>(handle);
            }
            let known = CONTEXTS
                .find(key_of_handle(handle))
                .expect("it is recorded");
            assert!(!data_path::is_counting(&known.ops));
        }
        let _one = lock_object_tables();
        CONTEXTS.remove(key_of_handle(handle));
    }
}
