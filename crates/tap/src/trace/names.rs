//! Names of handles (short, numbered in the order of creation), and names of numbers from the headers.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Mutex, OnceLock, TryLockError};

use verbs_abi::*;

/// A kind of handle, such as `qp`: the prefix of the names of these handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleKind(pub &'static str);

/// The numbers of handles by kind and address, and the last number of each kind.
#[derive(Default)]
struct HandleNames {
    number_by_handle: HashMap<(String, usize), u32>,
    last_number_by_kind: HashMap<String, u32>,
}

/// Calls `work` with the handle numbers of this process.
///
/// Returns `None` if the lock of the numbers stays locked for ever. This happens in a child that was forked while
/// another thread held the lock.
fn with_handle_names<T>(work: impl FnOnce(&mut HandleNames) -> T) -> Option<T> {
    static NAMES: Mutex<Option<HandleNames>> = Mutex::new(None);
    const MAX_TRIES: u32 = 1000;
    for _ in 0..MAX_TRIES {
        match NAMES.try_lock() {
            Ok(mut names) => return Some(work(names.get_or_insert_default())),
            Err(TryLockError::Poisoned(names)) => {
                return Some(work(names.into_inner().get_or_insert_default()));
            }
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// Adds the name of a handle to the text. A handle that is new or unknown gets the next number of its kind.
pub(crate) fn write_handle_name(text: &mut String, kind: HandleKind, address: usize, is_new: bool) {
    if address == 0 {
        text.push_str("NULL");
        return;
    }
    let number = match NUMBERING_FUNCTION.get() {
        // SAFETY: the caller of `install_numbering_function` promised this function; the kind's name has the given
        // length.
        Some(number) => unsafe { number(kind.0.as_ptr(), kind.0.len(), address, is_new) },
        None => handle_number(kind.0, address, is_new),
    };
    // Writing to a string does not fail, here and below.
    let _ = match number {
        0 => write!(text, "{}@{address:x}", kind.0),
        number => write!(text, "{}{number}", kind.0),
    };
}

/// Returns the number of a handle among the handles of its kind; 0 if the number cannot be determined.
fn handle_number(kind: &str, address: usize, is_new: bool) -> u32 {
    let number = with_handle_names(|names| {
        let known = names
            .number_by_handle
            .get(&(kind.to_owned(), address))
            .copied();
        known.filter(|_| !is_new).unwrap_or_else(|| {
            let last = names
                .last_number_by_kind
                .entry(kind.to_owned())
                .or_default();
            *last += 1;
            names
                .number_by_handle
                .insert((kind.to_owned(), address), *last);
            *last
        })
    });
    number.unwrap_or(0)
}

/// A function that returns the number of a handle. Its arguments are the kind's name and length, the address, and
/// whether the handle is new.
pub type HandleNumberingFn = unsafe extern "C" fn(*const u8, usize, usize, bool) -> u32;

/// The function of another library that numbers handles; empty if this library numbers handles itself.
static NUMBERING_FUNCTION: OnceLock<HandleNumberingFn> = OnceLock::new();

/// Makes `number` number all handles from now on, so that two libraries of a process use the same names in a trace.
///
/// # Safety
/// `number` is [`number_of`] of a library that stays loaded.
pub unsafe fn install_numbering_function(number: HandleNumberingFn) {
    let _ = NUMBERING_FUNCTION.set(number);
}

/// Returns the number of a handle; another library of this process passes this function to
/// [`install_numbering_function`].
///
/// # Safety
/// `kind` has `len` bytes.
pub unsafe extern "C" fn number_of(
    kind: *const u8,
    len: usize,
    address: usize,
    is_new: bool,
) -> u32 {
    // SAFETY: contract of this function.
    let kind = unsafe { std::slice::from_raw_parts(kind, len) };
    std::str::from_utf8(kind).map_or(0, |kind| handle_number(kind, address, is_new))
}

/// Adds the name of a number to the text: a name from `names` without `prefix`, or the number itself if it has no
/// name.
pub(super) fn write_named_value(
    text: &mut String,
    number: u32,
    prefix: &str,
    names: &[(&str, u32)],
) {
    match names.iter().find(|(_, value)| *value == number) {
        Some((name, _)) => text.push_str(name.strip_prefix(prefix).unwrap_or(name)),
        None => {
            let _ = write!(text, "{number}");
        }
    }
}

/// Adds the names of the bits of a number to the text, separated by `|`.
pub(super) fn write_flag_names(
    text: &mut String,
    number: u32,
    prefix: &str,
    names: &[(&str, u32)],
) {
    if number == 0 {
        text.push('0');
    }
    let mut rest = number;
    let begin = text.len();
    for (name, bit) in names.iter().filter(|(_, bit)| number & bit == *bit) {
        if text.len() > begin {
            text.push('|');
        }
        text.push_str(name.strip_prefix(prefix).unwrap_or(name));
        rest &= !bit;
    }
    if rest != 0 {
        let _ = write!(
            text,
            "{}{rest:#x}",
            if text.len() > begin { "|" } else { "" }
        );
    }
}

macro_rules! tables {
    ($( $(#[$meta:meta])* $table:ident: $($name:ident)*; )*) => {
        $(
            $(#[$meta])*
            pub(super) const $table: &[(&str, u32)] = &[$( (stringify!($name), $name) ),*];
        )*
    };
}

tables! {
    /// `enum ibv_wr_opcode`.
    WR_OPCODES: IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM IBV_WR_SEND IBV_WR_SEND_WITH_IMM
        IBV_WR_RDMA_READ IBV_WR_ATOMIC_CMP_AND_SWP IBV_WR_ATOMIC_FETCH_AND_ADD IBV_WR_LOCAL_INV IBV_WR_BIND_MW
        IBV_WR_SEND_WITH_INV IBV_WR_TSO IBV_WR_FLUSH IBV_WR_ATOMIC_WRITE;
    /// `enum ibv_wc_opcode`.
    WC_OPCODES: IBV_WC_SEND IBV_WC_RDMA_WRITE IBV_WC_RDMA_READ IBV_WC_COMP_SWAP IBV_WC_FETCH_ADD IBV_WC_BIND_MW
        IBV_WC_LOCAL_INV IBV_WC_TSO IBV_WC_FLUSH IBV_WC_ATOMIC_WRITE IBV_WC_RECV IBV_WC_RECV_RDMA_WITH_IMM
        IBV_WC_TM_ADD IBV_WC_TM_DEL IBV_WC_TM_SYNC IBV_WC_TM_RECV IBV_WC_TM_NO_TAG;
    /// `enum ibv_ops_wr_opcode`.
    SRQ_OPCODES: IBV_WR_TAG_ADD IBV_WR_TAG_DEL IBV_WR_TAG_SYNC;
    /// `enum ibv_wc_status`.
    STATUSES: IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR IBV_WC_LOC_EEC_OP_ERR IBV_WC_LOC_PROT_ERR
        IBV_WC_WR_FLUSH_ERR IBV_WC_MW_BIND_ERR IBV_WC_BAD_RESP_ERR IBV_WC_LOC_ACCESS_ERR IBV_WC_REM_INV_REQ_ERR
        IBV_WC_REM_ACCESS_ERR IBV_WC_REM_OP_ERR IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR
        IBV_WC_LOC_RDD_VIOL_ERR IBV_WC_REM_INV_RD_REQ_ERR IBV_WC_REM_ABORT_ERR IBV_WC_INV_EECN_ERR
        IBV_WC_INV_EEC_STATE_ERR IBV_WC_FATAL_ERR IBV_WC_RESP_TIMEOUT_ERR IBV_WC_GENERAL_ERR IBV_WC_TM_ERR
        IBV_WC_TM_RNDV_INCOMPLETE;
    /// `enum ibv_send_flags`.
    SEND_FLAGS: IBV_SEND_FENCE IBV_SEND_SIGNALED IBV_SEND_SOLICITED IBV_SEND_INLINE IBV_SEND_IP_CSUM;
    /// `enum ibv_qp_type`.
    QP_TYPES: IBV_QPT_RC IBV_QPT_UC IBV_QPT_UD IBV_QPT_RAW_PACKET IBV_QPT_XRC_SEND IBV_QPT_XRC_RECV IBV_QPT_DRIVER;
    /// `enum ibv_qp_state`.
    QP_STATES: IBV_QPS_RESET IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_SQD IBV_QPS_SQE IBV_QPS_ERR;
    /// `enum ibv_wq_state`.
    WQ_STATES: IBV_WQS_RESET IBV_WQS_RDY IBV_WQS_ERR;
    /// `enum ibv_flow_attr_type`.
    FLOW_KINDS: IBV_FLOW_ATTR_NORMAL IBV_FLOW_ATTR_ALL_DEFAULT IBV_FLOW_ATTR_MC_DEFAULT IBV_FLOW_ATTR_SNIFFER;
    /// `enum ibv_flow_spec_type`.
    FLOW_SPECS: IBV_FLOW_SPEC_ETH IBV_FLOW_SPEC_IPV4 IBV_FLOW_SPEC_IPV6 IBV_FLOW_SPEC_IPV4_EXT IBV_FLOW_SPEC_ESP
        IBV_FLOW_SPEC_TCP IBV_FLOW_SPEC_UDP IBV_FLOW_SPEC_VXLAN_TUNNEL IBV_FLOW_SPEC_GRE IBV_FLOW_SPEC_MPLS
        IBV_FLOW_SPEC_ACTION_TAG IBV_FLOW_SPEC_ACTION_DROP IBV_FLOW_SPEC_ACTION_HANDLE IBV_FLOW_SPEC_ACTION_COUNT;
    /// `enum ibv_event_type`.
    EVENTS: IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_COMM_EST
        IBV_EVENT_SQ_DRAINED IBV_EVENT_PATH_MIG IBV_EVENT_PATH_MIG_ERR IBV_EVENT_DEVICE_FATAL
        IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_LID_CHANGE IBV_EVENT_PKEY_CHANGE IBV_EVENT_SM_CHANGE
        IBV_EVENT_SRQ_ERR IBV_EVENT_SRQ_LIMIT_REACHED IBV_EVENT_QP_LAST_WQE_REACHED IBV_EVENT_CLIENT_REREGISTER
        IBV_EVENT_GID_CHANGE IBV_EVENT_WQ_FATAL;
    /// `enum rdma_cm_event_type`.
    CM_EVENTS: RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ADDR_ERROR RDMA_CM_EVENT_ROUTE_RESOLVED
        RDMA_CM_EVENT_ROUTE_ERROR RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_CONNECT_RESPONSE
        RDMA_CM_EVENT_CONNECT_ERROR RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED RDMA_CM_EVENT_ESTABLISHED
        RDMA_CM_EVENT_DISCONNECTED RDMA_CM_EVENT_DEVICE_REMOVAL RDMA_CM_EVENT_MULTICAST_JOIN
        RDMA_CM_EVENT_MULTICAST_ERROR RDMA_CM_EVENT_ADDR_CHANGE RDMA_CM_EVENT_TIMEWAIT_EXIT;
    /// `enum rdma_port_space`.
    PORT_SPACES: RDMA_PS_IPOIB RDMA_PS_TCP RDMA_PS_UDP RDMA_PS_IB;
}

/// `enum ibv_placement_type`.
pub(super) const FLUSH_PLACEMENT_NAMES: &[(&str, u32)] = &[
    ("IBV_FLUSH_GLOBAL", IBV_FLUSH_GLOBAL as u32),
    ("IBV_FLUSH_PERSISTENT", IBV_FLUSH_PERSISTENT as u32),
];

/// `enum ibv_selectivity_level`.
pub(super) const FLUSH_SELECTIVITY_NAMES: &[(&str, u32)] = &[
    ("IBV_FLUSH_RANGE", IBV_FLUSH_RANGE as u32),
    ("IBV_FLUSH_MR", IBV_FLUSH_MR as u32),
];

macro_rules! access_flags {
    ($( $name:ident )*) => {
        /// `enum ibv_access_flags`.
        pub(super) const ACCESS: &[(&str, u32)] = &[$( (stringify!($name), $name.cast_unsigned()) ),*];
    };
}

access_flags! {
    IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ IBV_ACCESS_REMOTE_ATOMIC
    IBV_ACCESS_MW_BIND IBV_ACCESS_ZERO_BASED IBV_ACCESS_ON_DEMAND IBV_ACCESS_HUGETLB IBV_ACCESS_FLUSH_GLOBAL
    IBV_ACCESS_FLUSH_PERSISTENT IBV_ACCESS_RELAXED_ORDERING
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: HandleKind, address: usize, is_new: bool) -> String {
        let mut text = String::new();
        write_handle_name(&mut text, kind, address, is_new);
        text
    }

    #[test]
    fn handles_are_numbered_by_kind_and_an_address_that_comes_back_is_a_new_one() {
        let (a, b) = (HandleKind("test_a"), HandleKind("test_b"));
        assert_eq!(of(a, 0x10, true), "test_a1");
        assert_eq!(of(b, 0x10, true), "test_b1");
        assert_eq!(of(a, 0x20, false), "test_a2");
        assert_eq!(of(a, 0x10, false), "test_a1");
        assert_eq!(of(a, 0x10, true), "test_a3");
        assert_eq!(of(a, 0, false), "NULL");
    }

    #[test]
    fn bits_and_numbers_without_a_name_are_kept() {
        let mut text = String::new();
        write_flag_names(
            &mut text,
            IBV_SEND_INLINE | 1 << 20,
            "IBV_SEND_",
            SEND_FLAGS,
        );
        text.push(' ');
        write_flag_names(&mut text, 1 << 20, "IBV_SEND_", SEND_FLAGS);
        text.push(' ');
        write_named_value(&mut text, 77, "IBV_WR_", WR_OPCODES);
        text.push(' ');
        write_named_value(&mut text, IBV_WR_SEND, "IBV_WR_", WR_OPCODES);
        assert_eq!(text, "INLINE|0x100000 0x100000 77 SEND");
    }

    #[test]
    fn every_status_has_a_name() {
        // This status is the last value of `enum ibv_wc_status`.
        for status in 0..=IBV_WC_TM_RNDV_INCOMPLETE {
            let mut text = String::new();
            write_named_value(&mut text, status, "IBV_WC_", STATUSES);
            assert!(!text.starts_with(|c: char| c.is_ascii_digit()), "{text}");
        }
    }
}
