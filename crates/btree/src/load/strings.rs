//! Loads of byte strings: every number of a workload has a key and a value of fixed lengths.

use service::random::mix_bits;

use crate::client::{Answer, ClientError, ClientStats, Completion, ExecuteRequests};
use crate::key_or_value::private::Stored;
use crate::key_or_value::{ByteString, StringSizes};
use crate::tree::MovedRange;
use crate::wire::Operation;

/// Bytes of the shortest keys and values of a load: a number.
pub const MIN_STRING_BYTES: usize = 8;

/// The byte strings that stand for the numbers of a workload. A string begins with its number, big-endian, so keys have
/// the order of their numbers. The other bytes are computed from the number, so a damaged string is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberStrings(StringSizes);

impl NumberStrings {
    /// Returns the strings with these lengths, or `None` if they are too short for numbers.
    pub fn new(sizes: StringSizes) -> Option<Self> {
        let least = sizes.key_bytes.min(sizes.value_bytes);
        (least >= MIN_STRING_BYTES).then_some(Self(sizes))
    }

    /// Returns the lengths of all keys and of all values.
    pub fn sizes(self) -> StringSizes {
        self.0
    }

    /// Returns the key for a number.
    pub fn key(self, number: u64) -> ByteString {
        encode_number_as_string(number, self.0.key_bytes)
    }

    /// Returns the value for a number.
    pub fn value(self, number: u64) -> ByteString {
        encode_number_as_string(number, self.0.value_bytes)
    }

    /// Returns the number of a key. A damaged key gives an arbitrary number.
    pub fn key_number(self, key: &ByteString) -> u64 {
        decode_number_of_string(key, self.0.key_bytes)
    }

    /// Returns the number of a value. A damaged value gives an arbitrary number.
    fn value_number(self, value: &ByteString) -> u64 {
        decode_number_of_string(value, self.0.value_bytes)
    }

    fn op_with_byte_strings(self, op: &Operation) -> Operation<ByteString> {
        let end_key = |end: Option<u64>| end.map(|end| self.key(end));
        match *op {
            Operation::Get { key } => Operation::Get { key: self.key(key) },
            Operation::Put { key, value, when } => Operation::Put {
                key: self.key(key),
                value: self.value(value),
                when,
            },
            Operation::Delete { key } => Operation::Delete { key: self.key(key) },
            Operation::Scan { from, end, limit } => Operation::Scan {
                from: self.key(from),
                end: end_key(end),
                limit,
            },
            Operation::Handover { step, from, end } => Operation::Handover {
                step,
                from: self.key(from),
                end: end_key(end),
            },
            Operation::ReadServerLoad => Operation::ReadServerLoad,
        }
    }
}

fn encode_number_as_string(number: u64, length: usize) -> ByteString {
    let mut word = number;
    ByteString::from_words(length, |i| {
        if i > 0 {
            word = mix_bits(word ^ 0x5851_f42d_4c95_7f2d);
        }
        word
    })
}

fn decode_number_of_string(string: &ByteString, length: usize) -> u64 {
    // Word 0 of a slot is the length.
    let number = string.slot_word(1);
    match *string == encode_number_as_string(number, length) {
        true => number,
        // Any other number: none of the checks expects it.
        false => mix_bits(!number),
    }
}

/// A client of a tree of byte strings that executes requests with numbers.
#[derive(Debug)]
pub struct NumberedClient<C> {
    client: C,
    strings: NumberStrings,
    entries: Vec<(u64, u64)>,
}

impl<C> NumberedClient<C> {
    /// Wraps a client.
    pub fn new(client: C, strings: NumberStrings) -> Self {
        Self {
            client,
            strings,
            entries: Vec::new(),
        }
    }

    /// Returns the wrapped client.
    pub fn client(&self) -> &C {
        &self.client
    }
}

impl<C: ExecuteRequests<ByteString>> ExecuteRequests for NumberedClient<C> {
    fn submit(&mut self, tree: u8, op: &Operation, token: u64) -> Result<bool, ClientError> {
        self.client
            .submit(tree, &self.strings.op_with_byte_strings(op), token)
    }

    fn poll(&mut self, mut each: impl FnMut(Completion<'_>)) -> Result<usize, ClientError> {
        let (strings, numbers) = (self.strings, &mut self.entries);
        self.client.poll(|done| {
            let answer = match done.answer {
                Answer::Value(value) => Answer::Value(value.map(|v| strings.value_number(&v))),
                Answer::Changed { found } => Answer::Changed { found },
                Answer::Entries { entries, next } => {
                    numbers.clear();
                    let number = |(key, value): &(ByteString, ByteString)| {
                        (strings.key_number(key), strings.value_number(value))
                    };
                    numbers.extend(entries.iter().map(number));
                    let next = next.map(|next| strings.key_number(&next));
                    Answer::Entries {
                        entries: numbers,
                        next,
                    }
                }
                Answer::Moved(moved) => Answer::Moved(MovedRange {
                    first_key: strings.key_number(&moved.first_key),
                    end_key: moved.end_key.map(|end| strings.key_number(&end)),
                    owner: moved.owner,
                }),
                Answer::HandoverStepDone { version } => Answer::HandoverStepDone { version },
                Answer::HandoverStepRefused => Answer::HandoverStepRefused,
                Answer::StoreFull => Answer::StoreFull,
                Answer::NoAnswerInTime => Answer::NoAnswerInTime,
            };
            each(Completion {
                token: done.token,
                answer,
                submitted_at: done.submitted_at,
                completed_at: done.completed_at,
            });
        })
    }

    fn outstanding(&self) -> usize {
        self.client.outstanding()
    }

    fn window(&self) -> usize {
        self.client.window()
    }

    fn refresh_clock(&mut self) {
        self.client.refresh_clock();
    }

    fn stats(&self) -> ClientStats {
        self.client.stats()
    }

    fn doorbells(&self) -> u64 {
        self.client.doorbells()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn strings_keep_order_and_number_and_damage_is_detected(
            a: u64, b: u64, length in 8usize..=256, at in 0usize..256, bit in 0u32..8,
        ) {
            let [x, y] = [a, b].map(|number| encode_number_as_string(number, length));
            prop_assert_eq!((x.cmp(&y), x.len()), (a.cmp(&b), length));
            prop_assert_eq!(decode_number_of_string(&x, length), a);
            let mut damaged = x.to_vec();
            damaged[at % length] ^= 1 << bit;
            let damaged = ByteString::new(&damaged).expect("as long");
            prop_assert_ne!(decode_number_of_string(&damaged, length), a);
            let shorter = ByteString::new(&x.to_vec()[..length - 1]).expect("shorter");
            prop_assert_ne!(decode_number_of_string(&shorter, length), a);
        }
    }

    #[test]
    fn strings_are_long_enough_for_numbers() {
        let sizes = |key_bytes, value_bytes| StringSizes {
            key_bytes,
            value_bytes,
        };
        assert!(NumberStrings::new(sizes(8, 8)).is_some());
        assert!(
            NumberStrings::new(sizes(7, 8)).is_none() && NumberStrings::new(sizes(8, 7)).is_none()
        );
    }
}
