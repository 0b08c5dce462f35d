//! The tables of all modules of the ABI, concatenated.

use crate::layout::{ConstantValue, TypeLayout};
use crate::{CONSTS, TYPES};

/// Returns every struct and union of the crate that a public C header declares.
pub fn types() -> impl Iterator<Item = &'static TypeLayout> {
    TYPES.iter().copied().flatten()
}

/// Returns every integer constant of the crate.
pub fn consts() -> impl Iterator<Item = &'static ConstantValue> {
    CONSTS.iter().copied().flatten()
}
