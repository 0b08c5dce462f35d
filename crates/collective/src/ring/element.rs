//! The element types and the reductions of collectives.

use half::{bf16, f16};
use verbs::MemoryRegion;

use super::half_precision::{self, HalfPrecision};
use crate::error::Error;

/// The type of a buffer's elements, in the machine's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// IEEE 754 half precision. Each result is rounded.
    F16,
    /// bfloat16: the upper half of single precision. Each result is rounded.
    Bf16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// 8-bit unsigned integer.
    U8,
}

impl DataType {
    /// All of them, with the names that commands take.
    pub const ALL_WITH_NAMES: [(&str, Self); 7] = [
        ("f32", Self::F32),
        ("f64", Self::F64),
        ("f16", Self::F16),
        ("bf16", Self::Bf16),
        ("i32", Self::I32),
        ("i64", Self::I64),
        ("u8", Self::U8),
    ];

    /// Bytes of an element.
    pub fn element_bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }
}

/// How elements are reduced. Integers wrap around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The least.
    Min,
    /// The greatest.
    Max,
}

impl Reduction {
    /// All of them, with the names that commands take.
    pub const ALL_WITH_NAMES: [(&str, Self); 4] = [
        ("sum", Self::Sum),
        ("prod", Self::Prod),
        ("min", Self::Min),
        ("max", Self::Max),
    ];
}

/// Bytes that are reduced at a time: in copies on the stack, since peers may write to registered memory.
const STACK_COPY_BYTES: usize = 4096;

/// Reduces bytes of one region into another: `into[at..] = into[at..] op from[from_at..]`.
///
/// # Errors
/// The bytes are not inside.
pub(super) fn reduce_regions(
    (from, from_at): (&MemoryRegion, usize),
    (into, at): (&MemoryRegion, usize),
    bytes: usize,
    data: DataType,
    op: Reduction,
) -> Result<(), Error> {
    let (mut ours, mut theirs) = ([0; STACK_COPY_BYTES], [0; STACK_COPY_BYTES]);
    let mut done = 0;
    while done < bytes {
        let len = STACK_COPY_BYTES.min(bytes - done);
        into.read_at(at + done, &mut ours[..len])?;
        from.read_at(from_at + done, &mut theirs[..len])?;
        reduce_bytes(&mut ours[..len], &theirs[..len], data, op);
        into.write_at(at + done, &ours[..len])?;
        done += len;
    }
    Ok(())
}

/// Reduces elements into others: `ours = ours op theirs`. Bytes that are no whole element stay as they are.
pub(crate) fn reduce_bytes(ours: &mut [u8], theirs: &[u8], data: DataType, op: Reduction) {
    match data {
        DataType::F32 => reduce_elements::<f32, 4>(ours, theirs, op),
        DataType::F64 => reduce_elements::<f64, 8>(ours, theirs, op),
        DataType::F16 => reduce_half_precision::<f16>(ours, theirs, op),
        DataType::Bf16 => reduce_half_precision::<bf16>(ours, theirs, op),
        DataType::I32 => reduce_elements::<i32, 4>(ours, theirs, op),
        DataType::I64 => reduce_elements::<i64, 8>(ours, theirs, op),
        DataType::U8 => reduce_elements::<u8, 1>(ours, theirs, op),
    }
}

/// An element of `N` bytes.
trait Element<const N: usize>: Copy {
    fn load(bytes: [u8; N]) -> Self;
    fn store(self) -> [u8; N];
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
}

macro_rules! elements {
    ($($kind:ident $bytes:literal $sum:expr, $prod:expr;)*) => {
        $(impl Element<$bytes> for $kind {
            fn load(bytes: [u8; $bytes]) -> Self { Self::from_ne_bytes(bytes) }
            fn store(self) -> [u8; $bytes] { self.to_ne_bytes() }
            fn sum(self, other: Self) -> Self { $sum(self, other) }
            fn prod(self, other: Self) -> Self { $prod(self, other) }
            fn least(self, other: Self) -> Self { self.min(other) }
            fn greatest(self, other: Self) -> Self { self.max(other) }
        })*
    };
}

elements! {
    f32 4 std::ops::Add::add, std::ops::Mul::mul;
    f64 8 std::ops::Add::add, std::ops::Mul::mul;
    i32 4 i32::wrapping_add, i32::wrapping_mul;
    i64 8 i64::wrapping_add, i64::wrapping_mul;
    u8 1 u8::wrapping_add, u8::wrapping_mul;
}

fn reduce_elements<T: Element<N>, const N: usize>(ours: &mut [u8], theirs: &[u8], op: Reduction) {
    match op {
        Reduction::Sum => for_each_element::<T, N>(ours, theirs, T::sum),
        Reduction::Prod => for_each_element::<T, N>(ours, theirs, T::prod),
        Reduction::Min => for_each_element::<T, N>(ours, theirs, T::least),
        Reduction::Max => for_each_element::<T, N>(ours, theirs, T::greatest),
    }
}

fn reduce_half_precision<H: HalfPrecision>(ours: &mut [u8], theirs: &[u8], op: Reduction) {
    match op {
        Reduction::Sum => half_precision::reduce_in_f32::<H>(ours, theirs, f32::sum),
        Reduction::Prod => half_precision::reduce_in_f32::<H>(ours, theirs, f32::prod),
        Reduction::Min => half_precision::reduce_in_f32::<H>(ours, theirs, f32::least),
        Reduction::Max => half_precision::reduce_in_f32::<H>(ours, theirs, f32::greatest),
    }
}

#[inline]
fn for_each_element<T: Element<N>, const N: usize>(
    ours: &mut [u8],
    theirs: &[u8],
    op: impl Fn(T, T) -> T + Copy,
) {
    let (ours, _) = ours.as_chunks_mut::<N>();
    let (theirs, _) = theirs.as_chunks::<N>();
    for (ours, theirs) in ours.iter_mut().zip(theirs) {
        *ours = op(T::load(*ours), T::load(*theirs)).store();
    }
}
