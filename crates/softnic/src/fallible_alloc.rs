//! Memory whose size the program chooses.

/// Returns `len` copies of `value`, or `None` if there is no memory for them.
pub(crate) fn try_boxed_slice<T: Clone>(value: T, len: usize) -> Option<Box<[T]>> {
    let mut all = Vec::new();
    all.try_reserve_exact(len).ok()?;
    all.resize(len, value);
    Some(all.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_none() {
        assert_eq!(try_boxed_slice(7u8, 3).as_deref(), Some(&[7; 3][..]));
        assert!(try_boxed_slice(0u64, usize::MAX / 8).is_none());
    }
}
