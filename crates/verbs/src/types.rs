//! Numbers of the verbs as newtypes, so that numbers of different meaning have different types.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use serde::{Deserialize, Serialize};
use verbs_abi as abi;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($int:ty), $fmt:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }
    };
}

number!(
    /// A queue pair number, 24 bits.
    Qpn(u32), "{:#08x}");
number!(
    /// A packet sequence number, 24 bits.
    Psn(u32), "{:#08x}");
number!(
    /// An L_Key, which identifies a memory region in this process's own WRs.
    LKey(u32), "{:#010x}");
number!(
    /// An R_Key, which identifies a memory region in a peer's WRs.
    RKey(u32), "{:#010x}");
number!(
    /// A Q_Key, which a datagram must carry to be accepted by a UD queue pair.
    QKey(u32), "{:#010x}");
number!(
    /// A P_Key, which identifies a partition.
    PKey(u16), "{:#06x}");
number!(
    /// A local identifier, the address of a port in an InfiniBand subnet; 0 on Ethernet.
    Lid(u16), "{}");

impl Psn {
    /// Returns a random PSN for the start of a connection.
    pub fn random() -> Self {
        Self(random_u32() & 0xff_ffff)
    }
}

impl QKey {
    /// Returns a random Q_Key. The top bit is 0, since a set one selects the QP's own Q_Key (IBTA
    /// vol. 1, 10.2.5).
    pub fn random() -> Self {
        Self(random_u32() & 0x7fff_ffff)
    }
}

/// Returns 32 random bits that another process cannot predict; not for secrets.
fn random_u32() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let seed = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "any 32 bits of the hash do"
    )]
    {
        (seed >> 16) as u32
    }
}

/// A global identifier: an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns true for the empty entry of a GID table.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// Returns true for an IPv4-mapped address, as in RoCE v2 over IPv4.
    pub fn is_ipv4_mapped(&self) -> bool {
        self.0[..10] == [0; 10] && self.0[10..12] == [0xff, 0xff]
    }

    /// Returns true for a link-local address (fe80::/10, or mapped 169.254.0.0/16), which no router
    /// forwards.
    pub fn is_link_local(&self) -> bool {
        let mapped = self.is_ipv4_mapped() && self.0[12..14] == [169, 254];
        mapped || (self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80)
    }
}

/// The packet format of a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    #[serde(rename = "IB")]
    Ib,
    /// RoCE v1: a GRH in an Ethernet frame, not routable.
    #[serde(rename = "RoCE v1")]
    RoceV1,
    /// RoCE v2: UDP over IP.
    #[serde(rename = "RoCE v2")]
    RoceV2,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ib => "IB",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&std::net::Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl Serialize for Gid {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Gid {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let addr: std::net::Ipv6Addr = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(addr.octets()))
    }
}

/// Access rights of a memory region or a queue pair (`IBV_ACCESS_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(pub(crate) i32);

impl Access {
    /// The NIC may only read the memory, for this process's own WRs.
    pub const LOCAL_READ: Self = Self(0);
    /// The NIC may write the memory: RECV buffers, results of READs and atomics.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may RDMA WRITE to the memory. Needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Peers may RDMA READ the memory.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Peers may use atomics on the memory. Needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// All access rights.
    pub const ALL: Self = Self(0b1111);

    /// Returns the `IBV_ACCESS_*` bits.
    pub fn bits(self) -> i32 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

macro_rules! c_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:expr, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
            /// A value that this version does not know, as the provider returned it.
            Other(u32),
        }

        impl $name {
            /// Converts a value of `verbs.h`; unknown ones become `Other`.
            #[inline]
            pub fn from_raw(raw: u32) -> Self {
                $(if raw == $value as u32 { return Self::$variant; })*
                Self::Other(raw)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant => f.write_str($text),)*
                    Self::Other(v) => write!(f, "unknown ({v})"),
                }
            }
        }
    };
}
pub(crate) use c_enum;

c_enum! {
    /// The state of a queue pair.
    QpState {
        /// Newly created, or reset.
        Reset = abi::IBV_QPS_RESET, "RESET";
        /// RECVs may be posted.
        Init = abi::IBV_QPS_INIT, "INIT";
        /// Ready to receive.
        Rtr = abi::IBV_QPS_RTR, "RTR";
        /// Ready to send.
        Rts = abi::IBV_QPS_RTS, "RTS";
        /// Send queue drained.
        Sqd = abi::IBV_QPS_SQD, "SQD";
        /// Send queue error (UC, UD).
        Sqe = abi::IBV_QPS_SQE, "SQE";
        /// Error: all WRs are flushed.
        Err = abi::IBV_QPS_ERR, "ERR";
    }
}

c_enum! {
    /// The link layer of a port, which determines the addressing of peers.
    LinkLayer {
        /// Unspecified; old providers mean InfiniBand.
        Unspecified = abi::IBV_LINK_LAYER_UNSPECIFIED, "unspecified";
        /// Peers are addressed by LID.
        InfiniBand = abi::IBV_LINK_LAYER_INFINIBAND, "InfiniBand";
        /// RoCE: peers are addressed by GID.
        Ethernet = abi::IBV_LINK_LAYER_ETHERNET, "Ethernet";
    }
}

c_enum! {
    /// The state of a port.
    PortState {
        /// No state.
        Nop = abi::IBV_PORT_NOP, "NOP";
        /// No link.
        Down = abi::IBV_PORT_DOWN, "DOWN";
        /// Link up, not configured.
        Init = abi::IBV_PORT_INIT, "INIT";
        /// Configured, not active.
        Armed = abi::IBV_PORT_ARMED, "ARMED";
        /// Active.
        Active = abi::IBV_PORT_ACTIVE, "ACTIVE";
        /// Active, with link errors.
        ActiveDefer = abi::IBV_PORT_ACTIVE_DEFER, "ACTIVE_DEFER";
    }
}

c_enum! {
    /// The scope of atomicity of atomics.
    AtomicCap {
        /// The device has no atomics.
        None = abi::IBV_ATOMIC_NONE, "none";
        /// Among the queue pairs of one device; CPU atomics on the same word are not covered.
        Hca = abi::IBV_ATOMIC_HCA, "HCA";
        /// Among all devices and CPUs.
        Glob = abi::IBV_ATOMIC_GLOB, "global";
    }
}

/// A path MTU: the payload bytes of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    Mtu4096,
}

impl Mtu {
    /// Returns the payload in bytes.
    pub fn bytes(self) -> u32 {
        128 << (self as u32)
    }

    /// Converts a value of `enum ibv_mtu`; an unknown one becomes the smallest MTU.
    pub(crate) fn from_raw(raw: u32) -> Self {
        match raw {
            2 => Self::Mtu512,
            3 => Self::Mtu1024,
            4 => Self::Mtu2048,
            5 => Self::Mtu4096,
            _ => Self::Mtu256,
        }
    }
}

impl From<Mtu> for u32 {
    fn from(m: Mtu) -> Self {
        m.bytes()
    }
}

impl TryFrom<u32> for Mtu {
    type Error = String;
    fn try_from(bytes: u32) -> Result<Self, String> {
        match bytes {
            256 => Ok(Self::Mtu256),
            512 => Ok(Self::Mtu512),
            1024 => Ok(Self::Mtu1024),
            2048 => Ok(Self::Mtu2048),
            4096 => Ok(Self::Mtu4096),
            b => Err(format!("{b} is no MTU: 256, 512, 1024, 2048 or 4096")),
        }
    }
}

/// The page size of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageSize {
    /// Pages of the system's usual size.
    Small,
    /// Huge pages of 2 MiB, which an administrator has reserved (`vm.nr_hugepages`).
    Huge,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_bytes_follow_the_code() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!(Mtu::from_raw(code).bytes(), bytes);
            assert_eq!(Mtu::try_from(bytes).map(|m| m as u32), Ok(code));
        }
        assert!(Mtu::try_from(1500).is_err());
    }

    #[test]
    fn gid_prints_as_an_address_and_parses_back() {
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7]);
        assert!(gid.is_ipv4_mapped());
        let json = serde_json::to_string(&gid).expect("a string");
        assert_eq!(json, "\"::ffff:10.0.0.7\"");
        assert_eq!(serde_json::from_str::<Gid>(&json).expect("the same"), gid);
    }

    #[test]
    fn addresses_that_no_router_forwards_are_told() {
        let gid = |text: &str| {
            Gid(text
                .parse::<std::net::Ipv6Addr>()
                .expect("an address")
                .octets())
        };
        for (text, link_local) in [
            ("fe80::1", true),
            ("febf::1", true),
            ("fec0::1", false),
            ("2001:db8::1", false),
            ("::ffff:169.254.3.4", true),
            ("::ffff:169.253.3.4", false),
        ] {
            assert_eq!(gid(text).is_link_local(), link_local, "{text}");
        }
    }

    #[test]
    fn unknown_values_are_carried() {
        assert_eq!(QpState::from_raw(77), QpState::Other(77));
        assert_eq!(QpState::Other(77).to_string(), "unknown (77)");
    }
}
