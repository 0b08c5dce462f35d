//! The C layouts of this crate as tables, for comparison with the installed headers.
//!
//! The macros that declare the types and constants also fill the tables.

pub use crate::tables::{consts, types};

/// The layout of a struct or union.
#[derive(Clone, Copy, Debug)]
pub struct TypeLayout {
    /// The Rust name.
    pub name: &'static str,
    /// The C type name; for an anonymous union, the type name of the surrounding struct.
    pub c_type: &'static str,
    /// The first member of an anonymous union; `None` for other types.
    pub anonymous: Option<&'static str>,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// The fields of the type, in order.
    pub fields: &'static [FieldLayout],
}

/// The layout of a field of a [`TypeLayout`].
#[derive(Clone, Copy, Debug)]
pub struct FieldLayout {
    /// The C name of the field, with the prefix `r#` if it is a Rust keyword.
    pub c_name: &'static str,
    /// True if the field is an anonymous union in C; `c_name` then names its first member, for the
    /// offset.
    pub anonymous: bool,
    /// Offset in bytes from the start of the type.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// The name and the value of a constant.
#[derive(Clone, Copy, Debug)]
pub struct ConstantValue {
    /// The constant's name.
    pub name: &'static str,
    /// The constant's value.
    pub value: i128,
}
