//! The names that plans use for numbers of the C ABI.

use verbs_abi::*;

/// A table of names and their numbers.
pub(crate) type NameTable<T> = &'static [(&'static str, T)];

macro_rules! errnos {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// Errno values with which a verb can fail.
pub(crate) const ERRNOS: NameTable<i32> = errnos! {
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EINVAL ENFILE EMFILE ENOSPC
    ERANGE ENOSYS EOPNOTSUPP EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNRESET ENOBUFS ETIMEDOUT ECONNREFUSED
    EHOSTUNREACH
};

macro_rules! prefixed {
    ($prefix:literal: $($name:ident)*) => {
        &[$((strip(stringify!($name), $prefix), $name)),*]
    };
}

/// Returns `name` without as many leading characters as `prefix` has.
const fn strip(name: &'static str, prefix: &str) -> &'static str {
    name.split_at(prefix.len()).1
}

/// Statuses with which a work request can complete.
pub(crate) const STATUSES: NameTable<u32> = prefixed! { "IBV_WC_":
    IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR IBV_WC_LOC_PROT_ERR IBV_WC_MW_BIND_ERR
    IBV_WC_BAD_RESP_ERR IBV_WC_LOC_ACCESS_ERR IBV_WC_REM_INV_REQ_ERR IBV_WC_REM_ACCESS_ERR IBV_WC_REM_OP_ERR
    IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_REM_ABORT_ERR IBV_WC_FATAL_ERR IBV_WC_RESP_TIMEOUT_ERR
    IBV_WC_GENERAL_ERR
};

/// Statuses with which a RECV can complete.
pub(crate) const RECV_STATUSES: NameTable<u32> =
    prefixed! { "IBV_WC_": IBV_WC_LOC_LEN_ERR IBV_WC_LOC_PROT_ERR };

/// The asynchronous events that can be raised.
pub(crate) const EVENTS: NameTable<u32> = prefixed! { "IBV_EVENT_":
    IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_COMM_EST IBV_EVENT_PATH_MIG
    IBV_EVENT_PATH_MIG_ERR IBV_EVENT_DEVICE_FATAL IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_LID_CHANGE
    IBV_EVENT_PKEY_CHANGE IBV_EVENT_SM_CHANGE IBV_EVENT_CLIENT_REREGISTER IBV_EVENT_GID_CHANGE
};

/// Operations of work requests and packets: the values of `opcode=`.
pub const OPERATIONS: &[&str] = &[
    "SEND",
    "RDMA_WRITE",
    "RDMA_READ",
    "ATOMIC",
    "ATOMIC_WRITE",
    "FLUSH",
    "BIND_MW",
    "LOCAL_INV",
    "RECV",
    "READ_RESPONSE",
    "ACK",
    "CNP",
];

/// Returns the operation of a work request's `opcode` (`ibv_post_send(3)`).
#[must_use]
pub const fn operation_of_opcode(opcode: ibv_wr_opcode) -> &'static str {
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => "RDMA_WRITE",
        IBV_WR_RDMA_READ => "RDMA_READ",
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => "ATOMIC",
        IBV_WR_ATOMIC_WRITE => "ATOMIC_WRITE",
        IBV_WR_FLUSH => "FLUSH",
        IBV_WR_BIND_MW => "BIND_MW",
        IBV_WR_LOCAL_INV => "LOCAL_INV",
        _ => "SEND",
    }
}

/// The verbs that a plan can make fail, as C programs call them.
pub(crate) const VERBS: &[&str] = &[
    "ibv_get_device_list",
    "ibv_open_device",
    "ibv_close_device",
    "ibv_import_device",
    "ibv_query_device",
    "ibv_query_device_ex",
    "ibv_query_port",
    "ibv_query_gid",
    "ibv_query_gid_ex",
    "ibv_query_gid_type",
    "ibv_query_pkey",
    "ibv_get_pkey_index",
    "ibv_query_rt_values",
    "ibv_get_async_event",
    "ibv_alloc_pd",
    "ibv_dealloc_pd",
    "ibv_import_pd",
    "ibv_alloc_td",
    "ibv_dealloc_td",
    "ibv_alloc_parent_domain",
    "ibv_reg_mr",
    "ibv_reg_mr_iova",
    "ibv_reg_mr_iova2",
    "ibv_reg_dmabuf_mr",
    "ibv_rereg_mr",
    "ibv_dereg_mr",
    "ibv_import_mr",
    "ibv_advise_mr",
    "ibv_alloc_null_mr",
    "ibv_alloc_dm",
    "ibv_free_dm",
    "ibv_import_dm",
    "ibv_reg_dm_mr",
    "ibv_alloc_mw",
    "ibv_dealloc_mw",
    "ibv_bind_mw",
    "ibv_create_comp_channel",
    "ibv_destroy_comp_channel",
    "ibv_create_cq",
    "ibv_create_cq_ex",
    "ibv_resize_cq",
    "ibv_modify_cq",
    "ibv_destroy_cq",
    "ibv_get_cq_event",
    "ibv_req_notify_cq",
    "ibv_poll_cq",
    "ibv_create_srq",
    "ibv_create_srq_ex",
    "ibv_modify_srq",
    "ibv_query_srq",
    "ibv_destroy_srq",
    "ibv_get_srq_num",
    "ibv_post_srq_recv",
    "ibv_post_srq_ops",
    "ibv_open_xrcd",
    "ibv_close_xrcd",
    "ibv_create_qp",
    "ibv_create_qp_ex",
    "ibv_open_qp",
    "ibv_query_qp",
    "ibv_modify_qp",
    "ibv_destroy_qp",
    "ibv_query_ece",
    "ibv_set_ece",
    "ibv_attach_mcast",
    "ibv_detach_mcast",
    "ibv_post_send",
    "ibv_wr_complete",
    "ibv_post_recv",
    "ibv_create_ah",
    "ibv_create_ah_from_wc",
    "ibv_init_ah_from_wc",
    "ibv_destroy_ah",
    "ibv_create_flow",
    "ibv_destroy_flow",
    "ibv_create_wq",
    "ibv_modify_wq",
    "ibv_destroy_wq",
    "ibv_create_rwq_ind_table",
    "ibv_destroy_rwq_ind_table",
];

/// Returns the number that `name` stands for in a table; case is ignored, and `prefix` may be left
/// out.
pub(crate) fn parse_named_value<T: Copy>(
    names: NameTable<T>,
    prefix: &str,
    what: &str,
    text: &str,
) -> Result<(&'static str, T), String> {
    let upper = text.to_ascii_uppercase();
    let bare = upper.strip_prefix(prefix).unwrap_or(&upper);
    let found = names.iter().find(|(name, _)| *name == bare);
    found.copied().ok_or_else(|| {
        let all: Vec<_> = names.iter().map(|(name, _)| *name).collect();
        format!("{text:?} is no {what}; possible are {}", all.join(", "))
    })
}

/// Returns the element of `all` that equals `text`, ignoring case.
pub(crate) fn parse_name(
    all: &'static [&'static str],
    what: &str,
    text: &str,
) -> Result<&'static str, String> {
    let found = all.iter().find(|name| name.eq_ignore_ascii_case(text));
    found
        .copied()
        .ok_or_else(|| format!("{text:?} is no {what}; possible are {}", all.join(", ")))
}

/// Returns true if a rule for the verb `rule` applies to a call of `called`. A rule for a verb also
/// applies to the variants of the verb. `verbs.h` turns `ibv_reg_mr` into a variant by the access
/// flags, and a program's `ibv_create_qp` may be the extended variant.
pub(crate) fn verb_covers_call(rule: &str, called: &str) -> bool {
    match called.strip_prefix(rule) {
        Some("") => true,
        Some(variant) => matches!(variant, "_ex" | "_iova" | "_iova2"),
        None => rule == "ibv_post_send" && called == "ibv_wr_complete",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_for_the_numbers_of_the_headers() {
        assert_eq!(
            parse_named_value(STATUSES, "IBV_WC_", "status", "ibv_wc_rem_access_err").map(|s| s.1),
            Ok(IBV_WC_REM_ACCESS_ERR)
        );
        assert_eq!(
            parse_named_value(EVENTS, "IBV_EVENT_", "event", "PORT_ERR").map(|e| e.1),
            Ok(IBV_EVENT_PORT_ERR)
        );
        assert_eq!(
            parse_named_value(ERRNOS, "", "errno", "enomem").map(|e| e.1),
            Ok(libc::ENOMEM)
        );
        let wrong = parse_named_value(ERRNOS, "", "errno", "ENOMEN").unwrap_err();
        assert!(wrong.contains("ENOMEM"), "{wrong}");
    }

    #[test]
    fn a_verb_stands_for_its_variants_and_no_other_verb() {
        assert!(verb_covers_call("ibv_reg_mr", "ibv_reg_mr_iova2"));
        assert!(verb_covers_call("ibv_create_qp", "ibv_create_qp_ex"));
        assert!(!verb_covers_call("ibv_reg_mr_iova2", "ibv_reg_mr"));
        assert!(!verb_covers_call("ibv_create_ah", "ibv_create_ah_from_wc"));
    }
}
