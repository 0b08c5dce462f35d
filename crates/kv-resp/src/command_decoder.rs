//! Decodes clients' commands from a byte stream, which arrives in pieces of any size.
//!
//! A command is an array of bulk strings, `*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`, or an inline command, `GET k\r\n`, with
//! Redis's quoting. Source: the Redis serialization protocol specification, and `networking.c` of Redis 7.0, whose
//! error messages are used here.

use std::ops::Range;

/// Bytes of the longest string in a command. Redis's `proto-max-bulk-len` is 512 MiB by default and at least this; the
/// store's values are much shorter.
pub const MAX_BULK_BYTES: usize = 1 << 20;
/// Largest number of strings in a command: Redis's limit until version 6.
pub const MAX_COMMAND_STRINGS: usize = 1 << 20;
/// Bytes of the longest command.
pub const MAX_COMMAND_BYTES: usize = 64 << 20;
/// Bytes of the longest inline command: Redis's `PROTO_INLINE_MAX_SIZE`.
pub const MAX_INLINE_BYTES: usize = 64 << 10;
/// Bytes of the longest line with a count, which fits a sign and the digits of 64 bits.
const MAX_COUNT_LINE_BYTES: usize = 32;
/// A larger buffer is freed once it is empty.
pub(crate) const MAX_KEPT_BUFFER_BYTES: usize = 1 << 20;

/// The error in a frame. The beginning of the next frame is then unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The number of strings is malformed or above [`MAX_COMMAND_STRINGS`].
    #[error("invalid multibulk length")]
    InvalidStringCount,
    /// The length is malformed or above [`MAX_BULK_BYTES`].
    #[error("invalid bulk length")]
    InvalidBulkLength,
    /// Another byte stands where a bulk string must begin.
    #[error("expected '$', got '{}'", .0.escape_ascii())]
    MissingDollar(u8),
    /// The line with a count is too long.
    #[error("too big count string")]
    CountLineTooLong,
    /// A bulk string is longer than its length.
    #[error("expected CRLF after a bulk string")]
    MissingCrlf,
    /// An inline command is longer than [`MAX_INLINE_BYTES`].
    #[error("too big inline request")]
    InlineCommandTooLong,
    /// A quote is not closed, or not followed by a space.
    #[error("unbalanced quotes in request")]
    UnbalancedQuotes,
    /// A command is longer than [`MAX_COMMAND_BYTES`].
    #[error("too big request")]
    CommandTooLong,
}

/// A command: its name and its arguments.
#[derive(Debug, Clone, Copy)]
pub struct CommandStrings<'d> {
    /// Bytes that hold all strings.
    bytes_holding_strings: &'d [u8],
    /// Place of each string in the bytes.
    string_ranges: &'d [Range<usize>],
}

impl<'d> CommandStrings<'d> {
    /// Returns the number of strings including the name, at least 1.
    pub fn count(&self) -> usize {
        self.string_ranges.len()
    }

    /// Returns string `i`, or `None` if it is missing; string 0 is the name.
    pub fn get(&self, i: usize) -> Option<&'d [u8]> {
        self.string_ranges
            .get(i)
            .map(|p| &self.bytes_holding_strings[p.clone()])
    }

    /// Returns string `i`, or an empty string if it is missing.
    pub fn get_or_empty(&self, i: usize) -> &'d [u8] {
        self.get(i).unwrap_or_default()
    }

    /// Returns the strings from number `i` on.
    pub fn strings_from(&self, i: usize) -> impl Iterator<Item = &'d [u8]> + use<'d> {
        let Self {
            bytes_holding_strings: bytes,
            string_ranges: places,
        } = *self;
        let places = places.get(i..).unwrap_or_default();
        places.iter().map(|p| &bytes[p.clone()])
    }
}

/// Decodes commands from a stream.
///
/// ```
/// let mut decoder = kv_resp::CommandDecoder::default();
/// decoder.feed(b"PING\r\n*2\r\n$3\r\nGET\r\n$1");
/// assert_eq!(decoder.next_command()?.map(|c| c.get_or_empty(0)), Some(&b"PING"[..]));
/// assert!(decoder.next_command()?.is_none());
/// decoder.feed(b"\r\nk\r\n");
/// assert_eq!(decoder.next_command()?.map(|c| c.get_or_empty(1)), Some(&b"k"[..]));
/// # Ok::<(), kv_resp::ProtocolError>(())
/// ```
#[derive(Debug, Default)]
pub struct CommandDecoder {
    bytes: Vec<u8>,
    /// Start of the command that is being read, or was returned last.
    command_start: usize,
    /// Everything before this position has been decoded.
    decoded_to: usize,
    /// In an inline command: no line ends before this position.
    line_end_searched_to: usize,
    /// Number of strings that the command still lacks; 0 between commands.
    missing_strings: usize,
    /// Ranges of the strings in `bytes`, relative to `start`, or in `inline`.
    string_ranges: Vec<Range<usize>>,
    /// The strings of an inline command, unquoted.
    unquoted_inline_strings: Vec<u8>,
}

impl CommandDecoder {
    /// Takes received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.missing_strings == 0 {
            self.command_start = self.decoded_to;
        }
        if self.command_start == self.bytes.len() {
            self.bytes.clear();
            if self.bytes.capacity() > MAX_KEPT_BUFFER_BYTES {
                self.bytes = Vec::new();
            }
        } else {
            self.bytes.drain(..self.command_start);
        }
        self.decoded_to -= self.command_start;
        self.line_end_searched_to = self.line_end_searched_to.saturating_sub(self.command_start);
        self.command_start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next command if it is complete.
    ///
    /// # Errors
    /// [`ProtocolError`]: the rest of the stream cannot be decoded, and another call fails too.
    pub fn next_command(&mut self) -> Result<Option<CommandStrings<'_>>, ProtocolError> {
        while self.missing_strings == 0 {
            self.command_start = self.decoded_to;
            match self.bytes.get(self.decoded_to) {
                None => return Ok(None),
                Some(b'*') => {
                    let Some((count, at)) =
                        self.parse_count_line(ProtocolError::InvalidStringCount)?
                    else {
                        return Ok(None);
                    };
                    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
                    if count > MAX_COMMAND_STRINGS {
                        return Err(ProtocolError::InvalidStringCount);
                    }
                    self.string_ranges.clear();
                    (self.missing_strings, self.decoded_to) = (count, at);
                }
                Some(_) => {
                    if !self.read_inline_command_if_complete()? {
                        return Ok(None);
                    }
                    if !self.string_ranges.is_empty() {
                        return Ok(Some(CommandStrings {
                            bytes_holding_strings: &self.unquoted_inline_strings,
                            string_ranges: &self.string_ranges,
                        }));
                    }
                }
            }
        }
        while self.missing_strings > 0 {
            if !self.read_bulk_string_if_complete()? {
                return Ok(None);
            }
        }
        Ok(Some(CommandStrings {
            bytes_holding_strings: &self.bytes[self.command_start..self.decoded_to],
            string_ranges: &self.string_ranges,
        }))
    }

    /// Parses the count at `at`, after its sign; returns the count and the end of its line.
    fn parse_count_line(
        &self,
        wrong: ProtocolError,
    ) -> Result<Option<(i64, usize)>, ProtocolError> {
        let line = self.bytes.get(self.decoded_to + 1..).unwrap_or_default();
        let line = &line[..line.len().min(MAX_COUNT_LINE_BYTES)];
        let Some(end) = line.iter().position(|b| *b == b'\r') else {
            return if line.len() == MAX_COUNT_LINE_BYTES {
                Err(ProtocolError::CountLineTooLong)
            } else {
                Ok(None)
            };
        };
        match self.bytes.get(self.decoded_to + 1 + end + 1) {
            None => Ok(None),
            Some(b'\n') => {
                let count = crate::number::parse_canonical_integer(&line[..end]).ok_or(wrong)?;
                Ok(Some((count, self.decoded_to + end + 3)))
            }
            Some(_) => Err(wrong),
        }
    }

    /// Reads a bulk string. Returns false if it is incomplete.
    fn read_bulk_string_if_complete(&mut self) -> Result<bool, ProtocolError> {
        match self.bytes.get(self.decoded_to) {
            None => return Ok(false),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::MissingDollar(*other)),
        }
        let Some((length, from)) = self.parse_count_line(ProtocolError::InvalidBulkLength)? else {
            return Ok(false);
        };
        let length = usize::try_from(length).map_err(|_| ProtocolError::InvalidBulkLength)?;
        if length > MAX_BULK_BYTES {
            return Err(ProtocolError::InvalidBulkLength);
        }
        let end = from + length;
        if end - self.command_start > MAX_COMMAND_BYTES {
            return Err(ProtocolError::CommandTooLong);
        }
        let Some(behind) = self.bytes.get(end..end + 2) else {
            // If one of the two bytes is there, it must already decide: the result must not depend on the pieces.
            return match self.bytes.get(end) {
                None | Some(b'\r') => Ok(false),
                Some(_) => Err(ProtocolError::MissingCrlf),
            };
        };
        if behind != b"\r\n" {
            return Err(ProtocolError::MissingCrlf);
        }
        self.string_ranges
            .push(from - self.command_start..end - self.command_start);
        self.decoded_to = end + 2;
        self.missing_strings -= 1;
        Ok(true)
    }

    /// Reads an inline command. Returns false if it is incomplete. An empty line yields no strings.
    fn read_inline_command_if_complete(&mut self) -> Result<bool, ProtocolError> {
        let most = self.bytes.len().min(self.decoded_to + MAX_INLINE_BYTES);
        let from = self.line_end_searched_to.clamp(self.decoded_to, most);
        let end = self.bytes[from..most].iter().position(|b| *b == b'\n');
        let Some(end) = end.map(|end| from + end) else {
            self.line_end_searched_to = most;
            return if most - self.decoded_to == MAX_INLINE_BYTES {
                Err(ProtocolError::InlineCommandTooLong)
            } else {
                Ok(false)
            };
        };
        let line = &self.bytes[self.decoded_to..end];
        self.unquoted_inline_strings.clear();
        self.string_ranges.clear();
        split_inline_command(
            line.strip_suffix(b"\r").unwrap_or(line),
            &mut self.unquoted_inline_strings,
            &mut self.string_ranges,
        )
        .ok_or(ProtocolError::UnbalancedQuotes)?;
        self.decoded_to = end + 1;
        Ok(true)
    }
}

/// Splits a line at spaces, as Redis's `sdssplitargs` does. In double quotes `\n`, `\r`, `\t`, `\b`, `\a`, `\xHH` and
/// `\` before anything else have their meaning of C. In single quotes only `\'` does. Returns `None` for unbalanced
/// quotes.
fn split_inline_command(
    line: &[u8],
    strings: &mut Vec<u8>,
    places: &mut Vec<Range<usize>>,
) -> Option<()> {
    let space = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    let mut rest = line;
    loop {
        while let [b, behind @ ..] = rest
            && space(b)
        {
            rest = behind;
        }
        if rest.is_empty() {
            return Some(());
        }
        let start = strings.len();
        loop {
            match rest {
                [] => break,
                [b, ..] if space(b) => break,
                [quote @ (b'"' | b'\''), behind @ ..] => {
                    rest = decode_quoted_text(*quote, behind, strings)?;
                    if rest.first().is_some_and(|b| !space(b)) {
                        return None;
                    }
                }
                [b, behind @ ..] => {
                    strings.push(*b);
                    rest = behind;
                }
            }
        }
        places.push(start..strings.len());
    }
}

/// Decodes the text up to the closing quote, and returns the rest after it.
fn decode_quoted_text<'l>(
    quote: u8,
    mut rest: &'l [u8],
    strings: &mut Vec<u8>,
) -> Option<&'l [u8]> {
    let digit = |b: u8| {
        char::from(b)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
    };
    loop {
        let (byte, behind) = match rest {
            [] => return None,
            [b, behind @ ..] if *b == quote => return Some(behind),
            [b'\\', b'\'', behind @ ..] if quote == b'\'' => (b'\'', behind),
            [b'\\', b'x', high, low, behind @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (digit(*high)? << 4 | digit(*low)?, behind)
            }
            [b'\\', b, behind @ ..] if quote == b'"' => {
                let byte = match b {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                };
                (byte, behind)
            }
            [b, behind @ ..] => (*b, behind),
        };
        strings.push(byte);
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Commands = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

    /// Returns all commands of a stream that arrives in pieces of these lengths, followed by the rest as one piece.
    fn commands(bytes: &[u8], pieces: &[usize]) -> Commands {
        let mut decoder = CommandDecoder::default();
        let mut found = Vec::new();
        let mut rest = bytes;
        let mut lengths = pieces.iter().copied();
        while !rest.is_empty() {
            let length = lengths.next().unwrap_or(rest.len()).clamp(1, rest.len());
            decoder.feed(&rest[..length]);
            rest = &rest[length..];
            loop {
                match decoder.next_command() {
                    Ok(Some(args)) => {
                        found.push(args.strings_from(0).map(<[u8]>::to_vec).collect())
                    }
                    Ok(None) => break,
                    Err(e) => return (found, Some(e)),
                }
            }
        }
        (found, None)
    }

    fn one(bytes: &[u8]) -> Result<Vec<String>, ProtocolError> {
        match commands(bytes, &[]) {
            (_, Some(e)) => Err(e),
            (found, None) => Ok(found
                .concat()
                .iter()
                .map(|s| s.escape_ascii().to_string())
                .collect()),
        }
    }

    fn encode(command: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for string in command {
            bytes.extend_from_slice(format!("${}\r\n", string.len()).as_bytes());
            bytes.extend_from_slice(string);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    #[test]
    fn inline_commands_are_split_as_redis_splits_them() {
        for (line, strings) in [
            ("PING\r\n", &["PING"][..]),
            ("\r\n\n  \r\nPING\n", &["PING"]),
            (" SET  a\tb \r\n", &["SET", "a", "b"]),
            (
                "SET a \"b c\\n\\x41\\q\\\"\"\r\n",
                &["SET", "a", "b c\\nAq\\\""],
            ),
            ("SET 'a\\'s' '\\n' \"\"\r\n", &["SET", "a\\'s", "\\\\n", ""]),
        ] {
            assert_eq!(one(line.as_bytes()).expect(line), strings, "{line:?}");
        }
        for line in ["a \"b\r\n", "a \"b\"c\r\n", "a 'b\r\n", "'a''b'\r\n"] {
            assert_eq!(
                one(line.as_bytes()),
                Err(ProtocolError::UnbalancedQuotes),
                "{line:?}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = vec![b'a'; MAX_INLINE_BYTES];
        let many = format!("*{}\r\n", MAX_COMMAND_STRINGS + 1);
        let big = format!("*1\r\n${}\r\n", MAX_BULK_BYTES + 1);
        for (bytes, words) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*1\rx", "invalid multibulk length"),
            (b"*+1\r\n", "invalid multibulk length"),
            (many.as_bytes(), "invalid multibulk length"),
            (b"*9223372036854775808\r\n", "invalid multibulk length"),
            (
                b"*11111111111111111111111111111111111111\r\n",
                "too big count string",
            ),
            (b"*1\r\nx", "expected '$', got 'x'"),
            (b"*1\r\n\n", "expected '$', got '\\n'"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$a\r\n", "invalid bulk length"),
            (big.as_bytes(), "invalid bulk length"),
            (b"*1\r\n$1\r\naxx", "expected CRLF after a bulk string"),
            (b"*1\r\n$1\r\na\rx", "expected CRLF after a bulk string"),
            (&long, "too big inline request"),
        ] {
            let error = one(bytes).expect_err("it is wrong");
            assert_eq!(error.to_string(), words, "{}", bytes.escape_ascii());
        }
        // These lines contain no command and no error.
        assert_eq!(one(b"*0\r\n*-1\r\n"), Ok(vec![]));
        assert_eq!(one(&long[1..]), Ok(vec![]));
    }

    #[test]
    fn a_command_has_a_longest_length() {
        let string = encode(&[vec![b'v'; MAX_BULK_BYTES]]);
        let string = &string[4..];
        let mut decoder = CommandDecoder::default();
        decoder.feed(format!("*{MAX_COMMAND_STRINGS}\r\n").as_bytes());
        let mut error = None;
        for _ in 0..MAX_COMMAND_BYTES / MAX_BULK_BYTES {
            decoder.feed(string);
            error = decoder.next_command().err();
        }
        assert_eq!(error, Some(ProtocolError::CommandTooLong));
    }

    /// Generates bytes that are often almost commands.
    fn nearly() -> impl Strategy<Value = Vec<u8>> {
        let token = prop_oneof![
            any::<u8>().prop_map(|b| vec![b]),
            prop::sample::select(vec![
                &b"*1\r\n"[..],
                b"*2\r\n",
                b"$1\r\n",
                b"$0\r\n\r\n",
                b"$3\r\nGET\r\n",
                b"$1\r\nk\r\n",
                b"\r\n",
                b"\"a b\"",
                b"PING\r\n",
                b"*",
                b"$",
                b"\\x",
            ])
            .prop_map(<[u8]>::to_vec),
        ];
        prop::collection::vec(token, 0..40).prop_map(|t| t.concat())
    }

    proptest! {
        #[test]
        fn commands_come_back_as_they_went(
            sent in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 0..8),
            pieces in prop::collection::vec(1usize..30, 0..60),
        ) {
            let bytes: Vec<u8> = sent.iter().flat_map(|c| encode(c)).collect();
            prop_assert_eq!(commands(&bytes, &pieces), (sent, None));
        }

        #[test]
        fn pieces_do_not_matter(bytes in nearly(), pieces in prop::collection::vec(1usize..5, 0..100)) {
            prop_assert_eq!(commands(&bytes, &pieces), commands(&bytes, &[]));
        }
    }
}
