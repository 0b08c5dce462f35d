//! Requests, as clients write them.

use crate::numbers::{NLA_TYPE_MASK, NLM_F_REQUEST, NLMSG_MIN_TYPE, attribute};

/// Bytes of `struct nlmsghdr`.
pub(crate) const NLMSG_HEADER_BYTES: usize = 16;

/// A request of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// `nlmsg_type`.
    pub(crate) message_type: u16,
    /// `nlmsg_flags`.
    pub(crate) flags: u16,
    /// `nlmsg_seq`.
    pub(crate) seq: u32,
    /// The header as it came, which error messages repeat.
    pub(crate) header: &'a [u8],
    /// The attributes.
    attributes: &'a [u8],
}

/// Returns the requests of a datagram. A message of a wrong length ends the datagram, as in the kernel
/// (`netlink_rcv_skb`). Control messages and messages without `NLM_F_REQUEST` are skipped.
pub(crate) fn parse_requests(datagram: &[u8]) -> impl Iterator<Item = Request<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let (header, _) = rest.split_at_checked(NLMSG_HEADER_BYTES)?;
        let len = usize::try_from(u32_at(header, 0)?).ok()?;
        let message = rest.get(..len)?;
        let request = Request {
            message_type: u16_at(header, 4)?,
            flags: u16_at(header, 6)?,
            seq: u32_at(header, 8)?,
            header,
            attributes: message.get(NLMSG_HEADER_BYTES..)?,
        };
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(request)
    })
    .filter(|request| request.flags & NLM_F_REQUEST != 0 && request.message_type >= NLMSG_MIN_TYPE)
}

impl<'a> Request<'a> {
    /// The last value of an attribute; `None` where the request does not have it.
    fn attribute(&self, number: u16) -> Option<&'a [u8]> {
        let mut rest = self.attributes;
        let all = std::iter::from_fn(move || {
            let len = usize::from(u16_at(rest, 0)?);
            let kind = u16_at(rest, 2)? & NLA_TYPE_MASK;
            let value = rest.get(4..len)?;
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            Some((kind, value))
        });
        all.filter(|(kind, _)| *kind == number)
            .last()
            .map(|(_, value)| value)
    }

    /// The value of an attribute of 32 bits.
    pub(crate) fn u32_attribute(&self, number: u16) -> Option<u32> {
        u32_at(self.attribute(number)?, 0)
    }

    /// `RDMA_NLDEV_ATTR_DEV_INDEX`.
    pub(crate) fn device_index(&self) -> Option<usize> {
        usize::try_from(self.u32_attribute(attribute::DEV_INDEX)?).ok()
    }

    /// `RDMA_NLDEV_ATTR_PORT_INDEX`.
    pub(crate) fn port_number(&self) -> Option<usize> {
        usize::try_from(self.u32_attribute(attribute::PORT_INDEX)?).ok()
    }

    /// Whether it asks for the counters of a queue pair or another resource (`RDMA_NLDEV_ATTR_STAT_RES`).
    pub(crate) fn asks_resource_counters(&self) -> bool {
        self.attribute(attribute::STAT_RES).is_some()
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}
