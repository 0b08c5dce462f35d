//! The operations of a context outside the data path, each with a trace line.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;

use verbs_abi::*;

use super::names::HandleKind;
use crate::object_table::OpenAddressingTable;
use crate::objects::key_of_handle;

/// A verbs object whose device can be determined from its handle.
trait HasDevice {
    /// # Safety
    /// The object is live.
    unsafe fn device(this: *mut Self) -> *mut ibv_context;
}

impl HasDevice for ibv_context {
    unsafe fn device(this: *mut Self) -> *mut ibv_context {
        this
    }
}

macro_rules! of_device {
    ($( $type:ty )*) => {
        $(
            impl HasDevice for $type {
                unsafe fn device(this: *mut Self) -> *mut ibv_context {
                    // SAFETY: contract of the trait.
                    unsafe { (*this).context }
                }
            }
        )*
    };
}

of_device! { ibv_pd ibv_cq ibv_qp ibv_srq ibv_mw ibv_xrcd ibv_td ibv_dm ibv_flow ibv_wq ibv_rwq_ind_table }

macro_rules! operations {
    (
        ops { $( fn $name:ident($first:ident: *mut $object:ty $(, $arg:ident: $type:ty)*) -> $ret:ty, $shown:literal; )* }
        extended { $( fn $ex_name:ident($ex_first:ident: *mut $ex_object:ty $(, $ex_arg:ident: $ex_type:ty)*) -> $ex_ret:ty, $ex_shown:literal; )* }
    ) => {
        /// The operations of a context as they were before tracing was installed.
        struct UntracedOperations {
            $( $name: Option<unsafe extern "C" fn(*mut $object $(, $type)*) -> $ret>, )*
            $( $ex_name: Option<unsafe extern "C" fn(*mut $ex_object $(, $ex_type)*) -> $ex_ret>, )*
        }

        impl UntracedOperations {
            /// Returns the operations of a context.
            fn of(ops: &ibv_context_ops, extended: Option<&verbs_context>) -> Self {
                Self {
                    $( $name: ops.$name, )*
                    $( $ex_name: extended.and_then(|extended| extended.$ex_name), )*
                }
            }
        }

        /// Installs tracing operations in a context. Operations that the provider lacks stay NULL.
        fn replace(ops: &mut ibv_context_ops, extended: Option<&mut verbs_context>) {
            $( ops.$name = ops.$name.and(Some($name)); )*
            if let Some(extended) = extended {
                $( extended.$ex_name = extended.$ex_name.and(Some($ex_name)); )*
            }
        }

        $( operations!(@one $name($first: *mut $object $(, $arg: $type)*) -> $ret, $shown); )*
        $( operations!(@one $ex_name($ex_first: *mut $ex_object $(, $ex_arg: $ex_type)*) -> $ex_ret, $ex_shown); )*
    };
    (@one $name:ident($first:ident: *mut $object:ty $(, $arg:ident: $type:ty)*) -> $ret:ty, $shown:literal) => {
        crate::traced_function! {
            fn $name($first: *mut $object $(, $arg: $type)*) -> $ret, $shown,
            match untraced_operation($first, |own| own.$name) {
                Some(own) => own,
                None => unreachable!("only a context that has the operation is given this one"),
            }
        }
    };
}

/// The operations of open devices as they were before tracing was installed, by the address of the device's
/// context.
static OPERATIONS_BY_CONTEXT: OpenAddressingTable<UntracedOperations> = OpenAddressingTable::new();

/// Returns the operation of an object's context as it was before tracing was installed.
///
/// # Safety
/// The object is live.
unsafe fn untraced_operation<O: HasDevice, F>(
    object: *mut O,
    which: impl FnOnce(&UntracedOperations) -> Option<F>,
) -> Option<F> {
    // SAFETY: contract of this function.
    let device = unsafe { O::device(object) };
    OPERATIONS_BY_CONTEXT
        .find(key_of_handle(device))
        .and_then(which)
}

operations! {
    ops {
        fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int, "ibv_req_notify_cq";
        fn alloc_mw(pd: *mut ibv_pd, r#type: ibv_mw_type) -> *mut ibv_mw, "ibv_alloc_mw";
        fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int, "ibv_bind_mw";
        fn dealloc_mw(mw: *mut ibv_mw) -> c_int, "ibv_dealloc_mw";
    }
    extended {
        fn create_qp_ex(context: *mut ibv_context, qp_init_attr_ex: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp, "ibv_create_qp_ex";
        fn create_cq_ex(context: *mut ibv_context, init_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex, "ibv_create_cq_ex";
        fn create_srq_ex(context: *mut ibv_context, srq_init_attr_ex: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq, "ibv_create_srq_ex";
        fn query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut ibv_port_attr, port_attr_len: usize) -> c_int, "ibv_query_port";
        fn query_device_ex(context: *mut ibv_context, input: *const ibv_query_device_ex_input, attr: *mut ibv_device_attr_ex, attr_size: usize) -> c_int, "ibv_query_device_ex";
        fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int, "ibv_query_rt_values_ex";
        fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int, "ibv_modify_cq";
        fn open_xrcd(context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd, "ibv_open_xrcd";
        fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int, "ibv_close_xrcd";
        fn post_srq_ops(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad_op: *mut *mut ibv_ops_wr) -> c_int, "ibv_post_srq_ops";
        fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int, "ibv_get_srq_num";
        fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp, "ibv_open_qp";
        fn alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td, "ibv_alloc_td";
        fn dealloc_td(td: *mut ibv_td) -> c_int, "ibv_dealloc_td";
        fn alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd, "ibv_alloc_parent_domain";
        fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm, "ibv_alloc_dm";
        fn free_dm(dm: *mut ibv_dm) -> c_int, "ibv_free_dm";
        fn reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint) -> *mut ibv_mr, "ibv_reg_dm_mr";
        fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr, "ibv_alloc_null_mr";
        fn advise_mr(pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sges: u32) -> c_int, "ibv_advise_mr";
        fn ibv_create_flow(qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr) -> *mut ibv_flow, "ibv_create_flow";
        fn ibv_destroy_flow(flow_id: *mut ibv_flow) -> c_int, "ibv_destroy_flow";
        fn create_wq(context: *mut ibv_context, wq_init_attr: *mut ibv_wq_init_attr) -> *mut ibv_wq, "ibv_create_wq";
        fn modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int, "ibv_modify_wq";
        fn destroy_wq(wq: *mut ibv_wq) -> c_int, "ibv_destroy_wq";
        fn create_rwq_ind_table(context: *mut ibv_context, init_attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table, "ibv_create_rwq_ind_table";
        fn destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int, "ibv_destroy_rwq_ind_table";
    }
}

/// Installs tracing of the operations of the context with the key `key`, and of `ibv_post_wq_recv`, which is
/// called through the work queue itself.
///
/// The caller holds the lock of the registry of objects. If too many contexts are open, nothing is traced.
pub(crate) fn install_tracing_operations(
    key: u64,
    ops: &mut ibv_context_ops,
    mut extended: Option<&mut verbs_context>,
) {
    let before = Box::leak(Box::new(UntracedOperations::of(ops, extended.as_deref())));
    // A closed context may have had the same address.
    OPERATIONS_BY_CONTEXT.remove(key);
    if !OPERATIONS_BY_CONTEXT.insert_unless_full(key, before) {
        return;
    }
    replace(ops, extended.as_deref_mut());
    if let Some(extended) = extended {
        extended.create_wq = extended.create_wq.and(Some(create_traced_wq));
    }
}

type PostWqRecvFn =
    unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// The provider's `ibv_post_wq_recv`, which is the same for all its work queues.
static POST_WQ_RECV: OnceLock<PostWqRecvFn> = OnceLock::new();

unsafe extern "C" fn create_traced_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    // SAFETY: the caller promises `ibv_create_wq(3)`; the work queue is new.
    unsafe {
        let wq = create_wq(context, attr);
        if let Some(new) = wq.as_mut()
            && let Some(own) = new.post_recv
            && *POST_WQ_RECV.get_or_init(|| own) as usize == own as usize
        {
            new.post_recv = Some(post_wq_recv);
        }
        wq
    }
}

unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let Some(own) = POST_WQ_RECV.get() else {
        return libc::EINVAL;
    };
    let begin = super::start_time_if_tracing();
    let mut bad = std::ptr::null_mut();
    // SAFETY: the caller promises `ibv_post_wq_recv(3)`.
    unsafe {
        let result = own(wq, wr, &raw mut bad);
        if result != 0 && !bad_wr.is_null() {
            *bad_wr = bad;
        }
        if let Some(at_ns) = begin {
            let call = ("post_wq_recv", HandleKind("wq"), wq.addr());
            super::trace_posted_recvs(at_ns, call, wr, bad, result);
        }
        result
    }
}
