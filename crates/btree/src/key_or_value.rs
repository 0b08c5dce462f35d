//! The keys and values of a tree: 64-bit numbers, or byte strings.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::node_words::NodeWords;

/// The type of a tree's keys and values: `u64`, or [`ByteString`].
///
/// Keys have the order of [`Ord`]; that of byte strings is lexicographic. The default of the type is the least key.
pub trait KeyOrValue: private::Stored {}

impl KeyOrValue for u64 {}
impl KeyOrValue for ByteString {}

/// A byte string of up to [`ByteString::MAX_BYTES`] bytes.
///
/// ```
/// use btree::ByteString;
///
/// let apple: ByteString = "apple".parse()?;
/// assert!(apple < "apples".parse()? && apple > "app".parse()?);
/// assert_eq!(apple.to_vec(), b"apple");
/// assert_eq!(apple.to_string(), "apple");
/// assert_eq!("it's".parse::<ByteString>()?.to_string(), "it's");
/// assert_eq!(ByteString::new(&[0, 255])?.to_string(), r"\x00\xff");
/// assert!(ByteString::new(&[0; 257]).is_err());
/// # Ok::<(), btree::TooLongError>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteString {
    /// The bytes, big-endian and padded by zeros: words then have the order of the bytes.
    words: [u64; MAX_STRING_WORDS],
    length: u16,
}

/// Words of the longest byte string.
const MAX_STRING_WORDS: usize = ByteString::MAX_BYTES / 8;

/// The error for a byte string that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a {what} of {length} bytes is too long: at most {max_length} bytes")]
pub struct TooLongError {
    /// "key", "value" or "byte string".
    pub what: &'static str,
    /// The length in bytes.
    pub length: usize,
    /// The largest length in bytes.
    pub max_length: usize,
}

impl ByteString {
    /// The largest length.
    pub const MAX_BYTES: usize = 256;

    /// Copies bytes.
    ///
    /// # Errors
    /// [`TooLongError`] if there are more than [`MAX_BYTES`](Self::MAX_BYTES).
    pub fn new(bytes: &[u8]) -> Result<Self, TooLongError> {
        if bytes.len() > Self::MAX_BYTES {
            return Err(TooLongError {
                what: "byte string",
                length: bytes.len(),
                max_length: Self::MAX_BYTES,
            });
        }
        let mut string = Self {
            length: u16::try_from(bytes.len()).unwrap_or(u16::MAX),
            ..Self::default()
        };
        for (word, chunk) in string.words.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_be_bytes(padded);
        }
        Ok(string)
    }

    /// Returns a string of `length` bytes whose words, big-endian, are those of `word`.
    pub(crate) fn from_words(length: usize, mut word: impl FnMut(usize) -> u64) -> Self {
        let length = length.min(Self::MAX_BYTES);
        let mut string = Self {
            length: u16::try_from(length).unwrap_or(u16::MAX),
            ..Self::default()
        };
        for (i, place) in string.words[..length.div_ceil(8)].iter_mut().enumerate() {
            *place = word(i);
        }
        if !length.is_multiple_of(8) {
            string.words[length / 8] &= !(u64::MAX >> (8 * (length % 8)));
        }
        string
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.length.into()
    }

    /// Returns true if the string has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(&mut bytes);
        bytes
    }

    /// Copies as many bytes as `into` has room for. The room behind the string becomes zero.
    pub fn copy_to(&self, into: &mut [u8]) {
        for (chunk, word) in into.chunks_mut(8).zip(self.words) {
            chunk.copy_from_slice(&word.to_be_bytes()[..chunk.len()]);
        }
    }
}

impl std::str::FromStr for ByteString {
    type Err = TooLongError;

    /// Takes the bytes of the text.
    fn from_str(text: &str) -> Result<Self, TooLongError> {
        Self::new(text.as_bytes())
    }
}

/// Prints the text if the bytes are UTF-8 without control characters. Other strings are escaped as in Rust.
impl fmt::Display for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.to_vec();
        match std::str::from_utf8(&bytes) {
            Ok(text) if !text.chars().any(char::is_control) => f.write_str(text),
            _ => bytes.escape_ascii().fmt(f),
        }
    }
}

impl fmt::Debug for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{self}\"")
    }
}

/// Serialises what [`Display`](fmt::Display) prints.
impl Serialize for ByteString {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The limits of a tree of numbers: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NumberSizes;

/// The limits of a tree of byte strings. Each entry of a node has room for the longest key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StringSizes {
    /// Bytes of the longest key, 1 to [`ByteString::MAX_BYTES`].
    pub key_bytes: usize,
    /// Bytes of the longest value, 1 to [`ByteString::MAX_BYTES`].
    pub value_bytes: usize,
}

impl Default for StringSizes {
    fn default() -> Self {
        Self {
            key_bytes: 32,
            value_bytes: 128,
        }
    }
}

pub(crate) mod private {
    use super::{ByteString, NodeWords, NumberSizes, StringSizes, TooLongError, fmt};

    /// Bytes of a numeric key and value in a message.
    const NUMBER_ENTRY_BYTES: usize = 16;

    /// The room for keys and values in a node.
    pub trait Sizes: Copy + Default + fmt::Debug + PartialEq + Send + Sync + 'static {
        /// Returns the words of a key's slot.
        fn key_words(self) -> usize;
        /// Returns the words of a value's slot.
        fn value_words(self) -> usize;
        /// Returns the bytes of the longest key and value.
        fn max_bytes(self) -> (usize, usize);
        /// Returns the bytes of the longest key and value in a message.
        fn max_encoded_bytes(self) -> (usize, usize);
        /// Returns the sizes of byte strings; `None` for numbers.
        fn of_strings(self) -> Option<StringSizes>;
        /// Converts the sizes of byte strings (`None` for numbers) to this type; `None` if they belong to the other
        /// kind of key.
        fn from_strings(sizes: Option<StringSizes>) -> Option<Self>;
    }

    impl Sizes for NumberSizes {
        #[inline]
        fn key_words(self) -> usize {
            1
        }

        #[inline]
        fn value_words(self) -> usize {
            1
        }

        #[inline]
        fn max_bytes(self) -> (usize, usize) {
            (8, 8)
        }

        #[inline]
        fn max_encoded_bytes(self) -> (usize, usize) {
            (8, 8)
        }

        fn of_strings(self) -> Option<StringSizes> {
            None
        }

        fn from_strings(sizes: Option<StringSizes>) -> Option<Self> {
            sizes.is_none().then_some(Self)
        }
    }

    impl Sizes for StringSizes {
        fn key_words(self) -> usize {
            1 + self.key_bytes.div_ceil(8)
        }

        fn value_words(self) -> usize {
            1 + self.value_bytes.div_ceil(8)
        }

        fn max_bytes(self) -> (usize, usize) {
            (self.key_bytes, self.value_bytes)
        }

        fn max_encoded_bytes(self) -> (usize, usize) {
            (2 + self.key_bytes, 2 + self.value_bytes)
        }

        fn of_strings(self) -> Option<StringSizes> {
            Some(self)
        }

        fn from_strings(sizes: Option<StringSizes>) -> Option<Self> {
            sizes
        }
    }

    /// A key or a value, as nodes and messages hold it.
    ///
    /// In a node it has a slot of words. The first word of a byte string's slot is its length, the others are its
    /// bytes, big-endian and padded by zeros.
    pub trait Stored:
        Copy + Ord + Default + fmt::Debug + fmt::Display + serde::Serialize + Send + Sync + 'static
    {
        /// The room in a node.
        type Sizes: Sizes;
        /// A buffer for the longest request, and for the longest answer to a GET.
        type MessageBuffer: AsRef<[u8]> + AsMut<[u8]>;
        /// True for 64-bit numbers: a slot has one word, and the fences are in the node's header.
        const IS_NUMBER: bool;

        /// Returns a zeroed buffer.
        fn message_buffer() -> Self::MessageBuffer;
        /// Reads the slot of `slot_words` words that begins at word `at` of a node with any contents.
        fn load<W: NodeWords + ?Sized>(words: &W, at: usize, slot_words: usize) -> Self;
        /// Returns true if the slot has a key that is less than or equal to this one.
        fn is_at_least_slot<W: NodeWords + ?Sized>(
            &self,
            words: &W,
            at: usize,
            slot_words: usize,
        ) -> bool;
        /// Returns word `index` of the slot.
        fn slot_word(&self, index: usize) -> u64;
        /// Writes the message form into a buffer that is long enough, and returns its length.
        fn encode(&self, into: &mut [u8]) -> usize;
        /// Appends the message form.
        fn append_to(&self, message: &mut Vec<u8>);
        /// Splits the message form off the front of `bytes`; returns `None` if they are malformed.
        fn decode(bytes: &mut &[u8]) -> Option<Self>;
        /// Appends the message forms of keys and values, as many entries as fit into a message of `message_bytes`
        /// bytes. Returns their number.
        fn append_entries_that_fit(
            entries: &[(Self, Self)],
            message: &mut Vec<u8>,
            message_bytes: usize,
        ) -> usize;
        /// Decodes entries from their message forms into `places`, until one of them ends. Returns their number.
        fn decode_entries(bytes: &[u8], places: &mut [(Self, Self)]) -> usize;
        /// Checks the length.
        fn check_length(&self, what: &'static str, most: usize) -> Result<(), TooLongError>;
        /// Returns the form of a 64-bit number that has its order.
        fn from_number(number: u64) -> Self;
        /// Returns the number of [`from_number`](Self::from_number), or 0 for anything else.
        fn to_number(self) -> u64;

        /// Checks the length of a key.
        fn check_key(&self, sizes: Self::Sizes) -> Result<(), TooLongError> {
            self.check_length("key", sizes.max_bytes().0)
        }

        /// Checks the length of a value.
        fn check_value(&self, sizes: Self::Sizes) -> Result<(), TooLongError> {
            self.check_length("value", sizes.max_bytes().1)
        }
    }

    impl Stored for u64 {
        type Sizes = NumberSizes;
        type MessageBuffer = [u8; 24];
        const IS_NUMBER: bool = true;

        #[inline]
        fn message_buffer() -> [u8; 24] {
            [0; 24]
        }

        #[inline]
        fn load<W: NodeWords + ?Sized>(words: &W, at: usize, _slot_words: usize) -> Self {
            words.word(at)
        }

        #[inline]
        fn is_at_least_slot<W: NodeWords + ?Sized>(
            &self,
            words: &W,
            at: usize,
            _slot_words: usize,
        ) -> bool {
            words.word(at) <= *self
        }

        #[inline]
        fn slot_word(&self, index: usize) -> u64 {
            if index == 0 { *self } else { 0 }
        }

        #[inline]
        fn encode(&self, into: &mut [u8]) -> usize {
            into[..8].copy_from_slice(&self.to_le_bytes());
            8
        }

        #[inline]
        fn append_to(&self, message: &mut Vec<u8>) {
            message.extend_from_slice(&self.to_le_bytes());
        }

        #[inline]
        fn decode(bytes: &mut &[u8]) -> Option<Self> {
            let (number, rest) = bytes.split_first_chunk::<8>()?;
            *bytes = rest;
            Some(Self::from_le_bytes(*number))
        }

        fn append_entries_that_fit(
            entries: &[(Self, Self)],
            message: &mut Vec<u8>,
            message_bytes: usize,
        ) -> usize {
            let length = message.len();
            let count = entries
                .len()
                .min(message_bytes.saturating_sub(length) / NUMBER_ENTRY_BYTES);
            message.resize(length + count * NUMBER_ENTRY_BYTES, 0);
            let (places, _) = message[length..].as_chunks_mut::<NUMBER_ENTRY_BYTES>();
            for (place, (key, value)) in places.iter_mut().zip(entries) {
                let word = u128::from(*value) << 64 | u128::from(*key);
                *place = word.to_le_bytes();
            }
            count
        }

        fn decode_entries(bytes: &[u8], places: &mut [(Self, Self)]) -> usize {
            let (entries, _) = bytes.as_chunks::<NUMBER_ENTRY_BYTES>();
            for (place, entry) in places.iter_mut().zip(entries) {
                let word = u128::from_le_bytes(*entry);
                #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
                let halves = (word as u64, (word >> 64) as u64);
                *place = halves;
            }
            entries.len().min(places.len())
        }

        #[inline]
        fn check_length(&self, _what: &'static str, _most: usize) -> Result<(), TooLongError> {
            Ok(())
        }

        #[inline]
        fn from_number(number: u64) -> Self {
            number
        }

        #[inline]
        fn to_number(self) -> u64 {
            self
        }
    }

    impl Stored for ByteString {
        type Sizes = StringSizes;
        /// A header of 8 bytes, a key, and a value or another key.
        type MessageBuffer = [u8; 8 + 2 * (2 + Self::MAX_BYTES)];
        const IS_NUMBER: bool = false;

        fn message_buffer() -> Self::MessageBuffer {
            [0; 8 + 2 * (2 + Self::MAX_BYTES)]
        }

        fn load<W: NodeWords + ?Sized>(words: &W, at: usize, slot_words: usize) -> Self {
            let mut string = Self::default();
            let room = slot_words.saturating_sub(1).min(string.words.len());
            let length = (words.word(at) & 0xffff) as usize;
            let length = length.min(8 * room);
            string.length = u16::try_from(length).unwrap_or(u16::MAX);
            for (i, word) in string.words[..length.div_ceil(8)].iter_mut().enumerate() {
                *word = words.word(at + 1 + i);
            }
            string
        }

        fn is_at_least_slot<W: NodeWords + ?Sized>(
            &self,
            words: &W,
            at: usize,
            slot_words: usize,
        ) -> bool {
            for i in 0..slot_words.saturating_sub(1).min(self.words.len()) {
                let word = words.word(at + 1 + i);
                if word != self.words[i] {
                    return word < self.words[i];
                }
            }
            // All bytes of the slot are equal, so the shorter string is less.
            words.word(at) & 0xffff <= u64::from(self.length)
        }

        fn slot_word(&self, index: usize) -> u64 {
            match index.checked_sub(1) {
                None => self.length.into(),
                Some(index) => self.words.get(index).copied().unwrap_or(0),
            }
        }

        fn encode(&self, into: &mut [u8]) -> usize {
            let length = self.len();
            into[..2].copy_from_slice(&self.length.to_le_bytes());
            self.copy_to(&mut into[2..2 + length]);
            2 + length
        }

        fn append_to(&self, message: &mut Vec<u8>) {
            let at = message.len();
            message.resize(at + 2 + self.len(), 0);
            self.encode(&mut message[at..]);
        }

        fn decode(bytes: &mut &[u8]) -> Option<Self> {
            let (length, rest) = bytes.split_first_chunk::<2>()?;
            let (string, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
            *bytes = rest;
            Self::new(string).ok()
        }

        fn append_entries_that_fit(
            entries: &[(Self, Self)],
            message: &mut Vec<u8>,
            message_bytes: usize,
        ) -> usize {
            for (count, (key, value)) in entries.iter().enumerate() {
                let length = message.len();
                key.append_to(message);
                value.append_to(message);
                if message.len() > message_bytes {
                    message.truncate(length);
                    return count;
                }
            }
            entries.len()
        }

        fn decode_entries(bytes: &[u8], places: &mut [(Self, Self)]) -> usize {
            let mut rest = bytes;
            let mut next = || Some((Self::decode(&mut rest)?, Self::decode(&mut rest)?));
            let mut count = 0;
            for place in places {
                let Some(entry) = next() else { break };
                *place = entry;
                count += 1;
            }
            count
        }

        fn check_length(&self, what: &'static str, most: usize) -> Result<(), TooLongError> {
            let length = self.len();
            match length <= most {
                true => Ok(()),
                false => Err(TooLongError {
                    what,
                    length,
                    max_length: most,
                }),
            }
        }

        fn from_number(number: u64) -> Self {
            let mut string = Self {
                length: 8,
                ..Self::default()
            };
            string.words[0] = number;
            string
        }

        fn to_number(self) -> u64 {
            match self.length {
                8 => self.words[0],
                _ => 0,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::private::{Sizes, Stored};
    use super::*;

    proptest! {
        /// Slots and messages hold what is put in, and the order is that of the bytes.
        #[test]
        fn byte_strings_have_the_order_of_their_bytes(
            a in vec(0u8..3, 0..20), b in vec(0u8..3, 0..20), common in vec(any::<u8>(), 0..236),
        ) {
            let [a, b] = [a, b].map(|tail| [&common[..], &tail[..]].concat());
            let [x, y] = [&a, &b].map(|bytes| ByteString::new(bytes).expect("short enough"));
            prop_assert_eq!((x.to_vec(), x.len()), (a.clone(), a.len()));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            let slot_words = StringSizes { key_bytes: a.len().max(1), value_bytes: 1 }.key_words();
            let slot: Vec<u64> = (0..slot_words).map(|i| x.slot_word(i)).collect();
            prop_assert_eq!(ByteString::load(&slot[..], 0, slot_words), x);
            prop_assert_eq!(y.is_at_least_slot(&slot[..], 0, slot_words), a <= b);
            let mut message = [7; 260];
            let length = x.encode(&mut message);
            let mut rest = &message[..];
            prop_assert_eq!(ByteString::decode(&mut rest), Some(x));
            prop_assert_eq!(rest.len(), message.len() - length);
            prop_assert_eq!(ByteString::decode(&mut &message[..length - 1]), None);
        }

        #[test]
        fn numbers_keep_their_order_as_byte_strings(a: u64, b: u64) {
            let [x, y] = [a, b].map(ByteString::from_number);
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(x.to_number(), a);
        }

        #[test]
        fn slots_with_any_contents_are_read(words in vec(any::<u64>(), 0..40), slot_words in 0usize..40) {
            prop_assert!(ByteString::load(&words[..], 0, slot_words).len() <= ByteString::MAX_BYTES);
        }
    }
}
