//! Commands and replies from a client's point of view.

use std::fmt;

/// Largest nesting depth of arrays in an answer.
const MAX_ARRAY_DEPTH: usize = 8;
/// Largest number of elements for which memory is reserved before they arrive.
const MAX_RESERVED_ELEMENTS: usize = 1024;

/// Encodes a command as clients send it.
pub fn encode_command<'w>(words: impl ExactSizeIterator<Item = &'w [u8]>) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// An answer of a server, in RESP2 (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A simple string.
    Simple(String),
    /// An error.
    Error(String),
    /// A number.
    Integer(i64),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// The null bulk string or the null array.
    Nil,
    /// An array.
    Array(Vec<Answer>),
}

/// The error for bytes that violate the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server does not speak the Redis protocol: it said {0:?}")]
pub struct BadAnswer(String);

impl Answer {
    /// Parses the answer at the beginning of `bytes`, and returns it with its length; `None` while it is incomplete.
    ///
    /// # Errors
    /// [`BadAnswer`].
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, BadAnswer> {
        parse(bytes, 0)
    }
}

fn parse(bytes: &[u8], depth: usize) -> Result<Option<(Answer, usize)>, BadAnswer> {
    let Some(end) = bytes.windows(2).position(|w| w == b"\r\n") else {
        return Ok(None);
    };
    let line = bytes.get(..end).unwrap_or_default();
    let bad = || BadAnswer(line.escape_ascii().to_string());
    let (&kind, text) = line.split_first().ok_or_else(bad)?;
    let text = || String::from_utf8_lossy(text).into_owned();
    let number = || text().parse::<i64>().map_err(|_| bad());
    let mut at = end + 2;
    let answer = match kind {
        b'+' => Answer::Simple(text()),
        b'-' => Answer::Error(text()),
        b':' => Answer::Integer(number()?),
        b'$' | b'*' if number()? == -1 => Answer::Nil,
        b'$' => {
            let len = usize::try_from(number()?).map_err(|_| bad())?;
            let behind = at.checked_add(len).and_then(|end| end.checked_add(2));
            let Some(whole) = bytes.get(at..behind.ok_or_else(bad)?) else {
                return Ok(None);
            };
            at += len + 2;
            let value = whole.strip_suffix(b"\r\n").ok_or_else(bad)?;
            Answer::Bulk(value.to_vec())
        }
        b'*' if depth < MAX_ARRAY_DEPTH => {
            let count = usize::try_from(number()?).map_err(|_| bad())?;
            let mut elements = Vec::with_capacity(count.min(MAX_RESERVED_ELEMENTS));
            for _ in 0..count {
                let rest = bytes.get(at..).unwrap_or_default();
                let Some((element, len)) = parse(rest, depth + 1)? else {
                    return Ok(None);
                };
                elements.push(element);
                at += len;
            }
            Answer::Array(elements)
        }
        _ => return Err(bad()),
    };
    Ok(Some((answer, at)))
}

impl fmt::Display for Answer {
    /// Formats the answer as redis-cli does if its output is not a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(text) | Self::Error(text) => f.write_str(text),
            Self::Integer(number) => number.fmt(f),
            Self::Bulk(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Nil => Ok(()),
            Self::Array(elements) => {
                for (number, element) in elements.iter().enumerate() {
                    let before = if number == 0 { "" } else { "\n" };
                    write!(f, "{before}{element}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_every_kind_are_read_once_they_are_whole() {
        let whole = b"*6\r\n+OK\r\n-ERR no\r\n:-7\r\n$4\r\na\r\nb\r\n$-1\r\n*0\r\n";
        let wanted = Answer::Array(vec![
            Answer::Simple("OK".into()),
            Answer::Error("ERR no".into()),
            Answer::Integer(-7),
            Answer::Bulk(b"a\r\nb".to_vec()),
            Answer::Nil,
            Answer::Array(vec![]),
        ]);
        assert_eq!(
            Answer::parse(whole),
            Ok(Some((wanted.clone(), whole.len())))
        );
        for len in 0..whole.len() {
            assert_eq!(Answer::parse(&whole[..len]), Ok(None), "{len} bytes");
        }
        assert_eq!(wanted.to_string(), "OK\nERR no\n-7\na\r\nb\n\n");
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let deep = b"*1\r\n".repeat(MAX_ARRAY_DEPTH + 1);
        let huge = format!("${}\r\n", i64::MAX);
        for bytes in [
            &b"\r\n"[..],
            b"HTTP/1.1 400\r\n",
            b":x\r\n",
            b"$-2\r\n",
            b"$1\r\nabc\r\n",
            b"*-2\r\n",
            &deep,
        ] {
            assert!(Answer::parse(bytes).is_err(), "{}", bytes.escape_ascii());
        }
        assert_eq!(Answer::parse(huge.as_bytes()), Ok(None));
    }

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let words = [&b"GET"[..], b"", b"a b"];
        let bytes = encode_command(words.into_iter());
        assert_eq!(bytes, b"*3\r\n$3\r\nGET\r\n$0\r\n\r\n$3\r\na b\r\n");
    }
}
