//! Messages between the two ends of a connection while it is established, and their encoding.
//!
//! Names and meaning of the messages are those of IBTA vol. 1, chapter 12. Their encoding between processes of one host
//! is specific to this crate: each message is one datagram through the socket of the connection. Received bytes are
//! untrusted: they decode to a message or are refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::addr::IdAddress;
use crate::ib_addr::IbAddr;

/// First byte of every message: the version of this encoding.
const VERSION: u8 = 2;
/// Largest number of bytes of a message: its fixed part and 255 bytes of private data.
pub(crate) const MAX_MESSAGE_BYTES: usize = 512;

/// The address of a queue pair: its number and the port that leads to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAddress {
    /// QP number.
    pub qpn: u32,
    /// PSN of the first packet that the peer sends to this queue pair. Each side announces the PSN that it expects
    /// (IBTA vol. 1, 12.7.31, "Starting PSN").
    pub first_psn_from_peer: u32,
    /// LID of the queue pair's port; 0 on Ethernet.
    pub lid: u16,
    /// GID of the queue pair's port, in network byte order.
    pub gid: [u8; 16],
    /// Q_Key, for datagram queue pairs.
    pub qkey: u32,
}

/// The negotiated parameters: the fields of `struct rdma_conn_param`, from the view of the message's sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NegotiatedParams {
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
}

/// A request for a connection (REQ), or for the queue pair of a datagram service (SIDR_REQ).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Port space of the requested service, `RDMA_PS_*`.
    pub(crate) port_space: u32,
    /// Type of the requester's queue pair, `IBV_QPT_*`.
    pub(crate) qp_type: u32,
    /// The requester's address.
    pub(crate) src: IdAddress,
    /// The requested address.
    pub(crate) dst: IdAddress,
    pub(crate) qp: QpAddress,
    pub(crate) params: NegotiatedParams,
    /// Vendor and options of `struct ibv_ece`.
    pub(crate) ece: (u32, u32),
    /// MTU of the path, `IBV_MTU_*`; 0 for the MTU of the port.
    pub(crate) path_mtu_code: u8,
    pub(crate) private_data: Vec<u8>,
}

/// The reply that accepts a request (REP, SIDR_REP).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcceptReply {
    pub(crate) qp: QpAddress,
    pub(crate) params: NegotiatedParams,
    pub(crate) ece: (u32, u32),
    pub(crate) private_data: Vec<u8>,
}

/// A message of connection management.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CmMessage {
    /// Request for a connection (REQ, SIDR_REQ).
    Request(Request),
    /// Reply that accepts the request (REP, SIDR_REP).
    Reply(AcceptReply),
    /// Ready to use: the requester has received the reply (RTU).
    ReadyToUse,
    /// Rejection with a reason of IBTA vol. 1, 12.6.7.2 (REJ).
    Reject { reason: u16, private_data: Vec<u8> },
    /// Request to disconnect (DREQ).
    Disconnect,
    /// Reply to a disconnect request (DREP).
    DisconnectReply,
}

/// Reasons of a rejection, of IBTA vol. 1, 12.6.7.2.
pub(crate) mod reason {
    /// The requester's timeout has expired (4, Timeout).
    pub(crate) const TIMEOUT: u16 = 4;
    /// No process listens (8, Invalid Service ID).
    pub(crate) const INVALID_SERVICE_ID: u16 = 8;
    /// The program has rejected the request (28, Consumer Reject).
    pub(crate) const CONSUMER_DEFINED: u16 = 28;
    /// The program has rejected the extended connection parameters (35, Vendor Option Not Supported).
    pub(crate) const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
}

/// Error: the bytes are not a message of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedMessage;

const KIND_REQUEST: u8 = 1;
const KIND_REPLY: u8 = 2;
const KIND_READY_TO_USE: u8 = 3;
const KIND_REJECT: u8 = 4;
const KIND_DISCONNECT: u8 = 5;
const KIND_DISCONNECT_REPLY: u8 = 6;

/// Type of an encoded address. Its first two bytes are the port or, for `AF_IB`, the P_Key; the type and the rest
/// follow.
const ADDRESS_TYPE_IPV4: u8 = 4;
const ADDRESS_TYPE_IPV6: u8 = 6;
const ADDRESS_TYPE_IB: u8 = 27;

impl CmMessage {
    /// Encodes the message. Private data is cut to 255 bytes, the limit of `rdma_conn_param`.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = MessageWriter(vec![VERSION]);
        match self {
            Self::Request(r) => {
                w.u8(KIND_REQUEST);
                w.u32(r.port_space);
                w.u32(r.qp_type);
                w.address(r.src);
                w.address(r.dst);
                w.qp(&r.qp);
                w.params(&r.params);
                w.u32(r.ece.0);
                w.u32(r.ece.1);
                w.u8(r.path_mtu_code);
                w.private_data(&r.private_data);
            }
            Self::Reply(r) => {
                w.u8(KIND_REPLY);
                w.qp(&r.qp);
                w.params(&r.params);
                w.u32(r.ece.0);
                w.u32(r.ece.1);
                w.private_data(&r.private_data);
            }
            Self::ReadyToUse => w.u8(KIND_READY_TO_USE),
            Self::Reject {
                reason,
                private_data,
            } => {
                w.u8(KIND_REJECT);
                w.u16(*reason);
                w.private_data(private_data);
            }
            Self::Disconnect => w.u8(KIND_DISCONNECT),
            Self::DisconnectReply => w.u8(KIND_DISCONNECT_REPLY),
        }
        w.0
    }

    /// Decodes a message.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        let mut r = MessageReader(bytes);
        if r.u8()? != VERSION {
            return Err(MalformedMessage);
        }
        let message = match r.u8()? {
            KIND_REQUEST => Self::Request(Request {
                port_space: r.u32()?,
                qp_type: r.u32()?,
                src: r.address()?,
                dst: r.address()?,
                qp: r.qp()?,
                params: r.params()?,
                ece: (r.u32()?, r.u32()?),
                path_mtu_code: r.u8()?,
                private_data: r.private_data()?,
            }),
            KIND_REPLY => Self::Reply(AcceptReply {
                qp: r.qp()?,
                params: r.params()?,
                ece: (r.u32()?, r.u32()?),
                private_data: r.private_data()?,
            }),
            KIND_READY_TO_USE => Self::ReadyToUse,
            KIND_REJECT => Self::Reject {
                reason: r.u16()?,
                private_data: r.private_data()?,
            },
            KIND_DISCONNECT => Self::Disconnect,
            KIND_DISCONNECT_REPLY => Self::DisconnectReply,
            _ => return Err(MalformedMessage),
        };
        if r.0.is_empty() {
            Ok(message)
        } else {
            Err(MalformedMessage)
        }
    }
}

struct MessageWriter(Vec<u8>);

impl MessageWriter {
    fn u8(&mut self, n: u8) {
        self.0.push(n);
    }

    fn u16(&mut self, n: u16) {
        self.0.extend(n.to_le_bytes());
    }

    fn u32(&mut self, n: u32) {
        self.0.extend(n.to_le_bytes());
    }

    fn u64(&mut self, n: u64) {
        self.0.extend(n.to_le_bytes());
    }

    fn address(&mut self, a: IdAddress) {
        match a {
            IdAddress::Ip(SocketAddr::V4(a)) => {
                self.u16(a.port());
                self.u8(ADDRESS_TYPE_IPV4);
                self.0.extend(a.ip().octets());
            }
            IdAddress::Ip(SocketAddr::V6(a)) => {
                self.u16(a.port());
                self.u8(ADDRESS_TYPE_IPV6);
                self.0.extend(a.ip().octets());
                self.u32(a.flowinfo());
                self.u32(a.scope_id());
            }
            IdAddress::Ib(a) => {
                self.u16(a.pkey);
                self.u8(ADDRESS_TYPE_IB);
                self.0.extend(a.gid);
                self.u32(a.flowinfo);
                self.u64(a.service_id);
                self.u64(a.service_id_mask);
                self.u64(a.scope_id);
            }
        }
    }

    fn qp(&mut self, qp: &QpAddress) {
        self.u32(qp.qpn);
        self.u32(qp.first_psn_from_peer);
        self.u16(qp.lid);
        self.0.extend(qp.gid);
        self.u32(qp.qkey);
    }

    fn params(&mut self, p: &NegotiatedParams) {
        self.0.extend([
            p.responder_resources,
            p.initiator_depth,
            p.flow_control,
            p.retry_count,
            p.rnr_retry_count,
            p.srq,
        ]);
    }

    fn private_data(&mut self, data: &[u8]) {
        let len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        self.u8(len);
        self.0.extend(data.iter().take(usize::from(len)));
    }
}

struct MessageReader<'a>(&'a [u8]);

impl MessageReader<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], MalformedMessage> {
        let (head, rest) = self.0.split_first_chunk().ok_or(MalformedMessage)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, MalformedMessage> {
        self.bytes::<1>().map(|[n]| n)
    }

    fn u16(&mut self) -> Result<u16, MalformedMessage> {
        self.bytes().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, MalformedMessage> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MalformedMessage> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn address(&mut self) -> Result<IdAddress, MalformedMessage> {
        let first = self.u16()?;
        Ok(match self.u8()? {
            ADDRESS_TYPE_IPV4 => {
                let ip = IpAddr::V4(Ipv4Addr::from(self.bytes::<4>()?));
                IdAddress::Ip(SocketAddr::new(ip, first))
            }
            ADDRESS_TYPE_IPV6 => {
                let ip = Ipv6Addr::from(self.bytes::<16>()?);
                let v6 = SocketAddrV6::new(ip, first, self.u32()?, self.u32()?);
                IdAddress::Ip(SocketAddr::V6(v6))
            }
            ADDRESS_TYPE_IB => IdAddress::Ib(IbAddr {
                pkey: first,
                gid: self.bytes()?,
                flowinfo: self.u32()?,
                service_id: self.u64()?,
                service_id_mask: self.u64()?,
                scope_id: self.u64()?,
            }),
            _ => return Err(MalformedMessage),
        })
    }

    fn qp(&mut self) -> Result<QpAddress, MalformedMessage> {
        Ok(QpAddress {
            qpn: self.u32()?,
            first_psn_from_peer: self.u32()?,
            lid: self.u16()?,
            gid: self.bytes()?,
            qkey: self.u32()?,
        })
    }

    fn params(&mut self) -> Result<NegotiatedParams, MalformedMessage> {
        let [
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
            srq,
        ] = self.bytes()?;
        Ok(NegotiatedParams {
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
            srq,
        })
    }

    fn private_data(&mut self) -> Result<Vec<u8>, MalformedMessage> {
        let len = usize::from(self.u8()?);
        let (data, rest) = self.0.split_at_checked(len).ok_or(MalformedMessage)?;
        self.0 = rest;
        Ok(data.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request() -> Request {
        Request {
            port_space: 0x0106,
            qp_type: 2,
            src: IdAddress::Ip("127.0.0.1:4000".parse().unwrap()),
            dst: IdAddress::Ip("[fe80::1%3]:7471".parse().unwrap()),
            qp: QpAddress {
                qpn: 0x00ab_cdef,
                first_psn_from_peer: 0x0012_3456,
                lid: 9,
                gid: [7; 16],
                qkey: 5,
            },
            params: NegotiatedParams {
                responder_resources: 1,
                initiator_depth: 2,
                flow_control: 3,
                retry_count: 4,
                rnr_retry_count: 5,
                srq: 6,
            },
            ece: (8, 9),
            path_mtu_code: 3,
            private_data: vec![1; 255],
        }
    }

    fn all() -> Vec<CmMessage> {
        let r = request();
        let ib = IbAddr {
            pkey: 1,
            flowinfo: 2,
            gid: [3; 16],
            service_id: 4,
            service_id_mask: 5,
            scope_id: 6,
        };
        vec![
            CmMessage::Request(Request {
                src: IdAddress::Ib(ib),
                dst: IdAddress::Ib(IbAddr::default()),
                ..request()
            }),
            CmMessage::Reply(AcceptReply {
                qp: r.qp,
                params: r.params,
                ece: r.ece,
                private_data: Vec::new(),
            }),
            CmMessage::Request(r),
            CmMessage::ReadyToUse,
            CmMessage::Reject {
                reason: 28,
                private_data: vec![3; 148],
            },
            CmMessage::Disconnect,
            CmMessage::DisconnectReply,
        ]
    }

    #[test]
    fn every_message_comes_back_and_fits() {
        for message in all() {
            let bytes = message.encode();
            assert!(bytes.len() <= MAX_MESSAGE_BYTES, "{} bytes", bytes.len());
            assert_eq!(CmMessage::decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn what_is_cut_off_or_too_long_is_refused() {
        for message in all() {
            let mut bytes = message.encode();
            for len in 0..bytes.len() {
                assert_eq!(CmMessage::decode(&bytes[..len]), Err(MalformedMessage));
            }
            bytes.push(0);
            assert_eq!(CmMessage::decode(&bytes), Err(MalformedMessage));
        }
        assert_eq!(
            CmMessage::decode(&[VERSION + 1, KIND_READY_TO_USE]),
            Err(MalformedMessage)
        );
        assert_eq!(CmMessage::decode(&[VERSION, 77]), Err(MalformedMessage));
    }

    proptest! {
        #[test]
        fn garbage_is_decoded_to_what_it_says_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(message) = CmMessage::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }
}
