//! Replies to clients in RESP2 or RESP3.

/// The protocol version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// The version before `HELLO 3`.
    #[default]
    Resp2,
    /// The version after `HELLO 3`, with maps, sets, a null type and verbatim strings.
    Resp3,
}

/// Writes replies one after the other.
///
/// ```
/// use kv_resp::{Protocol, ReplyWriter};
/// let mut out = Vec::new();
/// let mut replies = ReplyWriter::new(&mut out, Protocol::Resp2);
/// replies.begin_array(2);
/// replies.write_bulk_string(b"a");
/// replies.write_null();
/// assert_eq!(out, b"*2\r\n$1\r\na\r\n$-1\r\n");
/// ```
#[derive(Debug)]
pub struct ReplyWriter<'o> {
    out: &'o mut Vec<u8>,
    protocol: Protocol,
}

impl<'o> ReplyWriter<'o> {
    /// Creates a writer that appends to `out`.
    pub fn new(out: &'o mut Vec<u8>, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    /// Continues in another protocol version.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Returns the length of `out`, including what was there before.
    pub fn output_length(&self) -> usize {
        self.out.len()
    }

    /// Truncates `out` to `bytes` bytes.
    pub fn truncate(&mut self, bytes: usize) {
        self.out.truncate(bytes);
    }

    fn write_number_line(&mut self, sign: u8, n: i64) {
        self.out.push(sign);
        self.out
            .extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn write_length_line(&mut self, sign: u8, n: usize) {
        self.write_number_line(sign, i64::try_from(n).unwrap_or(i64::MAX));
    }

    fn write_text_line(&mut self, sign: u8, text: &str) {
        self.out.push(sign);
        // CR and LF would end the line early, so they become spaces.
        let bytes = text.bytes();
        self.out
            .extend(bytes.map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { b }));
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes a simple string, such as `OK`.
    pub fn write_simple_string(&mut self, text: &str) {
        self.write_text_line(b'+', text);
    }

    /// Writes an error: a word in capitals, then the description.
    pub fn write_error(&mut self, text: &str) {
        self.write_text_line(b'-', text);
    }

    /// Writes a number.
    pub fn write_integer(&mut self, n: i64) {
        self.write_number_line(b':', n);
    }

    /// Writes a string of any bytes.
    pub fn write_bulk_string(&mut self, bytes: &[u8]) {
        self.write_length_line(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes a text for people: a verbatim string in RESP3.
    pub fn write_verbatim_string(&mut self, text: &str) {
        if self.protocol == Protocol::Resp2 {
            return self.write_bulk_string(text.as_bytes());
        }
        self.write_length_line(b'=', text.len() + 4);
        self.out.extend_from_slice(b"txt:");
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes a null.
    pub fn write_null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Begins an array of `count` replies, which follow.
    pub fn begin_array(&mut self, count: usize) {
        self.write_length_line(b'*', count);
    }

    /// Begins a map of `pairs` pairs of replies, which follow.
    pub fn begin_map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.write_length_line(b'*', 2 * pairs),
            Protocol::Resp3 => self.write_length_line(b'%', pairs),
        }
    }

    /// Begins a set of `count` replies, which follow.
    pub fn begin_set(&mut self, count: usize) {
        match self.protocol {
            Protocol::Resp2 => self.write_length_line(b'*', count),
            Protocol::Resp3 => self.write_length_line(b'~', count),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A decoded reply.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) enum Reply {
        Simple(String),
        Error(String),
        Integer(i64),
        Bulk(Vec<u8>),
        Text(String),
        Null,
        Array(Vec<Reply>),
        Map(Vec<Reply>),
        Set(Vec<Reply>),
    }

    fn take_line<'b>(bytes: &mut &'b [u8]) -> &'b str {
        let end = bytes.windows(2).position(|w| w == b"\r\n").expect("a line");
        let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
        *bytes = rest;
        std::str::from_utf8(line).expect("text")
    }

    /// Decodes one reply.
    pub(crate) fn read(bytes: &mut &[u8]) -> Reply {
        let head = take_line(bytes);
        let (sign, rest) = head.split_at(1);
        let n = || rest.parse::<i64>().expect("a number");
        let length = || usize::try_from(n()).expect("a length");
        let mut string = |length: usize| {
            let string = bytes[..length].to_vec();
            assert_eq!(&bytes[length..length + 2], b"\r\n");
            *bytes = &bytes[length + 2..];
            string
        };
        match sign {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(n()),
            "$" if rest == "-1" => Reply::Null,
            "_" if rest.is_empty() => Reply::Null,
            "$" => Reply::Bulk(string(length())),
            "=" => {
                let text = String::from_utf8(string(length())).expect("text");
                Reply::Text(text.strip_prefix("txt:").expect("a kind").to_owned())
            }
            "*" => Reply::Array((0..n()).map(|_| read(bytes)).collect()),
            "~" => Reply::Set((0..n()).map(|_| read(bytes)).collect()),
            "%" => Reply::Map((0..2 * n()).map(|_| read(bytes)).collect()),
            other => panic!("no reply begins with {other:?}"),
        }
    }

    fn write(replies: &mut ReplyWriter<'_>, reply: &Reply) {
        match reply {
            Reply::Simple(text) => replies.write_simple_string(text),
            Reply::Error(text) => replies.write_error(text),
            Reply::Integer(n) => replies.write_integer(*n),
            Reply::Bulk(bytes) => replies.write_bulk_string(bytes),
            Reply::Text(text) => replies.write_verbatim_string(text),
            Reply::Null => replies.write_null(),
            Reply::Array(parts) => {
                replies.begin_array(parts.len());
                parts.iter().for_each(|part| write(replies, part));
            }
            Reply::Set(parts) => {
                replies.begin_set(parts.len());
                parts.iter().for_each(|part| write(replies, part));
            }
            Reply::Map(parts) => {
                replies.begin_map(parts.len() / 2);
                parts.iter().for_each(|part| write(replies, part));
            }
        }
    }

    /// Returns the reply as a RESP2 client reads it.
    fn in_resp2(reply: &Reply) -> Reply {
        match reply {
            Reply::Text(text) => Reply::Bulk(text.as_bytes().to_vec()),
            Reply::Array(parts) | Reply::Map(parts) | Reply::Set(parts) => {
                Reply::Array(parts.iter().map(in_resp2).collect())
            }
            other => other.clone(),
        }
    }

    fn any_reply() -> impl Strategy<Value = Reply> {
        let text = "[ -~]{0,20}";
        let leaf = prop_oneof![
            text.prop_map(Reply::Simple),
            text.prop_map(Reply::Error),
            any::<i64>().prop_map(Reply::Integer),
            prop::collection::vec(any::<u8>(), 0..20).prop_map(Reply::Bulk),
            ".{0,20}".prop_map(Reply::Text),
            Just(Reply::Null),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            let parts = || prop::collection::vec(inner.clone(), 0..4);
            let pairs = prop::collection::vec((inner.clone(), inner.clone()), 0..3);
            prop_oneof![
                parts().prop_map(Reply::Array),
                parts().prop_map(Reply::Set),
                pairs.prop_map(|p| Reply::Map(p.into_iter().flat_map(|(k, v)| [k, v]).collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn replies_come_back_as_they_went(sent in prop::collection::vec(any_reply(), 1..5)) {
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                let mut out = Vec::new();
                let mut replies = ReplyWriter::new(&mut out, protocol);
                sent.iter().for_each(|reply| write(&mut replies, reply));
                let mut bytes = &out[..];
                for reply in &sent {
                    let expected = match protocol {
                        Protocol::Resp2 => in_resp2(reply),
                        Protocol::Resp3 => reply.clone(),
                    };
                    prop_assert_eq!(read(&mut bytes), expected);
                }
                prop_assert!(bytes.is_empty());
            }
        }
    }

    #[test]
    fn line_ends_within_a_text_are_replaced() {
        let mut out = Vec::new();
        ReplyWriter::new(&mut out, Protocol::Resp2).write_error("ERR a\r\n+OK");
        assert_eq!(out, b"-ERR a  +OK\r\n");
    }
}
