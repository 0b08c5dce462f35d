//! Messages that resolve a service id to a datagram queue pair (IBTA vol. 1, 12.11).

use super::bounded_data::BoundedData;
use crate::mad::MadBody;

/// Service ID resolution request: asks for the queue pair of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// Id of this request, which the reply repeats.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// Service id of the requested service.
    pub service_id: u64,
    /// Private data of the consumer.
    pub private_data: BoundedData<216>,
}

impl SidrReq {
    pub(super) fn parse(body: &MadBody) -> Self {
        Self {
            request_id: body.u32(0),
            pkey: body.u16(4),
            service_id: body.u64(8),
            private_data: BoundedData::from_received_bytes(body.bytes_at(16), 216),
        }
    }

    pub(super) fn emit(&self, body: &mut MadBody) {
        body.put_bytes_at(0, &self.request_id.to_be_bytes());
        body.put_bytes_at(4, &self.pkey.to_be_bytes());
        body.put_bytes_at(8, &self.service_id.to_be_bytes());
        body.put_bytes_at(16, self.private_data.zero_padded_bytes());
    }
}

/// Statuses of a SIDR_REP (IBTA vol. 1, 12.11.2.1).
pub mod sidr_status {
    /// The queue pair and its Q_Key are valid.
    pub const VALID: u8 = 0;
    /// The service id is not supported.
    pub const UNSUPPORTED: u8 = 1;
    /// The provider of the service rejects the request.
    pub const REJECTED: u8 = 2;
    /// No queue pair is available.
    pub const NO_QP: u8 = 3;
    /// The service is at another port.
    pub const REDIRECT: u8 = 4;
    /// The class version is not supported.
    pub const UNSUPPORTED_VERSION: u8 = 5;
}

/// Service ID resolution reply, with the queue pair of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// Id of the request that is answered.
    pub request_id: u32,
    /// Status of the service, as in [`sidr_status`].
    pub status: u8,
    /// Number of the service's queue pair, 24 bits.
    pub qpn: u32,
    /// Service id.
    pub service_id: u64,
    /// Q_Key of the queue pair.
    pub qkey: u32,
    /// Additional information.
    pub additional_info: BoundedData<72>,
    /// Private data of the consumer.
    pub private_data: BoundedData<136>,
}

impl SidrRep {
    pub(super) fn parse(body: &MadBody) -> Self {
        Self {
            request_id: body.u32(0),
            status: body.u8(4),
            qpn: body.u24(8),
            service_id: body.u64(12),
            qkey: body.u32(20),
            additional_info: BoundedData::from_received_bytes(body.bytes_at(24), body.u8(5)),
            private_data: BoundedData::from_received_bytes(body.bytes_at(96), 136),
        }
    }

    pub(super) fn emit(&self, body: &mut MadBody) {
        body.put_bytes_at(0, &self.request_id.to_be_bytes());
        body.put_bytes_at(4, &[self.status, self.additional_info.len_byte()]);
        body.put_u24(8, self.qpn);
        body.put_bytes_at(12, &self.service_id.to_be_bytes());
        body.put_bytes_at(20, &self.qkey.to_be_bytes());
        body.put_bytes_at(24, self.additional_info.zero_padded_bytes());
        body.put_bytes_at(96, self.private_data.zero_padded_bytes());
    }
}
