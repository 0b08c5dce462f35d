//! Messages, as the kernel writes them.

use crate::numbers::{
    CLIENT_NLDEV, NLA_F_NESTED, NLM_F_CAPPED, NLM_F_MULTI, NLMSG_DONE, NLMSG_ERROR,
};
use crate::request::{NLMSG_HEADER_BYTES, Request};

/// A message that is being written. Numbers are in the byte order of the host.
#[derive(Debug)]
pub(crate) struct MessageBuilder {
    bytes: Vec<u8>,
}

/// An attribute of attributes that is being written.
#[derive(Debug)]
#[must_use]
pub(crate) struct NestedAttribute {
    start_offset: usize,
}

impl MessageBuilder {
    /// A message to the socket `port_id`, of a dump or not.
    fn new(kind: u16, request: &Request<'_>, port_id: u32, flags: u16) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(request.seq.to_ne_bytes());
        bytes.extend(port_id.to_ne_bytes());
        Self { bytes }
    }

    /// An answer of the client NLDEV.
    pub(crate) fn start_answer(
        command: u16,
        request: &Request<'_>,
        port_id: u32,
        is_dump: bool,
    ) -> Self {
        let flags = if is_dump { NLM_F_MULTI } else { 0 };
        Self::new(CLIENT_NLDEV << 10 | command, request, port_id, flags)
    }

    /// The end of a dump.
    pub(crate) fn dump_done(request: &Request<'_>, port_id: u32) -> Self {
        let mut message = Self::new(NLMSG_DONE, request, port_id, NLM_F_MULTI);
        message.bytes.extend(0_i32.to_ne_bytes());
        message
    }

    /// A refusal with a number of errno, or with 0 an acknowledgement.
    pub(crate) fn error_or_ack(request: &Request<'_>, port_id: u32, errno: i32) -> Self {
        let mut message = Self::new(NLMSG_ERROR, request, port_id, NLM_F_CAPPED);
        message.bytes.extend((-errno).to_ne_bytes());
        message.bytes.extend(request.header);
        message
    }

    /// Bytes until now.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds an attribute.
    pub(crate) fn put_attribute(&mut self, attribute: u16, value: &[u8]) {
        // Texts of sysfs and numbers: far below 64 KiB.
        let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        let value = value.get(..usize::from(len) - 4).unwrap_or(value);
        self.bytes.extend(len.to_ne_bytes());
        self.bytes.extend(attribute.to_ne_bytes());
        self.bytes.extend(value);
        let aligned = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(aligned, 0);
    }

    /// Appends an attribute with a text and a zero at its end.
    pub(crate) fn put_text(&mut self, attribute: u16, text: &str) {
        let text: Vec<u8> = text.bytes().take(MAX_TEXT_BYTES).chain([0]).collect();
        self.put_attribute(attribute, &text);
    }

    /// Appends an attribute of 8 bits.
    pub(crate) fn put_u8(&mut self, attribute: u16, value: u8) {
        self.put_attribute(attribute, &[value]);
    }

    /// Appends an attribute of 32 bits.
    pub(crate) fn put_u32(&mut self, attribute: u16, value: u32) {
        self.put_attribute(attribute, &value.to_ne_bytes());
    }

    /// Appends an attribute of 64 bits.
    pub(crate) fn put_u64(&mut self, attribute: u16, value: u64) {
        self.put_attribute(attribute, &value.to_ne_bytes());
    }

    /// Begins an attribute that contains the attributes appended next.
    pub(crate) fn begin_nested(&mut self, attribute: u16) -> NestedAttribute {
        let at = self.bytes.len();
        self.put_attribute(attribute | NLA_F_NESTED, &[]);
        NestedAttribute { start_offset: at }
    }

    /// Ends a nested attribute: it contains all attributes appended since it began.
    pub(crate) fn end_nested(&mut self, nest: NestedAttribute) {
        let len = u16::try_from(self.bytes.len() - nest.start_offset).unwrap_or(u16::MAX);
        self.overwrite_bytes(nest.start_offset, &len.to_ne_bytes());
    }

    /// The bytes of the message.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        debug_assert!(self.bytes.len() >= NLMSG_HEADER_BYTES);
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.overwrite_bytes(0, &len.to_ne_bytes());
        self.bytes
    }

    fn overwrite_bytes(&mut self, at: usize, value: &[u8]) {
        if let Some(bytes) = self.bytes.get_mut(at..at + value.len()) {
            bytes.copy_from_slice(value);
        }
    }
}

/// Bytes of a text at most: of names in sysfs 255 (`NAME_MAX`).
const MAX_TEXT_BYTES: usize = 255;
