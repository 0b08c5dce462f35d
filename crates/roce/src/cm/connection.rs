//! Messages that establish and end connections (IBTA vol. 1, 12.6.5 to 12.6.11).

use super::bounded_data::BoundedData;
use crate::mad::MadBody;
use crate::psn::Psn;

/// The transport service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportService {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection.
    Xrc,
    /// Another service: the two bits of the service type, and above them the three bits of the extended type. Such a
    /// REQ is answered by a REJ.
    Unsupported(u8),
}

impl TransportService {
    const fn from_service_and_extended_type(service: u8, extended: u8) -> Self {
        match (service, extended) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (3, 1) => Self::Xrc,
            _ => Self::Unsupported(service | extended << 2),
        }
    }

    /// Returns service type and extended type.
    const fn service_and_extended_type(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Xrc => (3, 1),
            Self::Unsupported(bits) => (bits & 3, bits >> 2 & 7),
        }
    }
}

/// A path between the two ends of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionPath {
    /// LID of the requester's port; unused with RoCE.
    pub local_lid: u16,
    /// LID of the responder's port; unused with RoCE.
    pub remote_lid: u16,
    /// GID of the requester's port.
    pub local_gid: [u8; 16],
    /// GID of the responder's port.
    pub remote_gid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Coded static rate, 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// True if both ends are in the same subnet.
    pub subnet_local: bool,
    /// Coded local ACK timeout, 5 bits.
    pub local_ack_timeout: u8,
}

/// Offset of a path in a REQ.
const PRIMARY_PATH_OFFSET: usize = 52;
const ALTERNATE_PATH_OFFSET: usize = 96;

impl ConnectionPath {
    fn parse(body: &MadBody, at: usize) -> Self {
        let word = body.u32(at + 36);
        let [.., rate] = word.to_be_bytes();
        let level = body.u8(at + 42);
        Self {
            local_lid: body.u16(at),
            remote_lid: body.u16(at + 2),
            local_gid: body.bytes_at(at + 4),
            remote_gid: body.bytes_at(at + 20),
            flow_label: word >> 12,
            packet_rate: rate & 0x3f,
            traffic_class: body.u8(at + 40),
            hop_limit: body.u8(at + 41),
            service_level: level >> 4,
            subnet_local: level & 0x08 != 0,
            local_ack_timeout: body.u8(at + 43) >> 3,
        }
    }

    fn emit(&self, body: &mut MadBody, at: usize) {
        body.put_bytes_at(at, &self.local_lid.to_be_bytes());
        body.put_bytes_at(at + 2, &self.remote_lid.to_be_bytes());
        body.put_bytes_at(at + 4, &self.local_gid);
        body.put_bytes_at(at + 20, &self.remote_gid);
        let word = self.flow_label << 12 | u32::from(self.packet_rate & 0x3f);
        body.put_bytes_at(at + 36, &word.to_be_bytes());
        let level = self.service_level << 4 | u8::from(self.subnet_local) << 3;
        let timeout = self.local_ack_timeout << 3;
        body.put_bytes_at(
            at + 40,
            &[self.traffic_class, self.hop_limit, level, timeout],
        );
    }
}

/// Request for communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// Communication id of the sender.
    pub local_comm_id: u32,
    /// Service id of the requested service.
    pub service_id: u64,
    /// GUID of the sender's device.
    pub local_ca_guid: u64,
    /// Q_Key; used by datagram services only.
    pub local_qkey: u32,
    /// Number of the sender's queue pair, 24 bits.
    pub local_qpn: u32,
    /// Largest number of READs and atomics that the sender's queue pair accepts at a time.
    pub responder_resources: u8,
    /// Largest number of READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// Coded time in which the receiver must answer, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// Transport service.
    pub transport_service: TransportService,
    /// True if the sender implements end-to-end flow control.
    pub flow_control: bool,
    /// PSN of the first packet that the sender of this message expects (IBTA vol. 1, 12.7.31).
    pub starting_psn_from_peer: Psn,
    /// Coded time in which the sender will answer, 5 bits.
    pub local_cm_response_timeout: u8,
    /// Retry count of the queue pair, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Coded path MTU (`enum ibv_mtu`), 4 bits.
    pub path_mtu: u8,
    /// RNR retry count of the queue pair, 3 bits.
    pub rnr_retry_count: u8,
    /// Number of times that this message may be sent again, 4 bits.
    pub max_cm_retries: u8,
    /// True if the sender's queue pair uses a shared receive queue.
    pub has_srq: bool,
    /// The primary path.
    pub primary: ConnectionPath,
    /// The alternate path, for failover.
    pub alternate: Option<ConnectionPath>,
    /// Private data of the consumer.
    pub private_data: BoundedData<92>,
}

impl Req {
    pub(super) fn parse(body: &MadBody) -> Self {
        let [remote_timeout, local_timeout] = [43, 47].map(|at| body.u8(at));
        let [mtu, retries] = [50, 51].map(|at| body.u8(at));
        let alternate = ConnectionPath::parse(body, ALTERNATE_PATH_OFFSET);
        let named = alternate.remote_lid != 0 || alternate.remote_gid != [0; 16];
        Self {
            local_comm_id: body.u32(0),
            service_id: body.u64(8),
            local_ca_guid: body.u64(16),
            local_qkey: body.u32(28),
            local_qpn: body.u24(32),
            responder_resources: body.u8(35),
            initiator_depth: body.u8(39),
            remote_cm_response_timeout: remote_timeout >> 3,
            transport_service: TransportService::from_service_and_extended_type(
                remote_timeout >> 1 & 3,
                retries & 7,
            ),
            flow_control: remote_timeout & 1 != 0,
            starting_psn_from_peer: Psn::new(body.u24(44)),
            local_cm_response_timeout: local_timeout >> 3,
            retry_count: local_timeout & 7,
            pkey: body.u16(48),
            path_mtu: mtu >> 4,
            rnr_retry_count: mtu & 7,
            max_cm_retries: retries >> 4,
            has_srq: retries & 0x08 != 0,
            primary: ConnectionPath::parse(body, PRIMARY_PATH_OFFSET),
            alternate: named.then_some(alternate),
            private_data: BoundedData::from_received_bytes(body.bytes_at(140), 92),
        }
    }

    pub(super) fn emit(&self, body: &mut MadBody) {
        let (service, extended) = self.transport_service.service_and_extended_type();
        body.put_bytes_at(0, &self.local_comm_id.to_be_bytes());
        body.put_bytes_at(8, &self.service_id.to_be_bytes());
        body.put_bytes_at(16, &self.local_ca_guid.to_be_bytes());
        body.put_bytes_at(28, &self.local_qkey.to_be_bytes());
        body.put_u24(32, self.local_qpn);
        body.put_bytes_at(35, &[self.responder_resources]);
        body.put_bytes_at(39, &[self.initiator_depth]);
        let timeout = self.remote_cm_response_timeout << 3;
        body.put_bytes_at(43, &[timeout | service << 1 | u8::from(self.flow_control)]);
        body.put_u24(44, self.starting_psn_from_peer.get());
        let timeout = self.local_cm_response_timeout << 3;
        body.put_bytes_at(47, &[timeout | self.retry_count & 7]);
        body.put_bytes_at(48, &self.pkey.to_be_bytes());
        body.put_bytes_at(50, &[self.path_mtu << 4 | self.rnr_retry_count & 7]);
        let srq = u8::from(self.has_srq) << 3;
        body.put_bytes_at(51, &[self.max_cm_retries << 4 | srq | extended]);
        self.primary.emit(body, PRIMARY_PATH_OFFSET);
        if let Some(alternate) = &self.alternate {
            alternate.emit(body, ALTERNATE_PATH_OFFSET);
        }
        body.put_bytes_at(140, self.private_data.zero_padded_bytes());
    }
}

/// The message that an MRA or a REJ refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferredMessage {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// In an MRA: a LAP. In a REJ: no particular message.
    LapOrUnspecified,
    /// A value that the specification reserves.
    Reserved,
}

impl ReferredMessage {
    const fn from_byte(byte: u8) -> Self {
        match byte >> 6 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::LapOrUnspecified,
            _ => Self::Reserved,
        }
    }

    const fn to_byte(self) -> u8 {
        (match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::LapOrUnspecified => 2,
            Self::Reserved => 3,
        }) << 6
    }
}

/// Message receipt acknowledgement (MRA): announces that the answer will take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// Communication id of the sender.
    pub local_comm_id: u32,
    /// Communication id of the receiver.
    pub remote_comm_id: u32,
    /// The received message that this MRA acknowledges.
    pub acknowledged_message: ReferredMessage,
    /// Coded time in which the answer will be sent, 5 bits.
    pub service_timeout: u8,
    /// Private data of the consumer.
    pub private_data: BoundedData<222>,
}

impl Mra {
    pub(super) fn parse(body: &MadBody) -> Self {
        Self {
            local_comm_id: body.u32(0),
            remote_comm_id: body.u32(4),
            acknowledged_message: ReferredMessage::from_byte(body.u8(8)),
            service_timeout: body.u8(9) >> 3,
            private_data: BoundedData::from_received_bytes(body.bytes_at(10), 222),
        }
    }

    pub(super) fn emit(&self, body: &mut MadBody) {
        body.put_bytes_at(0, &self.local_comm_id.to_be_bytes());
        body.put_bytes_at(4, &self.remote_comm_id.to_be_bytes());
        body.put_bytes_at(
            8,
            &[
                self.acknowledged_message.to_byte(),
                self.service_timeout << 3,
            ],
        );
        body.put_bytes_at(10, self.private_data.zero_padded_bytes());
    }
}

/// Rejection (REJ) of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// Communication id of the sender; 0 if it has none.
    pub local_comm_id: u32,
    /// Communication id of the receiver.
    pub remote_comm_id: u32,
    /// The rejected message.
    pub rejected_message: ReferredMessage,
    /// Reason code, as in [`reason`](super::reason).
    pub reason: u16,
    /// Additional information, e.g. a value that would be accepted.
    pub additional_info: BoundedData<72>,
    /// Private data of the consumer.
    pub private_data: BoundedData<148>,
}

impl Rej {
    pub(super) fn parse(body: &MadBody) -> Self {
        Self {
            local_comm_id: body.u32(0),
            remote_comm_id: body.u32(4),
            rejected_message: ReferredMessage::from_byte(body.u8(8)),
            reason: body.u16(10),
            additional_info: BoundedData::from_received_bytes(body.bytes_at(12), body.u8(9) >> 1),
            private_data: BoundedData::from_received_bytes(body.bytes_at(84), 148),
        }
    }

    pub(super) fn emit(&self, body: &mut MadBody) {
        body.put_bytes_at(0, &self.local_comm_id.to_be_bytes());
        body.put_bytes_at(4, &self.remote_comm_id.to_be_bytes());
        body.put_bytes_at(
            8,
            &[
                self.rejected_message.to_byte(),
                self.additional_info.len_byte() << 1,
            ],
        );
        body.put_bytes_at(10, &self.reason.to_be_bytes());
        body.put_bytes_at(12, self.additional_info.zero_padded_bytes());
        body.put_bytes_at(84, self.private_data.zero_padded_bytes());
    }
}

/// Reply (REP) to a request for communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// Communication id of the sender.
    pub local_comm_id: u32,
    /// Communication id of the receiver.
    pub remote_comm_id: u32,
    /// Q_Key; used by datagram services only.
    pub local_qkey: u32,
    /// Number of the sender's queue pair, 24 bits.
    pub local_qpn: u32,
    /// PSN of the first packet that the sender of this message expects (IBTA vol. 1, 12.7.31).
    pub starting_psn_from_peer: Psn,
    /// Largest number of READs and atomics that the sender's queue pair accepts at a time.
    pub responder_resources: u8,
    /// Largest number of READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// Coded time in which the sender's device acknowledges a packet, 5 bits.
    pub target_ack_delay: u8,
    /// Status of the alternate path, 2 bits; 1 if failover is not supported.
    pub failover_accepted: u8,
    /// True if the sender implements end-to-end flow control.
    pub flow_control: bool,
    /// RNR retry count that the receiver must use, 3 bits.
    pub rnr_retry_count: u8,
    /// True if the sender's queue pair uses a shared receive queue.
    pub has_srq: bool,
    /// GUID of the sender's device.
    pub local_ca_guid: u64,
    /// Private data of the consumer.
    pub private_data: BoundedData<196>,
}

impl Rep {
    pub(super) fn parse(body: &MadBody) -> Self {
        let [delay, retries] = [26, 27].map(|at| body.u8(at));
        Self {
            local_comm_id: body.u32(0),
            remote_comm_id: body.u32(4),
            local_qkey: body.u32(8),
            local_qpn: body.u24(12),
            starting_psn_from_peer: Psn::new(body.u24(20)),
            responder_resources: body.u8(24),
            initiator_depth: body.u8(25),
            target_ack_delay: delay >> 3,
            failover_accepted: delay >> 1 & 3,
            flow_control: delay & 1 != 0,
            rnr_retry_count: retries >> 5,
            has_srq: retries & 0x10 != 0,
            local_ca_guid: body.u64(28),
            private_data: BoundedData::from_received_bytes(body.bytes_at(36), 196),
        }
    }

    pub(super) fn emit(&self, body: &mut MadBody) {
        body.put_bytes_at(0, &self.local_comm_id.to_be_bytes());
        body.put_bytes_at(4, &self.remote_comm_id.to_be_bytes());
        body.put_bytes_at(8, &self.local_qkey.to_be_bytes());
        body.put_u24(12, self.local_qpn);
        body.put_u24(20, self.starting_psn_from_peer.get());
        let failover = (self.failover_accepted & 3) << 1;
        let delay = self.target_ack_delay << 3 | failover | u8::from(self.flow_control);
        let retries = self.rnr_retry_count << 5 | u8::from(self.has_srq) << 4;
        let depths = [self.responder_resources, self.initiator_depth];
        body.put_bytes_at(24, &[depths[0], depths[1], delay, retries]);
        body.put_bytes_at(28, &self.local_ca_guid.to_be_bytes());
        body.put_bytes_at(36, self.private_data.zero_padded_bytes());
    }
}

/// A message of two communication ids and private data: RTU (ready to use) or DREP (reply to a disconnection).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtuOrDrep {
    /// Communication id of the sender.
    pub local_comm_id: u32,
    /// Communication id of the receiver.
    pub remote_comm_id: u32,
    /// Private data of the consumer.
    pub private_data: BoundedData<224>,
}

impl RtuOrDrep {
    pub(super) fn parse(body: &MadBody) -> Self {
        Self {
            local_comm_id: body.u32(0),
            remote_comm_id: body.u32(4),
            private_data: BoundedData::from_received_bytes(body.bytes_at(8), 224),
        }
    }

    pub(super) fn emit(&self, body: &mut MadBody) {
        body.put_bytes_at(0, &self.local_comm_id.to_be_bytes());
        body.put_bytes_at(4, &self.remote_comm_id.to_be_bytes());
        body.put_bytes_at(8, self.private_data.zero_padded_bytes());
    }
}

/// Request to disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// Communication id of the sender.
    pub local_comm_id: u32,
    /// Communication id of the receiver.
    pub remote_comm_id: u32,
    /// Number of the receiver's queue pair, 24 bits.
    pub remote_qpn: u32,
    /// Private data of the consumer.
    pub private_data: BoundedData<220>,
}

impl Dreq {
    pub(super) fn parse(body: &MadBody) -> Self {
        Self {
            local_comm_id: body.u32(0),
            remote_comm_id: body.u32(4),
            remote_qpn: body.u24(8),
            private_data: BoundedData::from_received_bytes(body.bytes_at(12), 220),
        }
    }

    pub(super) fn emit(&self, body: &mut MadBody) {
        body.put_bytes_at(0, &self.local_comm_id.to_be_bytes());
        body.put_bytes_at(4, &self.remote_comm_id.to_be_bytes());
        body.put_u24(8, self.remote_qpn);
        body.put_bytes_at(12, self.private_data.zero_padded_bytes());
    }
}
