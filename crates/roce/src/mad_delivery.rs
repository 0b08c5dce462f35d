//! Delivery of communication management messages to the right process of a host.
//!
//! All processes of a host share QP1 of an address. REQ and SIDR_REQ name a service and go to the process that listens
//! at it. Other messages name a communication id of their receiver, whose upper bits are the slot of the receiving
//! process. A requester that gives up before the reply does not know that id, so its REJ goes to all processes.

use crate::cm::CmMessage;
use crate::mad::MAD_BYTES;

/// Position of the slot's lowest bit in a communication id and in a SIDR request id.
pub const SLOT_SHIFT_IN_COMM_ID: u32 = 22;

/// Bytes of a [`DeliveredMad`].
pub const DELIVERED_MAD_BYTES: usize = 2 * GID_BYTES + MAD_BYTES;
const GID_BYTES: usize = 16;

/// The process that receives a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadRecipient {
    /// The process that listens at the service.
    Listener,
    /// The process in this slot.
    ProcessInSlot(u16),
    /// All processes: the message is a REJ that names no communication id of its receiver.
    AllProcesses,
}

impl CmMessage {
    /// Returns the process of the receiving host that the message is for.
    #[must_use]
    pub const fn recipient(&self) -> MadRecipient {
        let id = match self {
            Self::Req(_) | Self::SidrReq(_) => return MadRecipient::Listener,
            Self::Mra(mra) => mra.remote_comm_id,
            Self::Rej(rej) if rej.remote_comm_id == 0 => return MadRecipient::AllProcesses,
            Self::Rej(rej) => rej.remote_comm_id,
            Self::Rep(rep) => rep.remote_comm_id,
            Self::Rtu(notice) | Self::Drep(notice) => notice.remote_comm_id,
            Self::Dreq(dreq) => dreq.remote_comm_id,
            Self::SidrRep(rep) => rep.request_id,
        };
        // The upper ten bits remain.
        #[allow(clippy::cast_possible_truncation)]
        MadRecipient::ProcessInSlot((id >> SLOT_SHIFT_IN_COMM_ID) as u16)
    }
}

/// A management datagram, with the GIDs of the sending and the receiving port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredMad {
    /// GID of the sending port.
    pub source_gid: [u8; GID_BYTES],
    /// GID of the receiving port.
    pub destination_gid: [u8; GID_BYTES],
    /// The management datagram.
    pub mad: [u8; MAD_BYTES],
}

impl DeliveredMad {
    /// Encodes the delivery as the datagram that one process sends to another.
    #[must_use]
    pub fn emit(&self) -> [u8; DELIVERED_MAD_BYTES] {
        let mut bytes = [0; DELIVERED_MAD_BYTES];
        let (source, rest) = bytes.split_at_mut(GID_BYTES);
        let (destination, mad) = rest.split_at_mut(GID_BYTES);
        source.copy_from_slice(&self.source_gid);
        destination.copy_from_slice(&self.destination_gid);
        mad.copy_from_slice(&self.mad);
        bytes
    }

    /// Parses a datagram from another process; `None` if its size is wrong.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (source, rest) = bytes.split_first_chunk()?;
        let (destination, mad) = rest.split_first_chunk()?;
        Some(Self {
            source_gid: *source,
            destination_gid: *destination,
            mad: *mad.as_array()?,
        })
    }
}

/// Returns the name of the socket on which the process in `slot` receives [`DeliveredMad`] datagrams: a Unix datagram
/// socket in the fabric's folder `rdma_cm`.
#[must_use]
pub fn mad_socket_name(slot: u16) -> String {
    format!("{MAD_SOCKET_NAME_PREFIX}{slot}")
}

/// Prefix of the names of these sockets.
pub const MAD_SOCKET_NAME_PREFIX: &str = "mads-";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{BoundedData, ReferredMessage, Rej, RtuOrDrep, SidrRep, SidrReq, reason};

    #[test]
    fn the_upper_ten_bits_of_an_id_are_the_slot() {
        let rtu = CmMessage::Rtu(RtuOrDrep {
            local_comm_id: 5,
            remote_comm_id: 1023 << SLOT_SHIFT_IN_COMM_ID | 77,
            private_data: BoundedData::default(),
        });
        assert_eq!(rtu.recipient(), MadRecipient::ProcessInSlot(1023));
        let request = CmMessage::SidrReq(SidrReq {
            request_id: u32::MAX,
            pkey: 0xffff,
            service_id: 0x0111_0007,
            private_data: BoundedData::default(),
        });
        assert_eq!(request.recipient(), MadRecipient::Listener);
        let mad = CmMessage::SidrRep(SidrRep {
            request_id: 3 << SLOT_SHIFT_IN_COMM_ID,
            status: 1,
            qpn: 0,
            service_id: 0,
            qkey: 0,
            additional_info: BoundedData::default(),
            private_data: BoundedData::default(),
        })
        .emit(9);
        assert_eq!(
            CmMessage::parse(&mad).unwrap().1.recipient(),
            MadRecipient::ProcessInSlot(3)
        );
    }

    #[test]
    fn a_rej_without_the_id_of_its_receiver_goes_to_all() {
        let rej = |remote_comm_id| {
            CmMessage::Rej(Rej {
                local_comm_id: 5,
                remote_comm_id,
                rejected_message: ReferredMessage::LapOrUnspecified,
                reason: reason::TIMEOUT,
                additional_info: BoundedData::default(),
                private_data: BoundedData::default(),
            })
        };
        assert_eq!(rej(0).recipient(), MadRecipient::AllProcesses);
        assert_eq!(rej(77).recipient(), MadRecipient::ProcessInSlot(0));
    }

    #[test]
    fn deliveries_come_back_and_other_sizes_are_refused() {
        let delivery = DeliveredMad {
            source_gid: [1; 16],
            destination_gid: [2; 16],
            mad: [3; MAD_BYTES],
        };
        let bytes = delivery.emit();
        assert_eq!(DeliveredMad::parse(&bytes), Some(delivery));
        assert_eq!(DeliveredMad::parse(&bytes[1..]), None);
        assert_eq!(DeliveredMad::parse(&[&bytes[..], &[0]].concat()), None);
    }
}
