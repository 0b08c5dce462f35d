//! The layout of a management datagram (MAD): IBTA volume 1, 13.4.3, 14.2.1 and 15.2.1.
//!
//! All fields are big-endian. Offsets count bytes from the start of the MAD.

/// Bytes of a MAD.
pub const MAD_BYTES: usize = 256;

/// Management classes.
pub mod class {
    /// Subnet management by LID.
    pub const SMP_LID: u8 = 0x01;
    /// Subnet administration.
    pub const SA: u8 = 0x03;
    /// Performance management.
    pub const PERFORMANCE: u8 = 0x04;
    /// Subnet management by directed route.
    pub const SMP_DIRECTED: u8 = 0x81;
}

/// Methods.
pub mod method {
    /// Requests an attribute.
    pub const GET: u8 = 0x01;
    /// Sets an attribute.
    pub const SET: u8 = 0x02;
    /// Answers `GET` and `SET`.
    pub const GET_RESP: u8 = 0x81;
    /// Requests all records that match.
    pub const GET_TABLE: u8 = 0x12;
    /// Deletes a record.
    pub const DELETE: u8 = 0x15;
    /// The bit of all responses.
    pub const RESPONSE: u8 = 0x80;
}

/// Statuses.
pub mod status {
    /// The class does not support the method.
    pub const UNSUPPORTED_METHOD: u16 = 0x0008;
    /// The method does not support the attribute.
    pub const UNSUPPORTED_ATTRIBUTE: u16 = 0x000c;
    /// A field of the attribute or its modifier is invalid.
    pub const INVALID_FIELD: u16 = 0x001c;
    /// Subnet administration: no record matches.
    pub const NO_RECORDS: u16 = 0x0300;
    /// Subnet administration: several records match a request for one.
    pub const TOO_MANY_RECORDS: u16 = 0x0400;
    /// Directed route: the MAD returns to its sender.
    pub const DIRECTION_RETURN: u16 = 0x8000;
}

/// Offset of the data of an SMP and of a performance MAD.
pub const SMP_AND_PERF_DATA_OFFSET: usize = 64;
/// Bytes of the data of an SMP.
pub const SMP_DATA_BYTES: usize = 64;
/// Offset of the data of a MAD of the subnet administration.
pub const SA_DATA_OFFSET: usize = 56;

/// The fields of a MAD.
pub struct MadFields<'a>(pub &'a [u8]);

impl MadFields<'_> {
    /// Management class.
    pub fn class(&self) -> u8 {
        byte_or_zero(self.0, 1)
    }

    /// Method.
    pub fn method(&self) -> u8 {
        byte_or_zero(self.0, 3)
    }

    /// Transaction identifier, which a response repeats.
    pub fn tid(&self) -> u64 {
        read_number(self.0, 8, 8)
    }

    /// Attribute identifier.
    pub fn attribute(&self) -> u16 {
        u16::from_be_bytes([byte_or_zero(self.0, 16), byte_or_zero(self.0, 17)])
    }

    /// Attribute modifier.
    pub fn modifier(&self) -> u32 {
        u32::from_be_bytes([20, 21, 22, 23].map(|at| byte_or_zero(self.0, at)))
    }

    /// Subnet administration: one bit for each field of the record that must match.
    pub fn component_mask(&self) -> u64 {
        read_number(self.0, 48, 8)
    }
}

/// Sets the transaction identifier of a MAD.
pub fn set_tid(mad: &mut [u8], tid: u64) {
    store_low_bytes(mad, 8, 8, tid);
}

/// Returns the byte at `at`, or 0 beyond the end.
pub(crate) fn byte_or_zero(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// Returns the number of `len` bytes at `at`; bytes beyond the end are 0.
pub(crate) fn read_number(bytes: &[u8], at: usize, len: usize) -> u64 {
    (at..at + len).fold(0, |number, at| {
        number << 8 | u64::from(byte_or_zero(bytes, at))
    })
}

/// Stores the low `len` bytes of `value` at `at`; bytes beyond the end are dropped.
pub(crate) fn store_low_bytes(bytes: &mut [u8], at: usize, len: usize, value: u64) {
    let big_endian = value.to_be_bytes();
    for (to, from) in bytes.iter_mut().skip(at).zip(&big_endian[8 - len..]) {
        *to = *from;
    }
}

/// Stores bytes at `at`; bytes beyond the end are dropped.
pub(crate) fn put_bytes(bytes: &mut [u8], at: usize, from: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(from) {
        *to = *from;
    }
}

/// Returns the response to a request without data, and with this status.
pub(crate) fn request_copy_as_response(request: &[u8], status: u16) -> Vec<u8> {
    let mut response = request.to_vec();
    response.resize(MAD_BYTES, 0);
    response[3] = match MadFields(request).method() {
        method::SET | method::GET => method::GET_RESP,
        other => other | method::RESPONSE,
    };
    store_low_bytes(&mut response, 4, 2, status.into());
    response
}
