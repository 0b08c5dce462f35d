//! The records of an attribute of the subnet administration, and which of them a request asks for (IBTA 15.4.4).

use crate::mad::{
    MAD_BYTES, MadFields, SA_DATA_OFFSET, byte_or_zero, method, put_bytes,
    request_copy_as_response, status, store_low_bytes,
};

/// The records of an attribute, and the fields of them that a request can name by its component mask.
pub(crate) struct RecordTable {
    /// Bytes of a record.
    pub(crate) record_bytes: usize,
    /// The fields that a request can name.
    pub(crate) fields: &'static [RecordField],
    /// The records.
    pub(crate) records: Vec<Vec<u8>>,
}

/// A field of a record that a bit of the component mask selects.
pub(crate) struct RecordField {
    /// The bit of the component mask.
    mask_bit: u32,
    /// The field's first bit in the record, the most significant one of a byte first.
    first_bit: usize,
    /// Its length in bits.
    bit_count: usize,
    comparison: Comparison,
}

/// How a record's field has to compare with the request's.
#[derive(Clone, Copy)]
enum Comparison {
    Equal,
    /// The two bits before the field are the selector: greater, less, exactly, or the largest. The component mask has a
    /// bit for the selector, before the field's. Without that bit, every record matches.
    BySelector(fn(u8) -> u32),
    /// The record has all bits of the request if the attribute modifier has bit 31. Otherwise both are equal.
    AllBits,
}

impl RecordField {
    const fn new(mask_bit: u32, first_bit: usize, bits: usize, comparison: Comparison) -> Self {
        Self {
            mask_bit,
            first_bit,
            bit_count: bits,
            comparison,
        }
    }

    /// A field of whole bytes.
    pub(crate) const fn of_bytes(mask_bit: u32, at: usize, len: usize) -> Self {
        Self::new(mask_bit, at * 8, len * 8, Comparison::Equal)
    }

    /// A field of bits.
    pub(crate) const fn of_bits(mask_bit: u32, first_bit: usize, bits: usize) -> Self {
        Self::new(mask_bit, first_bit, bits, Comparison::Equal)
    }

    /// A byte of a selector and a value; `order` maps values to numbers that can be compared.
    pub(crate) const fn of_selector(mask_bit: u32, at: usize, order: fn(u8) -> u32) -> Self {
        Self::new(mask_bit, at * 8 + 2, 6, Comparison::BySelector(order))
    }

    /// A capability mask.
    pub(crate) const fn of_capability_mask(mask_bit: u32, at: usize) -> Self {
        Self::new(mask_bit, at * 8, 32, Comparison::AllBits)
    }

    /// Returns true if the record has what the request wants of this field.
    fn matches(&self, mad: &MadFields<'_>, wanted: &[u8], record: &[u8]) -> bool {
        let named = |bit: u32| mad.component_mask() >> bit & 1 != 0;
        if !named(self.mask_bit) {
            return true;
        }
        let mut all = self.first_bit..self.first_bit + self.bit_count;
        match self.comparison {
            Comparison::AllBits if mad.modifier() >> 31 != 0 => {
                all.all(|at| is_bit_set(record, at) || !is_bit_set(wanted, at))
            }
            Comparison::Equal | Comparison::AllBits => {
                all.all(|at| is_bit_set(record, at) == is_bit_set(wanted, at))
            }
            Comparison::BySelector(order) => {
                let at = self.first_bit / 8;
                let has = order(byte_or_zero(record, at) & 0x3f);
                let asked = order(byte_or_zero(wanted, at) & 0x3f);
                !named(self.mask_bit - 1)
                    || match byte_or_zero(wanted, at) >> 6 {
                        0 => has > asked,
                        1 => has < asked,
                        2 => has == asked,
                        // The largest that there is.
                        _ => true,
                    }
            }
        }
    }
}

fn is_bit_set(bytes: &[u8], at: usize) -> bool {
    byte_or_zero(bytes, at / 8) << (at % 8) & 0x80 != 0
}

impl RecordTable {
    /// A table without records.
    pub(crate) fn empty(record_bytes: usize) -> Self {
        Self {
            record_bytes,
            fields: &[],
            records: Vec::new(),
        }
    }

    /// Returns the response with the records that match the request: the only one for `Get`, all for `GetTable`. With
    /// `takes_first`, `Get` returns the first of several.
    pub(crate) fn build_response(&self, request: &[u8], takes_first: bool) -> Vec<u8> {
        let mad = MadFields(request);
        let wanted = request.get(SA_DATA_OFFSET..).unwrap_or_default();
        let matches = |record: &&Vec<u8>| {
            let mut fields = self.fields.iter();
            fields.all(|field| field.matches(&mad, wanted, record))
        };
        let found: Vec<_> = self.records.iter().filter(matches).collect();
        if mad.method() != method::GET {
            return self.build_table_response(request, &found);
        }
        match found[..] {
            [] => request_copy_as_response(request, status::NO_RECORDS),
            [_, _, ..] if !takes_first => {
                request_copy_as_response(request, status::TOO_MANY_RECORDS)
            }
            [record, ..] => {
                let mut answer = request_copy_as_response(request, 0);
                let mut data = [0; MAD_BYTES - SA_DATA_OFFSET];
                put_bytes(&mut data, 0, record);
                put_bytes(&mut answer, SA_DATA_OFFSET, &data);
                answer
            }
        }
    }

    /// The response to `GetTable`, of all segments. The kernel has put them together
    /// (`linux:drivers/infiniband/core/user_mad.c`).
    fn build_table_response(&self, request: &[u8], records: &[&Vec<u8>]) -> Vec<u8> {
        let mut answer = request_copy_as_response(request, 0);
        answer.truncate(SA_DATA_OFFSET);
        for record in records {
            answer.extend_from_slice(record);
            let padding = self.record_bytes.next_multiple_of(8) - record.len();
            answer.extend(std::iter::repeat_n(0, padding));
        }
        let data = answer.len() - SA_DATA_OFFSET;
        // RMPP: version 1, type data, first and last segment.
        put_bytes(&mut answer, 24, &[1, 1, 7, 0]);
        store_low_bytes(&mut answer, 28, 4, 1);
        store_low_bytes(&mut answer, 32, 4, data as u64 + 20);
        store_low_bytes(&mut answer, 44, 2, self.record_bytes.div_ceil(8) as u64);
        answer
    }
}
