//! Reductions of numbers of 16 bits: in single precision, rounded after each one.

use half::prelude::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

/// Elements that are widened at a time: processors convert several at once.
const CHUNK_ELEMENTS: usize = 256;

/// Numbers of 16 bits that are computed with in single precision. That has more than twice their significant bits, so
/// to round a sum or product twice is to round it once (Figueroa, 1995).
pub(super) trait HalfPrecision {
    /// The numbers with these bits.
    fn widen(bits: &[u16], into: &mut [f32]);
    /// The nearest numbers, ties to even.
    fn narrow(from: &[f32], bits: &mut [u16]);
}

impl HalfPrecision for f16 {
    fn widen(bits: &[u16], into: &mut [f32]) {
        bits.reinterpret_cast::<Self>().convert_to_f32_slice(into);
    }

    fn narrow(from: &[f32], bits: &mut [u16]) {
        bits.reinterpret_cast_mut::<Self>()
            .convert_from_f32_slice(from);
    }
}

impl HalfPrecision for bf16 {
    fn widen(bits: &[u16], into: &mut [f32]) {
        bits.reinterpret_cast::<Self>().convert_to_f32_slice(into);
    }

    fn narrow(from: &[f32], bits: &mut [u16]) {
        bits.reinterpret_cast_mut::<Self>()
            .convert_from_f32_slice(from);
    }
}

/// Reduces elements of 16 bits in single precision and rounds each result: `ours = ours op theirs`.
pub(super) fn reduce_in_f32<H: HalfPrecision>(
    ours: &mut [u8],
    theirs: &[u8],
    op: impl Fn(f32, f32) -> f32,
) {
    let (ours, _) = ours.as_chunks_mut::<2>();
    let (theirs, _) = theirs.as_chunks::<2>();
    let mut bits = [0; CHUNK_ELEMENTS];
    let (mut a, mut b) = ([0.0; CHUNK_ELEMENTS], [0.0; CHUNK_ELEMENTS]);
    let mut load = |from: &[[u8; 2]], into: &mut [f32]| {
        let bits = &mut bits[..from.len()];
        for (bits, bytes) in bits.iter_mut().zip(from) {
            *bits = u16::from_ne_bytes(*bytes);
        }
        H::widen(bits, into);
    };
    let mut result = [0; CHUNK_ELEMENTS];
    for (ours, theirs) in ours
        .chunks_mut(CHUNK_ELEMENTS)
        .zip(theirs.chunks(CHUNK_ELEMENTS))
    {
        let len = ours.len().min(theirs.len());
        let (ours, a, b) = (&mut ours[..len], &mut a[..len], &mut b[..len]);
        load(ours, a);
        load(&theirs[..len], b);
        for (a, b) in a.iter_mut().zip(&*b) {
            *a = op(*a, *b);
        }
        H::narrow(a, &mut result[..len]);
        for (ours, bits) in ours.iter_mut().zip(&result) {
            *ours = bits.to_ne_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{DataType, Reduction, reduce_bytes};

    #[test]
    fn each_result_is_the_nearest_number() {
        let cases = [
            // A tie goes to the even neighbour; more than a tie goes up.
            (DataType::F16, Reduction::Sum, 2048.0, 1.0, 2048.0),
            (DataType::F16, Reduction::Sum, 2050.0, 1.0, 2052.0),
            (DataType::F16, Reduction::Sum, 2048.0, 1.5, 2050.0),
            (DataType::Bf16, Reduction::Sum, 256.0, 1.0, 256.0),
            (DataType::Bf16, Reduction::Sum, 258.0, 1.0, 260.0),
            (
                DataType::F16,
                Reduction::Sum,
                65504.0,
                65504.0,
                f32::INFINITY,
            ),
            (
                DataType::F16,
                Reduction::Prod,
                0.00048828125,
                0.00048828125,
                2.384_185_8e-7,
            ),
            (DataType::Bf16, Reduction::Min, -3.0, 2.0, -3.0),
            (DataType::Bf16, Reduction::Max, -3.0, 2.0, 2.0),
        ];
        for (data, op, ours, theirs, expected) in cases {
            let bytes = |value: f32| match data {
                DataType::F16 => f16::from_f32(value).to_ne_bytes(),
                _ => bf16::from_f32(value).to_ne_bytes(),
            };
            // More than are converted at once, and no multiple.
            for count in [1, 7, CHUNK_ELEMENTS + 3] {
                let mut all = bytes(ours).repeat(count);
                reduce_bytes(&mut all, &bytes(theirs).repeat(count), data, op);
                assert_eq!(
                    all,
                    bytes(expected).repeat(count),
                    "{ours} {op:?} {theirs} of {data:?}"
                );
            }
        }
    }
}
