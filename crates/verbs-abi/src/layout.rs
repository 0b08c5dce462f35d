//! This crate's claims about the C layout, for comparison with the installed headers.
//!
//! The tables are filled by the same macros that declare the types and constants.

pub use crate::tables::{consts, types};

/// A struct or union.
#[derive(Clone, Copy, Debug)]
pub struct Type {
    /// Its name in Rust.
    pub name: &'static str,
    /// A C type-name for it; for an anonymous union, of the struct around it.
    pub c_type: &'static str,
    /// For an anonymous union: the first of its members.
    pub anonymous: Option<&'static str>,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Its fields, in order.
    pub fields: &'static [Field],
}

/// A field of a [`Type`].
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in C, or with `r#` in front where Rust needs that.
    pub c_name: &'static str,
    /// Whether it is an anonymous union in C, so that `c_name` only says where it lies.
    pub anonymous: bool,
    /// Offset in bytes from the start of the type.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// A constant.
#[derive(Clone, Copy, Debug)]
pub struct Const {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: i128,
}
