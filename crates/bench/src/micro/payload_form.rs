//! Forms of payload. Each form carries a message's stamp, which is the number that the receiver
//! checks.
//!
//! Each form is a type, so that the loop over WRs is compiled for its form and has no branch per
//! WR.

use anyhow::{Context, Result};
use verbs::{Access, HeaderOnly, Inline, MemoryRegion, MrSlice, Payload, WorkCompletion};

use super::verb::last_word_offset;
use crate::open_nic::{OpenNic, RegionPageSize};
use crate::peers::copy_parameters::byte_pattern;

/// Layout of a window's payloads.
#[derive(Clone, Copy)]
pub(super) struct WindowLayout {
    pub(super) payload_bytes: usize,
    /// Number of payloads that the NIC may be reading at once.
    pub(super) slot_count: usize,
    pub(super) page_size: Option<RegionPageSize>,
}

impl WindowLayout {
    /// Returns the distance of two payloads, in bytes.
    pub(super) fn slot_stride_bytes(&self) -> usize {
        self.payload_bytes.next_multiple_of(8)
    }
}

/// A form of payload.
pub(super) trait PayloadForm: Sized {
    /// Type of the payload that a WR takes.
    type Payload<'f>: Payload
    where
        Self: 'f;

    /// Bit that marks the stamp of the last message.
    const LAST_MARK: u64;

    /// True if the stamp is the immediate.
    const STAMP_IS_IMM: bool = false;

    /// True if the NIC reads the payload from memory, which must not change until the WR completes.
    const NIC_READS_PAYLOAD: bool = false;

    fn new(nic: &OpenNic, layout: &WindowLayout) -> Result<Self>;

    /// Returns the payload of a slot, with its stamp.
    fn stamped_payload(&mut self, slot: usize, stamp: u64) -> Result<Self::Payload<'_>>;

    /// Returns the stamps at both ends of a message that has arrived.
    fn received_stamps(
        memory: &MemoryRegion,
        wc: &WorkCompletion<'_>,
        payload_bytes: usize,
    ) -> Result<[u64; 2]>;

    /// Makes the stamp of a message.
    #[inline]
    fn make_stamp(number: u64, last: bool) -> u64 {
        (number & (Self::LAST_MARK - 1)) | if last { Self::LAST_MARK } else { 0 }
    }

    /// Returns the message number nearest to `near` that has this stamp.
    fn nearest_number_with_stamp(stamp: u64, near: u64) -> u64 {
        let half = Self::LAST_MARK / 2;
        let ahead = stamp.wrapping_sub(near) & (Self::LAST_MARK - 1);
        if ahead < half {
            near + ahead
        } else {
            near.saturating_sub(Self::LAST_MARK - ahead)
        }
    }
}

/// Returns the lower half of a stamp, for the forms that carry 32 bits.
#[inline]
pub(super) fn low_32_bits(stamp: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation)] // truncation is intended; see `Form::nearest`
    {
        stamp as u32
    }
}

/// Mark of the last message in a stamp of 32 bits.
const LAST_MARK_32_BIT: u64 = 1 << 31;

/// Mark of the last message in a stamp of 64 bits.
const LAST_MARK_64_BIT: u64 = 1 << 63;

/// No payload: the stamp is the immediate.
pub(super) struct ImmOnlyPayload;

impl PayloadForm for ImmOnlyPayload {
    type Payload<'f> = HeaderOnly;
    const LAST_MARK: u64 = LAST_MARK_32_BIT;
    const STAMP_IS_IMM: bool = true;

    fn new(_: &OpenNic, _: &WindowLayout) -> Result<ImmOnlyPayload> {
        Ok(ImmOnlyPayload)
    }

    #[inline]
    fn stamped_payload(&mut self, _: usize, _: u64) -> Result<HeaderOnly> {
        Ok(HeaderOnly)
    }

    #[inline]
    fn received_stamps(_: &MemoryRegion, wc: &WorkCompletion<'_>, _: usize) -> Result<[u64; 2]> {
        let imm = wc.imm().context("a message without its number")?;
        Ok([imm.into(); 2])
    }
}

/// Four inline bytes: the stamp alone.
pub(super) struct Inline4ByteStamp([u8; 4]);

impl PayloadForm for Inline4ByteStamp {
    type Payload<'f> = Inline<'f>;
    const LAST_MARK: u64 = LAST_MARK_32_BIT;

    fn new(_: &OpenNic, _: &WindowLayout) -> Result<Inline4ByteStamp> {
        Ok(Inline4ByteStamp([0; 4]))
    }

    #[inline]
    fn stamped_payload(&mut self, _: usize, stamp: u64) -> Result<Inline<'_>> {
        self.0 = low_32_bits(stamp).to_le_bytes();
        Ok(Inline(&self.0))
    }

    #[inline]
    fn received_stamps(
        memory: &MemoryRegion,
        wc: &WorkCompletion<'_>,
        _: usize,
    ) -> Result<[u64; 2]> {
        let word = memory.read_u64(usize::try_from(wc.wr_id())?)?.to_ne_bytes();
        let stamp = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        Ok([stamp.into(); 2])
    }
}

/// Eight inline bytes: the stamp alone.
pub(super) struct Inline8ByteStamp([u8; 8]);

impl PayloadForm for Inline8ByteStamp {
    type Payload<'f> = Inline<'f>;
    const LAST_MARK: u64 = LAST_MARK_64_BIT;

    fn new(_: &OpenNic, _: &WindowLayout) -> Result<Inline8ByteStamp> {
        Ok(Inline8ByteStamp([0; 8]))
    }

    #[inline]
    fn stamped_payload(&mut self, _: usize, stamp: u64) -> Result<Inline<'_>> {
        self.0 = stamp.to_le_bytes();
        Ok(Inline(&self.0))
    }

    #[inline]
    fn received_stamps(
        memory: &MemoryRegion,
        wc: &WorkCompletion<'_>,
        _: usize,
    ) -> Result<[u64; 2]> {
        let stamp = memory.read_u64(usize::try_from(wc.wr_id())?)?;
        Ok([u64::from_le(stamp); 2])
    }
}

/// More than eight inline bytes: the stamp at both ends, and unchecked bytes between them.
pub(super) struct InlineStampedBytes(Vec<u8>);

impl PayloadForm for InlineStampedBytes {
    type Payload<'f> = Inline<'f>;
    const LAST_MARK: u64 = LAST_MARK_64_BIT;

    fn new(_: &OpenNic, layout: &WindowLayout) -> Result<InlineStampedBytes> {
        Ok(InlineStampedBytes(byte_pattern(layout.payload_bytes)))
    }

    #[inline]
    fn stamped_payload(&mut self, _: usize, stamp: u64) -> Result<Inline<'_>> {
        let (stamp, tail) = (stamp.to_le_bytes(), last_word_offset(self.0.len()));
        self.0[..8].copy_from_slice(&stamp);
        self.0[tail..tail + 8].copy_from_slice(&stamp);
        Ok(Inline(&self.0))
    }

    #[inline]
    fn received_stamps(
        memory: &MemoryRegion,
        wc: &WorkCompletion<'_>,
        payload_bytes: usize,
    ) -> Result<[u64; 2]> {
        read_end_stamps(memory, usize::try_from(wc.wr_id())?, payload_bytes)
    }
}

/// Registered memory that the NIC reads, with a place for each slot; the stamp is at both ends.
pub(super) struct InMemoryPayload {
    payload_memory: MemoryRegion,
    slot_slices: Vec<MrSlice>,
    slot_stride_bytes: usize,
    last_word_offset: usize,
}

impl PayloadForm for InMemoryPayload {
    type Payload<'f> = MrSlice;
    const LAST_MARK: u64 = LAST_MARK_64_BIT;
    const NIC_READS_PAYLOAD: bool = true;

    fn new(nic: &OpenNic, layout: &WindowLayout) -> Result<InMemoryPayload> {
        let (stride, payload_bytes) = (layout.slot_stride_bytes(), layout.payload_bytes);
        let source = nic.alloc_registered_memory(
            stride * layout.slot_count,
            Access::LOCAL_READ,
            layout.page_size,
        )?;
        let bytes = byte_pattern(payload_bytes);
        for slot in 0..layout.slot_count {
            source.write_at(slot * stride, &bytes)?;
        }
        let slices = (0..layout.slot_count)
            .map(|slot| source.slice(slot * stride..slot * stride + payload_bytes));
        Ok(InMemoryPayload {
            slot_slices: slices.collect::<Result<_, _>>()?,
            payload_memory: source,
            slot_stride_bytes: stride,
            last_word_offset: last_word_offset(payload_bytes),
        })
    }

    #[inline]
    fn stamped_payload(&mut self, slot: usize, stamp: u64) -> Result<MrSlice> {
        let at = slot * self.slot_stride_bytes;
        self.payload_memory.write_u64(at, stamp.to_le())?;
        self.payload_memory
            .write_u64(at + self.last_word_offset, stamp.to_le())?;
        Ok(self.slot_slices[slot])
    }

    #[inline]
    fn received_stamps(
        memory: &MemoryRegion,
        wc: &WorkCompletion<'_>,
        payload_bytes: usize,
    ) -> Result<[u64; 2]> {
        read_end_stamps(memory, usize::try_from(wc.wr_id())?, payload_bytes)
    }
}

/// Reads the words at both ends of a payload.
#[inline]
pub(super) fn read_end_stamps(
    memory: &MemoryRegion,
    at: usize,
    payload_bytes: usize,
) -> Result<[u64; 2]> {
    let ends = [
        memory.read_u64(at)?,
        memory.read_u64(at + last_word_offset(payload_bytes))?,
    ];
    Ok(ends.map(u64::from_le))
}

/// Evaluates an expression with `$form` being the form of SENDs with this payload.
macro_rules! with_form {
    ($payload_bytes:expr, $inline:expr, $form:ident => $body:expr) => {
        match $payload_bytes {
            0 => {
                type $form = $crate::micro::payload_form::ImmOnlyPayload;
                $body
            }
            $crate::micro::verb::IMM_SIZED_PAYLOAD_BYTES => {
                type $form = $crate::micro::payload_form::Inline4ByteStamp;
                $body
            }
            _ => $crate::micro::payload_form::with_write_form!($payload_bytes, $inline, $form => $body),
        }
    };
}

/// Evaluates an expression with `$form` being the form of WRITEs with this payload.
macro_rules! with_write_form {
    ($payload_bytes:expr, $inline:expr, $form:ident => $body:expr) => {
        match ($payload_bytes, $inline) {
            (8, true) => {
                type $form = $crate::micro::payload_form::Inline8ByteStamp;
                $body
            }
            (_, true) => {
                type $form = $crate::micro::payload_form::InlineStampedBytes;
                $body
            }
            _ => {
                type $form = $crate::micro::payload_form::InMemoryPayload;
                $body
            }
        }
    };
}

pub(super) use {with_form, with_write_form};

#[cfg(test)]
mod tests {
    use super::*;

    fn check_form<F: PayloadForm>() {
        for near in [
            0u64,
            5,
            0x7fff_fff0,
            0x8000_0000,
            0xffff_fff0,
            0x5_8000_0000,
        ] {
            for ahead in [-3i64, 0, 1, 500] {
                if let Some(number) = near.checked_add_signed(ahead) {
                    let stamp = F::make_stamp(number, false);
                    assert_eq!(
                        F::nearest_number_with_stamp(stamp, near),
                        number,
                        "{near} {ahead}"
                    );
                    assert_eq!(F::make_stamp(number, true) & !F::LAST_MARK, stamp);
                }
            }
        }
    }

    #[test]
    fn numbers_survive_their_stamps() {
        check_form::<ImmOnlyPayload>();
        check_form::<Inline4ByteStamp>();
        check_form::<Inline8ByteStamp>();
        check_form::<InMemoryPayload>();
    }
}
