//! Attributes of queue pairs, and the bits that select them.

use std::fmt;

/// New state: `IBV_QP_STATE`.
pub const IBV_QP_STATE: i32 = 1 << 0;
/// State that the caller expects the queue pair to be in: `IBV_QP_CUR_STATE`.
pub const IBV_QP_CUR_STATE: i32 = 1 << 1;
/// Request for an event when the send queue is drained: `IBV_QP_EN_SQD_ASYNC_NOTIFY`.
pub const IBV_QP_EN_SQD_ASYNC_NOTIFY: i32 = 1 << 2;
/// Access rights of requesters: `IBV_QP_ACCESS_FLAGS`.
pub const IBV_QP_ACCESS_FLAGS: i32 = 1 << 3;
/// Index in the P_Key table: `IBV_QP_PKEY_INDEX`.
pub const IBV_QP_PKEY_INDEX: i32 = 1 << 4;
/// Port number: `IBV_QP_PORT`.
pub const IBV_QP_PORT: i32 = 1 << 5;
/// Q_Key: `IBV_QP_QKEY`.
pub const IBV_QP_QKEY: i32 = 1 << 6;
/// Address vector of the peer: `IBV_QP_AV`.
pub const IBV_QP_AV: i32 = 1 << 7;
/// Path MTU, coded: `IBV_QP_PATH_MTU`.
pub const IBV_QP_PATH_MTU: i32 = 1 << 8;
/// Local ACK timeout, coded: `IBV_QP_TIMEOUT`.
pub const IBV_QP_TIMEOUT: i32 = 1 << 9;
/// Number of retries when no response arrives: `IBV_QP_RETRY_CNT`.
pub const IBV_QP_RETRY_CNT: i32 = 1 << 10;
/// Number of retries after a receiver-not-ready NAK: `IBV_QP_RNR_RETRY`.
pub const IBV_QP_RNR_RETRY: i32 = 1 << 11;
/// First packet sequence number to receive: `IBV_QP_RQ_PSN`.
pub const IBV_QP_RQ_PSN: i32 = 1 << 12;
/// Largest number of outstanding READs and atomics as requester: `IBV_QP_MAX_QP_RD_ATOMIC`.
pub const IBV_QP_MAX_QP_RD_ATOMIC: i32 = 1 << 13;
/// Alternate path: `IBV_QP_ALT_PATH`.
pub const IBV_QP_ALT_PATH: i32 = 1 << 14;
/// RNR NAK timer, coded: `IBV_QP_MIN_RNR_TIMER`.
pub const IBV_QP_MIN_RNR_TIMER: i32 = 1 << 15;
/// First packet sequence number to send: `IBV_QP_SQ_PSN`.
pub const IBV_QP_SQ_PSN: i32 = 1 << 16;
/// Largest number of incoming READs and atomics at a time as responder:
/// `IBV_QP_MAX_DEST_RD_ATOMIC`.
pub const IBV_QP_MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
/// Path migration state: `IBV_QP_PATH_MIG_STATE`.
pub const IBV_QP_PATH_MIG_STATE: i32 = 1 << 18;
/// Sizes of the queues: `IBV_QP_CAP`.
pub const IBV_QP_CAP: i32 = 1 << 19;
/// Number of the peer's queue pair: `IBV_QP_DEST_QPN`.
pub const IBV_QP_DEST_QPN: i32 = 1 << 20;
/// Packet pacing rate: `IBV_QP_RATE_LIMIT`.
pub const IBV_QP_RATE_LIMIT: i32 = 1 << 25;
/// The attributes that every driver knows: `IB_QP_ATTR_STANDARD_BITS` of `linux:include/rdma/ib_verbs.h`.
pub const STANDARD_ATTRIBUTES: i32 = (IBV_QP_DEST_QPN << 1) - 1;

/// The fields of a peer's address vector (`ibv_ah_attr`) whose values are checked against a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVectorToCheck {
    /// Source port number.
    pub port_num: u8,
    /// True if the address vector has a global route header.
    pub is_global: bool,
    /// Index of the source GID in the port's table; used only with a global route header.
    pub sgid_index: u8,
}

/// The attributes of a queue pair whose values are checked against a range: fields of `ibv_qp_attr`
/// of the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // `ibv_modify_qp(3)`, and the bits above
pub struct AttributesToCheck {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub ah_attr: AddressVectorToCheck,
    pub alt_ah_attr: AddressVectorToCheck,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
}

/// `IBV_MTU_256`, the smallest path MTU.
pub const IBV_MTU_256: u32 = 1;
/// `IBV_MTU_4096`, the largest path MTU.
pub const IBV_MTU_4096: u32 = 5;
/// `IBV_MIG_ARMED`, the largest code of a path migration state.
pub const IBV_MIG_ARMED: u32 = 2;

/// Attributes of a requester, which XRC_RECV queue pairs do not have.
pub(super) const REQUESTER_ATTRIBUTES: i32 =
    IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
/// Attributes of a responder, which XRC_SEND queue pairs do not have.
pub(super) const RESPONDER_ATTRIBUTES: i32 = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

/// A set of `IBV_QP_*` bits that prints their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AttrMask(pub i32);

impl AttrMask {
    const NAMES: [(i32, &'static str); 22] = [
        (IBV_QP_STATE, "IBV_QP_STATE"),
        (IBV_QP_CUR_STATE, "IBV_QP_CUR_STATE"),
        (IBV_QP_EN_SQD_ASYNC_NOTIFY, "IBV_QP_EN_SQD_ASYNC_NOTIFY"),
        (IBV_QP_ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"),
        (IBV_QP_PKEY_INDEX, "IBV_QP_PKEY_INDEX"),
        (IBV_QP_PORT, "IBV_QP_PORT"),
        (IBV_QP_QKEY, "IBV_QP_QKEY"),
        (IBV_QP_AV, "IBV_QP_AV"),
        (IBV_QP_PATH_MTU, "IBV_QP_PATH_MTU"),
        (IBV_QP_TIMEOUT, "IBV_QP_TIMEOUT"),
        (IBV_QP_RETRY_CNT, "IBV_QP_RETRY_CNT"),
        (IBV_QP_RNR_RETRY, "IBV_QP_RNR_RETRY"),
        (IBV_QP_RQ_PSN, "IBV_QP_RQ_PSN"),
        (IBV_QP_MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"),
        (IBV_QP_ALT_PATH, "IBV_QP_ALT_PATH"),
        (IBV_QP_MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"),
        (IBV_QP_SQ_PSN, "IBV_QP_SQ_PSN"),
        (IBV_QP_MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"),
        (IBV_QP_PATH_MIG_STATE, "IBV_QP_PATH_MIG_STATE"),
        (IBV_QP_CAP, "IBV_QP_CAP"),
        (IBV_QP_DEST_QPN, "IBV_QP_DEST_QPN"),
        (IBV_QP_RATE_LIMIT, "IBV_QP_RATE_LIMIT"),
    ];

    /// Returns true if no bit is set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: i32) -> bool {
        self.0 & other == other
    }
}

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut separator = "";
        for (bit, name) in Self::NAMES {
            if rest & bit != 0 {
                write!(f, "{separator}{name}")?;
                separator = " | ";
                rest &= !bit;
            }
        }
        if rest != 0 {
            write!(f, "{separator}{rest:#x}")?;
        } else if separator.is_empty() {
            f.write_str("0")?;
        }
        Ok(())
    }
}
