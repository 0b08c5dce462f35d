//! Conversion of an endpoint's messages to management datagrams and back.
//!
//! Fields that a program cannot choose have the values of Linux's `rdma_cm` for RoCE (`cma_connect_ib`, `cma_accept_ib`
//! of `linux:drivers/infiniband/core/cma.c`).

use std::net::{IpAddr, SocketAddr};

use roce::cm::{
    BoundedData, CM_RESPONSE_TIMEOUT_CODE, CmMessage as Mad, ConnectionPath, Dreq, IpCmHeader,
    MAX_CM_RETRIES, MRA_SERVICE_TIMEOUT_CODE, Mra, PortSpace, ReferredMessage, Rej, Rep, Req,
    RtuOrDrep, SidrRep, SidrReq, TransportService, sidr_status,
};
use roce::icrc::IpAddressPair;
use roce::psn::Psn;
use verbs_abi::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_RATE_100_GBPS};

use super::machine::CmMessageKind;
use crate::addr::IdAddress;
use crate::device_port::{DEFAULT_ACK_TIMEOUT_CODE, DEFAULT_PKEY, HOP_LIMIT};
use crate::wire::{AcceptReply, CmMessage, NegotiatedParams, QpAddress, Request, reason};

/// LIDs are unused with RoCE; the fields contain the permissive LID (`cm_format_req` of
/// `linux:drivers/infiniband/core/cm.c`).
const PERMISSIVE_LID: u16 = 0xffff;
/// Failover status of a REP: "failover is not supported".
const NO_FAILOVER: u8 = 1;
/// Largest retry count, which has three bits.
const MAX_RETRY_COUNT: u8 = 7;

/// The ids of the two ends of a connection, as messages contain them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommunicationIds {
    /// Communication id of this end, or the SIDR request id.
    pub(crate) local: u32,
    /// Communication id of the peer; 0 until it is known.
    pub(crate) remote: u32,
    /// Number of the peer's queue pair.
    pub(crate) remote_qpn: u32,
    /// GID of the port to which the request goes.
    pub(crate) peer_gid: [u8; 16],
    /// GUID of this device.
    pub(crate) ca_guid: u64,
    /// Service id of the request.
    pub(crate) service_id: u64,
    /// True for a SIDR look-up of a datagram service instead of a connection.
    pub(crate) is_datagram: bool,
}

/// Returns the service id of a request. `None` for addresses of `AF_IB`, which packets cannot reach.
pub(crate) fn service_id_of_request(request: &Request) -> Option<u64> {
    let IdAddress::Ip(dst) = request.dst else {
        return None;
    };
    Some((u64::from(request.port_space) << 16) | u64::from(dst.port()))
}

/// Makes a REQ or SIDR_REQ. `None` if the addresses are of different families, or if the private data does not fit.
pub(crate) fn encode_request(r: &Request, ids: &CommunicationIds) -> Option<Mad> {
    let (IdAddress::Ip(src), IdAddress::Ip(dst)) = (r.src, r.dst) else {
        return None;
    };
    let addresses = match (src.ip().to_canonical(), dst.ip().to_canonical()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => IpAddressPair::V4 { src, dst },
        (IpAddr::V6(src), IpAddr::V6(dst)) => IpAddressPair::V6 { src, dst },
        _ => return None,
    };
    let header = IpCmHeader {
        addresses,
        src_port: src.port(),
    };
    let mut private_data = header.emit().to_vec();
    private_data.extend(&r.private_data);
    if ids.is_datagram {
        return Some(Mad::SidrReq(SidrReq {
            request_id: ids.local,
            pkey: DEFAULT_PKEY,
            service_id: ids.service_id,
            private_data: BoundedData::new(&private_data)?,
        }));
    }
    Some(Mad::Req(Req {
        local_comm_id: ids.local,
        service_id: ids.service_id,
        local_ca_guid: ids.ca_guid,
        local_qkey: 0,
        local_qpn: r.qp.qpn,
        responder_resources: r.params.responder_resources,
        initiator_depth: r.params.initiator_depth,
        remote_cm_response_timeout: CM_RESPONSE_TIMEOUT_CODE,
        transport_service: match r.qp_type {
            IBV_QPT_UC => TransportService::Uc,
            IBV_QPT_XRC_SEND => TransportService::Xrc,
            _ => TransportService::Rc,
        },
        flow_control: r.params.flow_control != 0,
        starting_psn_from_peer: Psn::new(r.qp.first_psn_from_peer),
        local_cm_response_timeout: CM_RESPONSE_TIMEOUT_CODE,
        retry_count: r.params.retry_count.min(MAX_RETRY_COUNT),
        pkey: DEFAULT_PKEY,
        path_mtu: r.path_mtu_code,
        rnr_retry_count: r.params.rnr_retry_count.min(MAX_RETRY_COUNT),
        max_cm_retries: MAX_CM_RETRIES,
        has_srq: r.params.srq != 0,
        primary: ConnectionPath {
            local_lid: PERMISSIVE_LID,
            remote_lid: PERMISSIVE_LID,
            local_gid: r.qp.gid,
            remote_gid: ids.peer_gid,
            flow_label: 0,
            packet_rate: u8::try_from(IBV_RATE_100_GBPS).unwrap_or(0),
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            service_level: 0,
            subnet_local: false,
            local_ack_timeout: DEFAULT_ACK_TIMEOUT_CODE,
        },
        alternate: None,
        private_data: BoundedData::new(&private_data)?,
    }))
}

/// Returns the additional information of a REJ. For a timeout it is the GUID of the sender's device, as on Linux
/// (`ib_destroy_cm_id` of `linux:drivers/infiniband/core/cm.c`). A requester that gives up before the REP does not know
/// its peer's communication id. So the peer finds the request by the GUID.
fn rej_additional_info(why: u16, ids: &CommunicationIds) -> Option<BoundedData<72>> {
    match why {
        reason::TIMEOUT => BoundedData::new(&ids.ca_guid.to_be_bytes()),
        _ => Some(BoundedData::default()),
    }
}

/// Makes the MAD of a message other than a request. `None` if the private data does not fit.
pub(crate) fn encode_non_request(
    message: &CmMessage,
    ids: &CommunicationIds,
    rejected: ReferredMessage,
) -> Option<Mad> {
    Some(match message {
        CmMessage::Reply(r) if ids.is_datagram => Mad::SidrRep(SidrRep {
            request_id: ids.remote,
            status: sidr_status::VALID,
            qpn: r.qp.qpn,
            service_id: ids.service_id,
            qkey: r.qp.qkey,
            additional_info: BoundedData::default(),
            private_data: BoundedData::new(&r.private_data)?,
        }),
        CmMessage::Reject {
            reason,
            private_data,
        } if ids.is_datagram => Mad::SidrRep(SidrRep {
            request_id: ids.remote,
            status: match *reason {
                reason::INVALID_SERVICE_ID => sidr_status::UNSUPPORTED,
                _ => sidr_status::REJECTED,
            },
            qpn: 0,
            service_id: ids.service_id,
            qkey: 0,
            additional_info: BoundedData::default(),
            private_data: BoundedData::new(private_data)?,
        }),
        CmMessage::Reply(r) => Mad::Rep(Rep {
            local_comm_id: ids.local,
            remote_comm_id: ids.remote,
            local_qkey: 0,
            local_qpn: r.qp.qpn,
            starting_psn_from_peer: Psn::new(r.qp.first_psn_from_peer),
            responder_resources: r.params.responder_resources,
            initiator_depth: r.params.initiator_depth,
            target_ack_delay: 0,
            failover_accepted: NO_FAILOVER,
            flow_control: r.params.flow_control != 0,
            rnr_retry_count: r.params.rnr_retry_count.min(MAX_RETRY_COUNT),
            has_srq: r.params.srq != 0,
            local_ca_guid: ids.ca_guid,
            private_data: BoundedData::new(&r.private_data)?,
        }),
        CmMessage::Reject {
            reason,
            private_data,
        } => Mad::Rej(Rej {
            local_comm_id: ids.local,
            remote_comm_id: ids.remote,
            rejected_message: rejected,
            reason: *reason,
            additional_info: rej_additional_info(*reason, ids)?,
            private_data: BoundedData::new(private_data)?,
        }),
        CmMessage::ReadyToUse => Mad::Rtu(make_rtu_or_drep(ids)),
        CmMessage::Disconnect => Mad::Dreq(Dreq {
            local_comm_id: ids.local,
            remote_comm_id: ids.remote,
            remote_qpn: ids.remote_qpn,
            private_data: BoundedData::default(),
        }),
        CmMessage::DisconnectReply => Mad::Drep(make_rtu_or_drep(ids)),
        CmMessage::Request(r) => return encode_request(r, ids),
    })
}

fn make_rtu_or_drep(ids: &CommunicationIds) -> RtuOrDrep {
    RtuOrDrep {
        local_comm_id: ids.local,
        remote_comm_id: ids.remote,
        private_data: BoundedData::default(),
    }
}

/// Makes an MRA, which announces a late answer.
pub(crate) fn make_mra(ids: &CommunicationIds, received: ReferredMessage) -> Mad {
    Mad::Mra(Mra {
        local_comm_id: ids.local,
        remote_comm_id: ids.remote,
        acknowledged_message: received,
        service_timeout: MRA_SERVICE_TIMEOUT_CODE,
        private_data: BoundedData::default(),
    })
}

/// Makes the rejection of a request that has no connection. `None` for other messages.
pub(crate) fn make_rejection_without_connection(of: &Mad, reason: u16) -> Option<Mad> {
    let (remote, service_id, is_datagram) = match of {
        Mad::Req(req) => (req.local_comm_id, req.service_id, false),
        Mad::SidrReq(req) => (req.request_id, req.service_id, true),
        _ => return None,
    };
    let ids = CommunicationIds {
        remote,
        service_id,
        is_datagram,
        ..CommunicationIds::default()
    };
    let message = CmMessage::Reject {
        reason,
        private_data: Vec::new(),
    };
    encode_non_request(&message, &ids, ReferredMessage::Req)
}

/// Makes the REJ for a message that belongs to an established connection, which this host does not know. `None` for other
/// messages.
pub(crate) fn make_rejection_of_unknown_connection(of: &Mad) -> Option<Mad> {
    let rejected = match of {
        Mad::Rep(_) => ReferredMessage::Rep,
        Mad::Rtu(_) => ReferredMessage::LapOrUnspecified,
        _ => return None,
    };
    let ids = CommunicationIds {
        remote: sender_comm_id(of),
        ..CommunicationIds::default()
    };
    let message = CmMessage::Reject {
        reason: roce::cm::reason::INVALID_COMM_ID,
        private_data: Vec::new(),
    };
    encode_non_request(&message, &ids, rejected)
}

/// Makes the DREP for a DREQ of an unknown connection, so that its sender stops repeating it.
pub(crate) fn make_reply_to_unknown_dreq(of: &Mad) -> Option<Mad> {
    let Mad::Dreq(dreq) = of else {
        return None;
    };
    Some(Mad::Drep(RtuOrDrep {
        local_comm_id: dreq.remote_comm_id,
        remote_comm_id: dreq.local_comm_id,
        private_data: BoundedData::default(),
    }))
}

/// Returns the state machine's kind of a MAD.
pub(crate) fn message_kind_of_mad(mad: &Mad) -> Option<CmMessageKind> {
    Some(match mad {
        Mad::Req(_) => CmMessageKind::Req,
        Mad::Rep(_) => CmMessageKind::Rep,
        Mad::Rtu(_) => CmMessageKind::Rtu,
        Mad::Rej(_) => CmMessageKind::Rej,
        Mad::Dreq(_) => CmMessageKind::Dreq,
        Mad::Drep(_) => CmMessageKind::Drep,
        Mad::SidrReq(_) => CmMessageKind::SidrReq,
        Mad::SidrRep(_) => CmMessageKind::SidrRep,
        Mad::Mra(mra) if mra.acknowledged_message == ReferredMessage::Req => {
            CmMessageKind::MraOfReq
        }
        Mad::Mra(mra) if mra.acknowledged_message == ReferredMessage::Rep => {
            CmMessageKind::MraOfRep
        }
        Mad::Mra(_) => return None,
    })
}

/// Returns the sender's communication id in the MAD, or its SIDR request id; 0 if it has none.
pub(crate) fn sender_comm_id(mad: &Mad) -> u32 {
    match mad {
        Mad::Req(req) => req.local_comm_id,
        Mad::Mra(mra) => mra.local_comm_id,
        Mad::Rej(rej) => rej.local_comm_id,
        Mad::Rep(rep) => rep.local_comm_id,
        Mad::Rtu(notice) | Mad::Drep(notice) => notice.local_comm_id,
        Mad::Dreq(dreq) => dreq.local_comm_id,
        Mad::SidrReq(req) => req.request_id,
        Mad::SidrRep(_) => 0,
    }
}

/// Returns the GUID of the requester's device; 0 if the MAD is not a REQ.
pub(crate) fn requester_ca_guid(mad: &Mad) -> u64 {
    match mad {
        Mad::Req(req) => req.local_ca_guid,
        _ => 0,
    }
}

/// Returns the GUID of the requester's device and the requester's communication id. `None` if the MAD is not a REJ of a
/// requester that has given up before the REP. Linux looks the request up in the same way (`cm_acquire_rejected_id` of
/// `linux:drivers/infiniband/core/cm.c`).
pub(crate) fn abandoned_request(mad: &Mad) -> Option<(u64, u32)> {
    match mad {
        Mad::Rej(rej) if rej.reason == reason::TIMEOUT && rej.remote_comm_id == 0 => {
            let ca_guid = rej.additional_info.first_chunk()?;
            Some((u64::from_be_bytes(*ca_guid), rej.local_comm_id))
        }
        _ => None,
    }
}

/// Returns the receiver's communication id in the MAD, or its SIDR request id; 0 for requests, which go to a listener.
pub(crate) fn receiver_comm_id(mad: &Mad) -> u32 {
    match mad {
        Mad::Req(_) | Mad::SidrReq(_) => 0,
        Mad::Mra(mra) => mra.remote_comm_id,
        Mad::Rej(rej) => rej.remote_comm_id,
        Mad::Rep(rep) => rep.remote_comm_id,
        Mad::Rtu(notice) | Mad::Drep(notice) => notice.remote_comm_id,
        Mad::Dreq(dreq) => dreq.remote_comm_id,
        Mad::SidrRep(rep) => rep.request_id,
    }
}

/// Converts a REQ or SIDR_REQ from the port `source`.
///
/// # Errors
/// The reason of the rejection.
pub(crate) fn parse_request(mad: &Mad, source: [u8; 16]) -> Result<Request, u16> {
    let (service_id, private_data) = match mad {
        Mad::Req(req) => (req.service_id, &req.private_data[..]),
        Mad::SidrReq(req) => (req.service_id, &req.private_data[..]),
        _ => return Err(reason::INVALID_SERVICE_ID),
    };
    let service = PortSpace::split_service_id(service_id);
    let (port_space, port) = service.ok_or(reason::INVALID_SERVICE_ID)?;
    let header = IpCmHeader::parse(private_data);
    let (header, private_data) = header.map_err(|_| reason::INVALID_SERVICE_ID)?;
    let (src, dst): (IpAddr, IpAddr) = match header.addresses {
        IpAddressPair::V4 { src, dst } => (src.into(), dst.into()),
        IpAddressPair::V6 { src, dst } => (src.into(), dst.into()),
    };
    let mut request = Request {
        port_space: port_space.number().into(),
        qp_type: IBV_QPT_UD,
        src: SocketAddr::new(src, header.src_port).into(),
        dst: SocketAddr::new(dst, port).into(),
        qp: QpAddress {
            gid: source,
            ..QpAddress::default()
        },
        params: NegotiatedParams::default(),
        ece: (0, 0),
        path_mtu_code: 0,
        private_data: private_data.to_vec(),
    };
    if let Mad::Req(req) = mad {
        request.qp_type = match req.transport_service {
            TransportService::Rc => IBV_QPT_RC,
            TransportService::Uc => IBV_QPT_UC,
            TransportService::Xrc => IBV_QPT_XRC_SEND,
            TransportService::Unsupported(_) => {
                return Err(roce::cm::reason::INVALID_TRANSPORT_TYPE);
            }
        };
        request.qp = QpAddress {
            qpn: req.local_qpn,
            first_psn_from_peer: req.starting_psn_from_peer.get(),
            gid: req.primary.local_gid,
            ..QpAddress::default()
        };
        request.params = NegotiatedParams {
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            flow_control: u8::from(req.flow_control),
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: u8::from(req.has_srq),
        };
        request.path_mtu_code = req.path_mtu;
    }
    Ok(request)
}

/// Converts a MAD other than a request; `peer` is the GID of its sender. `None` for MADs that only the state machine
/// needs.
pub(crate) fn parse_message(mad: &Mad, peer: [u8; 16]) -> Option<CmMessage> {
    Some(match mad {
        Mad::Rep(rep) => CmMessage::Reply(AcceptReply {
            qp: QpAddress {
                qpn: rep.local_qpn,
                first_psn_from_peer: rep.starting_psn_from_peer.get(),
                gid: peer,
                ..QpAddress::default()
            },
            params: NegotiatedParams {
                responder_resources: rep.responder_resources,
                initiator_depth: rep.initiator_depth,
                flow_control: u8::from(rep.flow_control),
                retry_count: 0,
                rnr_retry_count: rep.rnr_retry_count,
                srq: u8::from(rep.has_srq),
            },
            ece: (0, 0),
            private_data: rep.private_data.to_vec(),
        }),
        Mad::SidrRep(rep) if rep.status == sidr_status::VALID => CmMessage::Reply(AcceptReply {
            qp: QpAddress {
                qpn: rep.qpn,
                gid: peer,
                qkey: rep.qkey,
                ..QpAddress::default()
            },
            params: NegotiatedParams::default(),
            ece: (0, 0),
            private_data: rep.private_data.to_vec(),
        }),
        Mad::SidrRep(rep) => CmMessage::Reject {
            reason: match rep.status {
                sidr_status::UNSUPPORTED => reason::INVALID_SERVICE_ID,
                _ => reason::CONSUMER_DEFINED,
            },
            private_data: rep.private_data.to_vec(),
        },
        Mad::Rej(rej) => CmMessage::Reject {
            reason: rej.reason,
            private_data: rej.private_data.to_vec(),
        },
        Mad::Rtu(_) => CmMessage::ReadyToUse,
        Mad::Dreq(_) => CmMessage::Disconnect,
        Mad::Drep(_) => CmMessage::DisconnectReply,
        Mad::Req(_) | Mad::SidrReq(_) | Mad::Mra(_) => return None,
    })
}
