//! The capabilities of the device: queue pairs, optional verbs and limits.
//!
//! The software NIC offers all that it implements, unless `VERBATIM_CAPABILITIES` restricts it to what the driver of a
//! certain adapter offers. A program then takes the path that it would take on that adapter: without SRQs on EFA,
//! without UC on irdma.

use std::ffi::c_int;
use std::fmt;
use std::str::FromStr;

use nic_core::qp_state::QpType;
use nic_core::transport_opcodes::is_opcode_allowed;
use verbs_abi::*;

use crate::device::{
    MAX_CQE, MAX_INLINE_DATA, MAX_MR, MAX_QP, MAX_QP_INIT_RD_ATOM, MAX_QP_RD_ATOM, MAX_QP_WR,
    MAX_SGE, MAX_SRQ_SGE, MAX_SRQ_WR,
};

/// The environment variable that restricts the capabilities of the device: [`DeviceCapabilities`] in their written
/// form.
pub const CAPABILITIES_VAR: &str = "VERBATIM_CAPABILITIES";

/// The wire protocol that a device reports, `transport_type` of `ibv_get_device_list(3)`. It does not change the wire
/// of the software NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand, and RoCE: `IBV_TRANSPORT_IB`.
    #[default]
    InfiniBand,
    /// iWARP: `IBV_TRANSPORT_IWARP`.
    Iwarp,
    /// A vendor's own protocol: `IBV_TRANSPORT_UNSPECIFIED`.
    Unspecified,
}

impl Transport {
    const NAMES: [(&str, Self); 3] = [
        ("infiniband", Self::InfiniBand),
        ("iwarp", Self::Iwarp),
        ("unspecified", Self::Unspecified),
    ];

    /// Returns the node type and the transport type, which libibverbs derives from the kernel's node type (`init.c` of
    /// rdma-core).
    pub(crate) fn node_and_transport_type(self) -> (ibv_node_type, ibv_transport_type) {
        match self {
            Self::InfiniBand => (IBV_NODE_CA, IBV_TRANSPORT_IB),
            Self::Iwarp => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
            Self::Unspecified => (IBV_NODE_UNSPECIFIED, IBV_TRANSPORT_UNSPECIFIED),
        }
    }

    /// Returns the content of sysfs' `node_type` (`node_type_show` of `linux:drivers/infiniband/core/sysfs.c`).
    pub(crate) fn node_type_text(self) -> &'static str {
        match self {
            Self::InfiniBand => "1: CA",
            Self::Iwarp => "4: RNIC",
            Self::Unspecified => "7: unspecified",
        }
    }
}

/// A set of bits whose members have names.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BitNames<const N: usize>([&'static str; N]);

impl<const N: usize> BitNames<N> {
    /// The set of all members.
    const ALL: u32 = (1 << N) - 1;

    fn parse(&self, list: &str) -> Option<u32> {
        list.split(',')
            .filter(|name| !name.is_empty())
            .map(|name| self.0.iter().position(|known| *known == name))
            .try_fold(0, |set, at| Some(set | 1 << at?))
    }

    fn format_list(&self, set: u32) -> String {
        let members = (0..N).filter(|bit| set >> bit & 1 != 0);
        members.map(|bit| self.0[bit]).collect::<Vec<_>>().join(",")
    }
}

const QUEUE_PAIR_TYPE_NAMES: BitNames<5> = BitNames(["rc", "uc", "ud", "xrc", "raw"]);

/// An optional part of the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionalFeature {
    /// Shared receive queues.
    Srq,
    /// Memory windows.
    MemoryWindows,
    /// Compare-and-swap and fetch-and-add.
    Atomics,
    /// Memory regions whose pages are not pinned.
    OnDemandPaging,
    /// Shared receive queues that match tags.
    TagMatching,
    /// `ibv_alloc_dm(3)`.
    DeviceMemory,
    /// Multicast groups of UD queue pairs.
    Multicast,
    /// Immediate data.
    Immediate,
    /// RDMA flush and atomic write.
    FlushAndAtomicWrite,
}

/// The names of the features, in the order of [`OptionalFeature`].
const FEATURE_NAMES: BitNames<9> = BitNames([
    "srq",
    "mw",
    "atomics",
    "odp",
    "tags",
    "dm",
    "multicast",
    "imm",
    "flush",
]);

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident = $own:expr;)*) => {
        /// Limits of the device as `ibv_query_device(3)` names them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct Limits {
            $($(#[$doc])* pub(crate) $name: u32,)*
        }

        impl Limits {
            /// The software NIC's own limits.
            const OWN: Self = Self { $($name: $own,)* };

            fn by_name(&mut self, name: &str) -> Option<&mut u32> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }

            fn each(&self) -> impl Iterator<Item = (&'static str, u32, u32)> {
                [$((stringify!($name), self.$name, Self::OWN.$name),)*].into_iter()
            }
        }
    };
}

limits! {
    /// Queue pairs of a context.
    max_qp = MAX_QP;
    /// Work requests of one queue.
    max_qp_wr = MAX_QP_WR;
    /// Scatter/gather elements of a work request.
    max_sge = MAX_SGE;
    /// Scatter/gather elements of an RDMA READ.
    max_sge_rd = MAX_SGE;
    /// Entries of a completion queue.
    max_cqe = MAX_CQE;
    /// Memory regions of a context.
    max_mr = MAX_MR;
    /// Bytes of inline data. Not a member of `ibv_device_attr`: `ibv_create_qp(3)` refuses more.
    max_inline_data = MAX_INLINE_DATA;
    /// READs and atomics that a queue pair answers at a time.
    max_qp_rd_atom = MAX_QP_RD_ATOM;
    /// READs and atomics that a queue pair has outstanding.
    max_qp_init_rd_atom = MAX_QP_INIT_RD_ATOM;
    /// Work requests of a shared receive queue.
    max_srq_wr = MAX_SRQ_WR;
    /// Scatter/gather elements of a work request of a shared receive queue.
    max_srq_sge = MAX_SRQ_SGE;
}

/// The queue pairs, optional verbs and limits of the device.
///
/// The written form has members separated by `;`. A member that is left out has the software NIC's value, which is also
/// the largest value of a limit:
///
/// - `transport=`: `infiniband`, `iwarp` or `unspecified`;
/// - `queue_pair_types=`: of `rc`, `uc`, `ud`, `xrc`, `raw`, separated by commas;
/// - `features=`: of `srq`, `mw`, `atomics`, `odp`, `tags`, `dm`, `multicast`, `imm`, `flush`;
/// - a limit by its name in `ibv_query_device(3)`, and `max_inline_data`.
///
/// ```
/// let efa: softnic::DeviceCapabilities = "transport=unspecified;queue_pairs=ud;features=;max_sge=2".parse()?;
/// assert_eq!(efa.to_string(), "transport=unspecified;queue_pairs=ud;features=;max_sge=2");
/// # Ok::<(), softnic::CapabilitiesParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCapabilities {
    pub(crate) transport: Transport,
    /// Bits of [`QUEUE_PAIR_TYPE_NAMES`].
    queue_pair_types: u32,
    /// Bits of [`FEATURE_NAMES`].
    features: u32,
    pub(crate) limits: Limits,
}

impl Default for DeviceCapabilities {
    fn default() -> Self {
        Self {
            transport: Transport::InfiniBand,
            queue_pair_types: BitNames::<5>::ALL,
            features: BitNames::<9>::ALL,
            limits: Limits::OWN,
        }
    }
}

/// The reason why a text is not a valid [`DeviceCapabilities`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapabilitiesParseError {
    /// A member has no `=`, or an unknown name.
    #[error(
        "{0:?} is not NAME=VALUE with transport, queue_pairs, features or a limit such as max_sge for NAME"
    )]
    MalformedOrUnknownMember(String),
    /// A member has a value that it cannot have.
    #[error("{name} cannot be {value:?}: {expected}")]
    InvalidMemberValue {
        /// The member.
        name: String,
        /// The value.
        value: String,
        /// The values that it can have.
        expected: String,
    },
}

impl FromStr for DeviceCapabilities {
    type Err = CapabilitiesParseError;

    fn from_str(text: &str) -> Result<Self, CapabilitiesParseError> {
        let mut all = Self::default();
        for member in text.split(';').filter(|member| !member.is_empty()) {
            let unknown = || CapabilitiesParseError::MalformedOrUnknownMember(member.to_owned());
            let (name, value) = member.split_once('=').ok_or_else(unknown)?;
            let bad = |expected: String| CapabilitiesParseError::InvalidMemberValue {
                name: name.to_owned(),
                value: value.to_owned(),
                expected,
            };
            let some_of = |names: &[&str]| bad(format!("it has some of {}", names.join(", ")));
            match name {
                "transport" => {
                    let found = Transport::NAMES.iter().find(|(known, _)| *known == value);
                    let one_of = || bad("it is infiniband, iwarp or unspecified".to_owned());
                    all.transport = found.ok_or_else(one_of)?.1;
                }
                "queue_pairs" => {
                    let set = QUEUE_PAIR_TYPE_NAMES.parse(value);
                    all.queue_pair_types = set.ok_or_else(|| some_of(&QUEUE_PAIR_TYPE_NAMES.0))?;
                }
                "features" => {
                    let set = FEATURE_NAMES.parse(value);
                    all.features = set.ok_or_else(|| some_of(&FEATURE_NAMES.0))?;
                }
                _ => {
                    let limit = all.limits.by_name(name).ok_or_else(unknown)?;
                    let number: u32 = value
                        .parse()
                        .map_err(|_| bad("it is a number below 2^32".to_owned()))?;
                    // A program cannot get more than the software NIC has.
                    *limit = number.min(*limit);
                }
            }
        }
        Ok(all)
    }
}

impl fmt::Display for DeviceCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |(_, transport): &&(&str, Transport)| *transport == self.transport;
        let transport = Transport::NAMES
            .iter()
            .find(of)
            .map_or("", |(name, _)| name);
        let queue_pairs = QUEUE_PAIR_TYPE_NAMES.format_list(self.queue_pair_types);
        let features = FEATURE_NAMES.format_list(self.features);
        write!(
            f,
            "transport={transport};queue_pairs={queue_pairs};features={features}"
        )?;
        let narrowed = self.limits.each().filter(|(_, value, own)| value != own);
        narrowed
            .into_iter()
            .try_for_each(|(name, value, _)| write!(f, ";{name}={value}"))
    }
}

impl DeviceCapabilities {
    /// Reads the capabilities from the environment.
    pub(crate) fn from_env() -> Result<Self, InvalidCapabilitiesVariable> {
        let Some(value) = std::env::var_os(CAPABILITIES_VAR) else {
            return Ok(Self::default());
        };
        let text = value.to_string_lossy();
        text.parse().map_err(|why| InvalidCapabilitiesVariable {
            value: text.clone().into_owned(),
            why,
        })
    }

    pub(crate) fn has_feature(&self, feature: OptionalFeature) -> bool {
        self.features >> feature as u32 & 1 != 0
    }

    /// Fails with `EOPNOTSUPP` if the device lacks the feature.
    pub(crate) fn require_feature(&self, feature: OptionalFeature) -> Result<(), c_int> {
        self.has_feature(feature)
            .then_some(())
            .ok_or(libc::EOPNOTSUPP)
    }

    pub(crate) fn supports_qp_type(&self, qp_type: QpType) -> bool {
        let bit = match qp_type {
            QpType::Rc => 0,
            QpType::Uc => 1,
            QpType::Ud => 2,
            QpType::XrcSend | QpType::XrcRecv => 3,
            QpType::RawPacket => 4,
        };
        self.queue_pair_types >> bit & 1 != 0
    }

    /// Returns the opcodes (`ibv_wr_opcode`) that queue pairs of this service accept, as bits.
    pub(crate) fn accepted_wr_opcodes(&self, service: QpType) -> u32 {
        let lacking = |opcode| match opcode {
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                !self.has_feature(OptionalFeature::Atomics)
            }
            IBV_WR_ATOMIC_WRITE | IBV_WR_FLUSH => {
                !self.has_feature(OptionalFeature::FlushAndAtomicWrite)
            }
            IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM => {
                !self.has_feature(OptionalFeature::Immediate)
            }
            IBV_WR_BIND_MW => !self.has_feature(OptionalFeature::MemoryWindows),
            _ => false,
        };
        (0..u32::BITS)
            .filter(|opcode| is_opcode_allowed(service, *opcode) && !lacking(*opcode))
            .fold(0, |set, opcode| set | 1 << opcode)
    }

    /// Returns the operations of `ibv_wr_post(3)` (`IBV_QP_EX_WITH_…`) that the device lacks.
    pub(crate) fn unsupported_qp_ex_send_ops(&self) -> u64 {
        let of = |feature, operations| {
            if self.has_feature(feature) {
                0
            } else {
                operations
            }
        };
        of(
            OptionalFeature::Atomics,
            IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        ) | of(
            OptionalFeature::FlushAndAtomicWrite,
            IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_FLUSH,
        ) | of(
            OptionalFeature::Immediate,
            IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        ) | of(OptionalFeature::MemoryWindows, IBV_QP_EX_WITH_BIND_MW)
    }
}

/// [`CAPABILITIES_VAR`] has an invalid value.
#[derive(Debug, thiserror::Error)]
#[error(
    "{CAPABILITIES_VAR} is {value:?}: {why}; leave it unset for all that the software NIC can do"
)]
pub struct InvalidCapabilitiesVariable {
    value: String,
    why: CapabilitiesParseError,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_form_is_read_back() {
        let text = "transport=iwarp;queue_pairs=rc;features=srq,mw;max_qp_wr=100;max_sge=6";
        let read: DeviceCapabilities = text.parse().expect("capabilities");
        assert_eq!(read.to_string(), text);
        assert_eq!(Ok(DeviceCapabilities::default()), "".parse());
        let all = DeviceCapabilities::default();
        assert_eq!(all.to_string().parse(), Ok(all));
    }

    #[test]
    fn limits_are_no_larger_than_the_nic_s_own() {
        let read: DeviceCapabilities = "max_sge=4000".parse().expect("capabilities");
        assert_eq!(read, DeviceCapabilities::default());
    }

    #[test]
    fn other_texts_are_refused_with_their_member() {
        for (text, named) in [
            ("transport", "transport"),
            ("transport=ethernet", "infiniband, iwarp or unspecified"),
            ("queue_pairs=rc,dc", "rc, uc, ud, xrc, raw"),
            ("features=srd", "srq, mw, atomics"),
            ("max_sge=many", "number"),
            ("max_fish=1", "max_fish"),
        ] {
            let why = text
                .parse::<DeviceCapabilities>()
                .expect_err(text)
                .to_string();
            assert!(why.contains(named), "{why}");
        }
    }

    #[test]
    fn opcodes_go_with_their_feature() {
        let all = DeviceCapabilities::default();
        for service in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::RawPacket] {
            for opcode in 0..32 {
                let has = all.accepted_wr_opcodes(service) >> opcode & 1 != 0;
                assert_eq!(
                    has,
                    is_opcode_allowed(service, opcode),
                    "{service:?} {opcode}"
                );
            }
        }
        let siw: DeviceCapabilities = "features=srq".parse().expect("capabilities");
        let expected = [
            IBV_WR_SEND,
            IBV_WR_RDMA_WRITE,
            IBV_WR_RDMA_READ,
            IBV_WR_LOCAL_INV,
            IBV_WR_SEND_WITH_INV,
        ];
        let expected = expected.iter().fold(0, |set, opcode| set | 1 << opcode);
        assert_eq!(siw.accepted_wr_opcodes(QpType::Rc), expected);
    }
}
