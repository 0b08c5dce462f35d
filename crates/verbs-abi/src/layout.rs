//! This crate's C layouts as tables, for comparison with the installed headers.
//!
//! The macros that declare the types and constants also fill the tables.

pub use crate::tables::{consts, types};

/// A struct or union.
#[derive(Clone, Copy, Debug)]
pub struct Type {
    /// The Rust name.
    pub name: &'static str,
    /// The C type name; for an anonymous union, that of the surrounding struct.
    pub c_type: &'static str,
    /// For an anonymous union: its first member.
    pub anonymous: Option<&'static str>,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// The fields, in order.
    pub fields: &'static [Field],
}

/// A field of a [`Type`].
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The C name, with `r#` in front if Rust needs that.
    pub c_name: &'static str,
    /// True for an anonymous union in C; `c_name` then names its first member, for the offset.
    pub anonymous: bool,
    /// Offset in bytes from the start of the type.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// A constant.
#[derive(Clone, Copy, Debug)]
pub struct Const {
    /// The constant's name.
    pub name: &'static str,
    /// The constant's value.
    pub value: i128,
}
