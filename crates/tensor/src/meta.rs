//! Metadata of a tensor: the type of its elements, and its shape.

use std::fmt;

/// The most dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 16;
/// The most bytes of a tensor: 64 GiB.
pub const TENSOR_BYTES_MAX: u64 = 64 << 30;

/// The type of an element, as DLPack has it (`DLDataType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType {
    /// `DLDataTypeCode`: 0 signed integer, 1 unsigned integer, 2 IEEE floating point, 4 bfloat16, 5 complex, 6 Boolean.
    pub dlpack_type_code: u8,
    /// Bits of one lane.
    pub bits_per_lane: u8,
    /// Lanes of a vector type; 1 for scalars.
    pub lanes: u16,
}

impl DType {
    /// One byte without a sign.
    pub const U8: Self = Self::scalar(1, 8);
    /// A 32-bit IEEE floating-point number.
    pub const F32: Self = Self::scalar(2, 32);

    /// A scalar type.
    pub const fn scalar(code: u8, bits: u8) -> Self {
        Self {
            dlpack_type_code: code,
            bits_per_lane: bits,
            lanes: 1,
        }
    }

    /// Bytes of an element; those of a last incomplete byte count.
    pub fn element_bytes(self) -> u64 {
        (u64::from(self.bits_per_lane) * u64::from(self.lanes)).div_ceil(8)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dlpack_type_code {
            0 => write!(f, "int{}", self.bits_per_lane)?,
            1 => write!(f, "uint{}", self.bits_per_lane)?,
            2 => write!(f, "float{}", self.bits_per_lane)?,
            4 => write!(f, "bfloat{}", self.bits_per_lane)?,
            5 => write!(f, "complex{}", self.bits_per_lane)?,
            6 => f.write_str("bool")?,
            code => write!(f, "type {code} of {} bits", self.bits_per_lane)?,
        }
        if self.lanes == 1 {
            return Ok(());
        }
        write!(f, "x{}", self.lanes)
    }
}

/// The element type and the shape of a tensor that is contiguous in C order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorMeta {
    dtype: DType,
    shape: Vec<u64>,
    total_bytes: u64,
}

/// Why there is no such tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// The tensor has too many dimensions.
    #[error("{0} dimensions: a tensor has at most {DIMENSIONS_MAX}")]
    TooManyDimensions(usize),
    /// The tensor has too many bytes.
    #[error("a tensor has at most {TENSOR_BYTES_MAX} bytes")]
    TooManyBytes,
    /// The elements of the tensor have no size.
    #[error("the element type has no size")]
    ZeroSizedElement,
}

impl TensorMeta {
    /// A tensor of this element type and shape. A shape without dimensions is a scalar.
    ///
    /// # Errors
    /// Too many dimensions, more than [`TENSOR_BYTES_MAX`] bytes, or elements without size.
    pub fn new(dtype: DType, shape: Vec<u64>) -> Result<Self, MetaError> {
        if shape.len() > DIMENSIONS_MAX {
            return Err(MetaError::TooManyDimensions(shape.len()));
        }
        if dtype.element_bytes() == 0 {
            return Err(MetaError::ZeroSizedElement);
        }
        // A shape with a 0 in it is empty, however large its other dimensions are.
        let empty = shape.contains(&0);
        let product = shape
            .iter()
            .try_fold(dtype.element_bytes(), |n, &d| n.checked_mul(d));
        let bytes = if empty { Some(0) } else { product };
        let bytes = bytes.filter(|&n| n <= TENSOR_BYTES_MAX);
        Ok(Self {
            dtype,
            shape,
            total_bytes: bytes.ok_or(MetaError::TooManyBytes)?,
        })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions, the slowest first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Bytes of the whole tensor.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }
}

impl fmt::Display for TensorMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_shape() {
        let bytes =
            |shape: &[u64]| TensorMeta::new(DType::F32, shape.to_vec()).map(|m| m.total_bytes());
        assert_eq!(bytes(&[]), Ok(4));
        assert_eq!(bytes(&[3, 5]), Ok(60));
        assert_eq!(bytes(&[u64::MAX, 0]), Ok(0));
        assert_eq!(bytes(&[u64::MAX, 2]), Err(MetaError::TooManyBytes));
        assert_eq!(bytes(&[1; 17]), Err(MetaError::TooManyDimensions(17)));
        let nothing = DType::scalar(2, 0);
        assert_eq!(
            TensorMeta::new(nothing, vec![1]),
            Err(MetaError::ZeroSizedElement)
        );
        assert_eq!(DType::scalar(0, 4).element_bytes(), 1);
    }
}
