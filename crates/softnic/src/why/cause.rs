//! The check that failed, with the numbers that it compared. Each cause has a code, the `vendor_err` of the completion;
//! `docs/why.md` lists the codes.

use std::fmt::{self, Display, Formatter};

use nic_core::rights::{Access, AccessDenied, RegionRights};
use verbs_abi::*;

/// The reason why a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureCause {
    /// The key names no region or window.
    UnknownKey {
        side: MemorySide,
        bytes: NamedMemoryRange,
    },
    /// The bytes lie outside the region of their key, which begins at `start` and has `len` bytes.
    OutOfRegion {
        side: MemorySide,
        bytes: NamedMemoryRange,
        start: u64,
        len: u64,
    },
    /// The region or window was registered without the right to the access.
    RegionAccess {
        side: MemorySide,
        bytes: NamedMemoryRange,
        access: Access,
    },
    /// The key belongs to another protection domain, or to a window that another queue pair has bound.
    WrongProtectionDomain {
        side: MemorySide,
        bytes: NamedMemoryRange,
    },
    /// The responder's queue pair does not allow the access (`qp_access_flags`).
    QueuePairAccess(Access),
    /// The region is registered, but its memory is not mapped, or the kernel does not let this process access it.
    MemoryInaccessible { side: MemorySide },
    /// The message is longer than allowed.
    TooLong { len: u64, max: u64 },
    /// The receive WR is shorter than the message.
    ShortReceive { len: u64, room: u64 },
    /// The operand of an atomic is not 8 bytes long.
    WrongOperandLength(u64),
    /// The remote address of an atomic is not a multiple of 8.
    Unaligned(u64),
    /// READs and atomics are not allowed: `max_rd_atomic` of this side, or `max_dest_rd_atomic` of the peer, is 0.
    NoReadOrAtomicResources { side: MemorySide },
    /// The peer's process has ended.
    PeerEnded { pid: u64 },
    /// No process of this fabric has the queue pair.
    NoPeer { qpn: u32 },
    /// The peer's process exists, but its queue pair is not ready to receive from this one.
    PeerNotConnected { qpn: u32, pid: u64 },
    /// The peer's queue pair expects messages on another path than this one sends them: by packets or by shared memory.
    OtherPath {
        qpn: u32,
        pid: u64,
        peer_sends_packets: bool,
    },
    /// The peer's queue pair expects another first packet sequence number than this one sends.
    OtherPsn { qpn: u32, sq_psn: u32, rq_psn: u32 },
    /// No packet of the peer has acknowledged the request.
    NoAcknowledgement,
    /// The peer refused the request by a packet (NAK), which has no room for the cause.
    RefusedByNak,
    /// The receiver had no receive WR until the retries were used up.
    NoReceiveWr,
    /// The responder refused the request, for the cause with this code.
    Refused(u16),
    /// A rule of `VERBATIM_FAULT` made the work request fail.
    InjectedFault,
}

/// The side whose memory is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemorySide {
    /// Memory named by an SGE.
    Local,
    /// Memory named by `remote_addr` and `rkey`.
    Remote,
}

/// Bytes that a work request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedMemoryRange {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// The L_Key or the R_Key.
    pub(crate) key: u32,
}

/// Added to the codes of causes whose memory is remote.
const REMOTE_CODE_OFFSET: u16 = 0x10;

impl MemorySide {
    fn vendor_err_for_side(self, local_code: u16) -> u16 {
        match self {
            Self::Local => local_code,
            Self::Remote => local_code + REMOTE_CODE_OFFSET,
        }
    }

    fn key_name(self) -> &'static str {
        match self {
            Self::Local => "lkey",
            Self::Remote => "rkey",
        }
    }
}

impl FailureCause {
    /// Returns the cause of an access to `bytes` that was denied by `region` or by the queue pair.
    pub(crate) fn of_denied_access(
        denied: AccessDenied,
        side: MemorySide,
        bytes: NamedMemoryRange,
        access: Access,
        region: &RegionRights,
    ) -> Self {
        match denied {
            AccessDenied::QueuePairAccess => Self::QueuePairAccess(access),
            AccessDenied::RegionAccess => Self::RegionAccess {
                side,
                bytes,
                access,
            },
            AccessDenied::WrongPdOrQp => Self::WrongProtectionDomain { side, bytes },
            AccessDenied::OutOfRange => Self::OutOfRegion {
                side,
                bytes,
                start: region.start,
                len: region.len,
            },
        }
    }

    /// Returns the only possible cause of a status, for use if no other cause was noted.
    pub(crate) fn only_cause_of_status(status: ibv_wc_status) -> Option<Self> {
        match status {
            IBV_WC_LOC_PROT_ERR => Some(Self::MemoryInaccessible {
                side: MemorySide::Local,
            }),
            IBV_WC_RNR_RETRY_EXC_ERR => Some(Self::NoReceiveWr),
            _ => None,
        }
    }

    /// Encodes the refusal that a receiver writes for the sender: the status, and the code of the cause.
    pub(crate) fn encode_refusal(status: ibv_wc_status, cause: Option<Self>) -> u32 {
        status | cause.map_or(0, |cause| u32::from(cause.vendor_err()) << 8)
    }

    /// Decodes the refusal that a receiver wrote: a status and a cause. `None` for 0, which is no refusal.
    pub(crate) fn decode_refusal(word: u32) -> Option<(ibv_wc_status, Option<Self>)> {
        if word == 0 {
            return None;
        }
        // The word is untrusted input of the peer: an unknown status becomes `IBV_WC_REM_OP_ERR`.
        let status = match word & 0xff {
            status @ IBV_WC_LOC_LEN_ERR..=IBV_WC_GENERAL_ERR => status,
            _ => IBV_WC_REM_OP_ERR,
        };
        let cause = match (word >> 8) as u16 {
            0 => None,
            code if code == Self::NoReceiveWr.vendor_err() => Some(Self::NoReceiveWr),
            code => Some(Self::Refused(code)),
        };
        Some((status, cause))
    }

    /// Returns the `vendor_err` of the cause: never 0, below 0x100.
    pub(crate) fn vendor_err(self) -> u16 {
        match self {
            Self::UnknownKey { side, .. } => side.vendor_err_for_side(0x01),
            Self::OutOfRegion { side, .. } => side.vendor_err_for_side(0x02),
            Self::RegionAccess { side, .. } => side.vendor_err_for_side(0x03),
            Self::WrongProtectionDomain { side, .. } => side.vendor_err_for_side(0x04),
            Self::MemoryInaccessible { side } => side.vendor_err_for_side(0x05),
            Self::NoReadOrAtomicResources { side } => side.vendor_err_for_side(0x06),
            Self::TooLong { .. } => 0x07,
            Self::WrongOperandLength(_) => 0x08,
            Self::QueuePairAccess(_) => 0x17,
            Self::Unaligned(_) => 0x18,
            Self::PeerEnded { .. } => 0x21,
            Self::NoPeer { .. } => 0x22,
            Self::PeerNotConnected { .. } => 0x23,
            Self::NoAcknowledgement => 0x24,
            Self::NoReceiveWr => 0x25,
            Self::OtherPath { .. } => 0x26,
            Self::OtherPsn { .. } => 0x27,
            Self::RefusedByNak => 0x28,
            Self::ShortReceive { .. } => 0x31,
            Self::InjectedFault => 0x41,
            Self::Refused(code) => code,
        }
    }
}

impl Display for FailureCause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnknownKey { side, bytes } => write!(
                f,
                "no memory region or window has {} {:#x}",
                side.key_name(),
                bytes.key
            ),
            Self::OutOfRegion {
                side,
                bytes,
                start,
                len,
            } => write_out_of_range(f, side, bytes, (start, len)),
            Self::RegionAccess {
                side,
                bytes,
                access,
            } => write!(
                f,
                "the region or window with {} {:#x} was registered without {}",
                side.key_name(),
                bytes.key,
                flag_name(access)
            ),
            Self::WrongProtectionDomain { side, bytes } => write!(
                f,
                "{} {:#x} belongs to another protection domain than the queue pair, or to a window of another queue pair",
                side.key_name(),
                bytes.key
            ),
            Self::QueuePairAccess(access) => write!(
                f,
                "qp_access_flags of the responder's queue pair lack {}",
                flag_name(access)
            ),
            Self::MemoryInaccessible { side: MemorySide::Local } => f.write_str(
                "the memory of an SGE is registered and no longer mapped, or is mapped without the access",
            ),
            Self::MemoryInaccessible { side: MemorySide::Remote } => f.write_str(
                "the remote memory is registered and cannot be reached: its process has unmapped it, or the kernel refuses \
                 copies between processes (verbatim doctor says what to change)",
            ),
            Self::TooLong { len, max } => {
                write!(f, "the message has {len} bytes, and {max} are allowed")
            }
            Self::ShortReceive { len, room } => write!(
                f,
                "the message has {len} bytes, and the receive work request {room}"
            ),
            Self::WrongOperandLength(len) => {
                write!(f, "the SGEs of an atomic have {len} bytes, not 8")
            }
            Self::Unaligned(addr) => write!(
                f,
                "the remote address {addr:#x} of an atomic is not a multiple of 8"
            ),
            Self::NoReadOrAtomicResources { side: MemorySide::Local } => {
                f.write_str("max_rd_atomic of the queue pair is 0")
            }
            Self::NoReadOrAtomicResources { side: MemorySide::Remote } => {
                f.write_str("max_dest_rd_atomic of the responder's queue pair is 0")
            }
            Self::PeerEnded { pid } => write!(f, "the peer's process {pid} has ended"),
            Self::NoPeer { qpn } => write!(
                f,
                "no process of this fabric has queue pair {qpn:#x}"
            ),
            Self::PeerNotConnected { qpn, pid } => write!(
                f,
                "queue pair {qpn:#x} of process {pid} is not ready to receive from this one: it was reset or destroyed, \
                 has not reached RTR, or its dest_qp_num is another"
            ),
            Self::OtherPath {
                qpn,
                pid,
                peer_sends_packets,
            } => {
                let (peer, own) = if peer_sends_packets {
                    ("sends packets (--path packets, or --pcap)", "uses shared memory")
                } else {
                    ("uses shared memory", "sends packets (--path packets, or --pcap)")
                };
                write!(
                    f,
                    "queue pair {qpn:#x} of process {pid} {peer}, and this process {own}: give the option to both"
                )
            }
            Self::OtherPsn {
                qpn,
                sq_psn,
                rq_psn,
            } => write!(
                f,
                "the peer's queue pair {qpn:#x} expects the first PSN {rq_psn:#x} (its rq_psn), and this one sends {sq_psn:#x} \
                 (its sq_psn): give the rq_psn of each the sq_psn of the other"
            ),
            Self::NoAcknowledgement => f.write_str(
                "no packet of the peer acknowledged the request within the timeout and its retries",
            ),
            Self::RefusedByNak => f.write_str(
                "the peer refused the request, and a packet has no room for the reason: `verbatim run --why` at the peer prints it",
            ),
            Self::NoReceiveWr => f.write_str(
                "the receiver had no receive work request within min_rnr_timer and rnr_retry",
            ),
            Self::Refused(code) => write_refusal_by_code(f, code),
            Self::InjectedFault => f.write_str("a rule of --fault made it fail"),
        }
    }
}

fn write_out_of_range(
    f: &mut Formatter<'_>,
    side: MemorySide,
    bytes: NamedMemoryRange,
    (start, len): (u64, u64),
) -> fmt::Result {
    let key = side.key_name();
    let NamedMemoryRange {
        addr,
        len: wanted,
        key: number,
    } = bytes;
    let end = u128::from(addr) + u128::from(wanted);
    let region_end = u128::from(start) + u128::from(len);
    write!(
        f,
        "{wanted} bytes at {addr:#x} leave the region of {key} {number:#x}, which has {len} bytes at {start:#x}"
    )?;
    if addr < start {
        write!(f, ": they begin {} bytes before it", start - addr)?;
    } else if end > region_end {
        write!(f, ": they end {} bytes behind it", end - region_end)?;
    }
    Ok(())
}

fn write_refusal_by_code(f: &mut Formatter<'_>, code: u16) -> fmt::Result {
    f.write_str("the receiver refused the message: ")?;
    f.write_str(match code {
        0x01..=0x06 => "its receive work request names memory that it may not write",
        0x25 => "it had no receive work request within min_rnr_timer and rnr_retry",
        0x31 => "its receive work request is shorter than the message",
        0x41 => "a rule of --fault made its receive work request fail",
        _ => "the message is none that its queue pair takes",
    })?;
    f.write_str("; its own process knows the numbers")
}

/// Returns the flag of `ibv_reg_mr(3)` that allows an access.
fn flag_name(access: Access) -> &'static str {
    match access {
        Access::LocalRead => "the right to be read",
        Access::LocalWrite => "IBV_ACCESS_LOCAL_WRITE",
        Access::RemoteWrite => "IBV_ACCESS_REMOTE_WRITE",
        Access::RemoteRead => "IBV_ACCESS_REMOTE_READ",
        Access::RemoteAtomic => "IBV_ACCESS_REMOTE_ATOMIC",
        Access::FlushGlobal => "IBV_ACCESS_FLUSH_GLOBAL",
        Access::FlushPersistent => "IBV_ACCESS_FLUSH_PERSISTENT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_says_by_how_much_it_is_exceeded() {
        let range = |addr, len| FailureCause::OutOfRegion {
            side: MemorySide::Remote,
            bytes: NamedMemoryRange {
                addr,
                len,
                key: 0x1b,
            },
            start: 0x1000,
            len: 64,
        };
        let text = range(0x1000, 128).to_string();
        assert!(text.contains("rkey 0x1b"), "{text}");
        assert!(text.ends_with("they end 64 bytes behind it"), "{text}");
        let text = range(0xfff, 8).to_string();
        assert!(text.ends_with("they begin 1 bytes before it"), "{text}");
        // Numbers of a peer are untrusted input.
        let text = range(u64::MAX, u64::MAX).to_string();
        assert!(text.contains("bytes behind it"), "{text}");
    }

    #[test]
    fn codes_are_not_zero_and_differ() {
        let bytes = NamedMemoryRange {
            addr: 0,
            len: 0,
            key: 0,
        };
        let of = |side| {
            [
                FailureCause::UnknownKey { side, bytes },
                FailureCause::OutOfRegion {
                    side,
                    bytes,
                    start: 0,
                    len: 0,
                },
                FailureCause::RegionAccess {
                    side,
                    bytes,
                    access: Access::LocalWrite,
                },
                FailureCause::WrongProtectionDomain { side, bytes },
                FailureCause::MemoryInaccessible { side },
                FailureCause::NoReadOrAtomicResources { side },
            ]
        };
        let others = [
            FailureCause::QueuePairAccess(Access::RemoteRead),
            FailureCause::TooLong { len: 1, max: 0 },
            FailureCause::ShortReceive { len: 1, room: 0 },
            FailureCause::WrongOperandLength(4),
            FailureCause::Unaligned(1),
            FailureCause::PeerEnded { pid: 1 },
            FailureCause::NoPeer { qpn: 1 },
            FailureCause::PeerNotConnected { qpn: 1, pid: 1 },
            FailureCause::OtherPath {
                qpn: 1,
                pid: 1,
                peer_sends_packets: true,
            },
            FailureCause::OtherPsn {
                qpn: 1,
                sq_psn: 0,
                rq_psn: 1,
            },
            FailureCause::NoAcknowledgement,
            FailureCause::RefusedByNak,
            FailureCause::NoReceiveWr,
            FailureCause::InjectedFault,
        ];
        let all = of(MemorySide::Local)
            .into_iter()
            .chain(of(MemorySide::Remote))
            .chain(others);
        let mut codes: Vec<u16> = all.map(FailureCause::vendor_err).collect();
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), count);
        assert!(codes.iter().all(|code| (1..0x100).contains(code)));
    }
}
