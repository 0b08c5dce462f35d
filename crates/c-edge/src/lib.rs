//! The edge to C: what a program passes becomes safe values, and what a function returns becomes errno, NULL or -1.
//!
//! The functions of a library are safe. [`c_functions!`] makes the C function of each, and converts every argument by
//! its type with [`Arg`] and the result with [`Ret`]. So what the C ABI leaves to the caller's word is believed there
//! and nowhere else:
//!
//! - A handle is a raw pointer that nobody follows, or a type of the library that follows it.
//! - Other pointers are [`In`], [`InConst`], [`InOut`] or [`Out`]. Each may be NULL, which the function has to ask about.
//! - Numbers are numbers.
//!
//! A result of [`Errno`]s fails as system calls do, with -1; one of numbers returns the number of the error.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

/// A parameter of a function, made of what C passed.
pub trait Arg {
    /// What C passes.
    type C;

    /// # Safety
    /// The man page's conditions for this argument hold until the function returns. A pointer is NULL or leads to an
    /// aligned place of its type. That place can be read (for [`Out`]: written; for [`InOut`]: both), and no other
    /// thread changes it meanwhile.
    unsafe fn from_c(c: Self::C) -> Self;

    /// The address of a handle, for a plan of faults; 0 of anything else.
    #[inline(always)]
    fn handle_address(_c: &Self::C) -> usize {
        0
    }
}

/// The result of a function, as C gets it.
pub trait Ret {
    /// What C gets.
    type C;

    /// The value that the program gets; sets errno where that is part of the result.
    fn into_c(self) -> Self::C;

    /// A call that is refused with `errno`; `None` where its result can say nothing of the kind.
    fn refused_with_errno(_errno: c_int) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// The errno of a call that failed; `None` where it succeeded, or where its result can say nothing of the kind.
    #[inline(always)]
    fn errno_if_failed(&self) -> Option<c_int> {
        None
    }
}

/// Types that C passes or gets without a conversion.
macro_rules! identity_types {
    ($($type:ty),+) => {$(
        impl Arg for $type {
            type C = Self;
            #[inline(always)]
            unsafe fn from_c(c: Self) -> Self {
                c
            }
        }
        impl Ret for $type {
            type C = Self;
            #[inline(always)]
            fn into_c(self) -> Self {
                self
            }
        }
    )+};
}

identity_types!((), u8, u16, u32, u64, usize, isize, c_int, i64);

/// A handle, or an address that the function only passes on.
impl<T> Arg for *mut T {
    type C = Self;
    #[inline(always)]
    unsafe fn from_c(c: Self) -> Self {
        c
    }
    fn handle_address(c: &Self) -> usize {
        c.addr()
    }
}

/// What the function reads.
#[derive(Debug)]
pub struct In<'a, T>(Option<&'a T>);

/// The same where the C function has `const`.
#[derive(Debug)]
pub struct InConst<'a, T>(Option<&'a T>);

/// An argument that the function reads and changes.
#[derive(Debug)]
pub struct InOut<'a, T>(Option<&'a mut T>);

/// A place for a result.
#[derive(Debug)]
pub struct Out<'a, T>(Option<&'a mut MaybeUninit<T>>);

impl<T> Arg for In<'_, T> {
    type C = *mut T;
    #[inline(always)]
    unsafe fn from_c(c: *mut T) -> Self {
        // SAFETY: NULL or readable until the function returns, which bounds the lifetime (contract of `from_c`).
        Self(unsafe { c.as_ref() })
    }
}

impl<T> Arg for InConst<'_, T> {
    type C = *const T;
    #[inline(always)]
    unsafe fn from_c(c: *const T) -> Self {
        // SAFETY: as in `In::from_c`.
        Self(unsafe { c.as_ref() })
    }
}

impl<T> Arg for InOut<'_, T> {
    type C = *mut T;
    #[inline(always)]
    unsafe fn from_c(c: *mut T) -> Self {
        // SAFETY: NULL, or readable, writable and left alone by others until the function returns (contract of
        // `from_c`).
        Self(unsafe { c.as_mut() })
    }
}

impl<T> Arg for Out<'_, T> {
    type C = *mut T;
    #[inline(always)]
    unsafe fn from_c(c: *mut T) -> Self {
        // SAFETY: NULL, or writable and left alone by others until the function returns (contract of `from_c`); of
        // `MaybeUninit` any bytes are a value.
        Self(unsafe { c.cast::<MaybeUninit<T>>().as_mut() })
    }
}

impl<'a, T> In<'a, T> {
    /// What C passed.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    #[inline]
    pub fn get(self) -> Result<&'a T, c_int> {
        self.0.ok_or(libc::EINVAL)
    }

    /// The argument that C passed; `None` for NULL.
    #[inline]
    #[must_use]
    pub fn optional(self) -> Option<&'a T> {
        self.0
    }
}

impl<'a, T> InConst<'a, T> {
    /// What C passed.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    #[inline]
    pub fn get(self) -> Result<&'a T, c_int> {
        self.0.ok_or(libc::EINVAL)
    }

    /// The argument that C passed; `None` for NULL.
    #[inline]
    #[must_use]
    pub fn optional(self) -> Option<&'a T> {
        self.0
    }
}

impl<'a, T> InOut<'a, T> {
    /// The argument that C passed; `None` for NULL.
    #[inline]
    #[must_use]
    pub fn optional(self) -> Option<&'a mut T> {
        self.0
    }

    /// What C passed.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    #[inline]
    pub fn get(self) -> Result<&'a mut T, c_int> {
        self.0.ok_or(libc::EINVAL)
    }
}

impl<'a, T> Out<'a, T> {
    /// What C passed.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    #[inline]
    pub fn get(self) -> Result<&'a mut MaybeUninit<T>, c_int> {
        self.0.ok_or(libc::EINVAL)
    }

    /// Writes the result, where the program wants it.
    #[inline]
    pub fn put(self, value: T) {
        if let Some(place) = self.0 {
            place.write(value);
        }
    }
}

impl<T> Arg for *const T {
    type C = Self;
    #[inline(always)]
    unsafe fn from_c(c: Self) -> Self {
        c
    }
}

/// An array of C's, which may be NULL when it is empty.
///
/// # Safety
/// If neither `first` is NULL nor `len` 0, then `len` values lie there, which can be read as long as the result is
/// used.
#[inline(always)]
pub unsafe fn slice_from_c<'a, T>(first: *const T, len: usize) -> &'a [T] {
    if first.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: not NULL and not empty (above), so there are `len` values (contract of this function).
    unsafe { std::slice::from_raw_parts(first, len) }
}

/// Sets errno.
#[inline]
pub fn set_errno(errno: c_int) {
    // SAFETY: glibc gives the address of this thread's errno, which lives as long as the thread.
    unsafe { *libc::__errno_location() = errno };
}

/// 0, or an errno.
impl Ret for Result<(), c_int> {
    type C = c_int;
    fn errno_if_failed(&self) -> Option<c_int> {
        self.err()
    }
    #[inline(always)]
    fn into_c(self) -> c_int {
        self.err().unwrap_or(0)
    }
    fn refused_with_errno(errno: c_int) -> Option<Self> {
        Some(Err(errno))
    }
}

/// A pointer, or NULL with errno.
impl<T> Ret for Result<*mut T, c_int> {
    type C = *mut T;
    fn errno_if_failed(&self) -> Option<c_int> {
        self.err()
    }
    #[inline(always)]
    fn into_c(self) -> *mut T {
        self.unwrap_or_else(|errno| {
            set_errno(errno);
            std::ptr::null_mut()
        })
    }
    fn refused_with_errno(errno: c_int) -> Option<Self> {
        Some(Err(errno))
    }
}

/// A number, or -1 with errno.
#[derive(Debug)]
pub struct OrMinusOne(pub Result<c_int, c_int>);

impl Ret for OrMinusOne {
    type C = c_int;
    fn errno_if_failed(&self) -> Option<c_int> {
        self.0.err()
    }
    fn into_c(self) -> c_int {
        self.0.unwrap_or_else(|errno| {
            set_errno(errno);
            -1
        })
    }
    fn refused_with_errno(errno: c_int) -> Option<Self> {
        Some(Self(Err(errno)))
    }
}

/// An errno. A function whose result is one of these fails as system calls do: it returns -1, and sets errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl From<c_int> for Errno {
    fn from(errno: c_int) -> Self {
        Self(errno)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(e: rustix::io::Errno) -> Self {
        Self(e.raw_os_error())
    }
}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Self {
        Self(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl Errno {
    /// It says nothing of what was asked for, only that there are no more descriptors or no more memory.
    #[must_use]
    pub fn is_resource_shortage(self) -> bool {
        matches!(self.0, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
    }
}

/// The value that stands for a failure: -1, as the type has it.
macro_rules! or_minus_one {
    ($($value:ty => $c:ty),+ $(,)?) => {$(
        /// The value, or -1 with errno.
        impl Ret for Result<$value, Errno> {
            type C = $c;
            fn into_c(self) -> $c {
                match self {
                    Ok(value) => <$c>::try_from(value).unwrap_or(<$c>::MAX),
                    Err(Errno(errno)) => {
                        set_errno(errno);
                        -1
                    }
                }
            }
            fn refused_with_errno(errno: c_int) -> Option<Self> {
                Some(Err(Errno(errno)))
            }
        }
    )+};
}

or_minus_one!(c_int => c_int, usize => libc::ssize_t, u64 => libc::off_t);

/// 0, or -1 with errno.
impl Ret for Result<(), Errno> {
    type C = c_int;
    fn into_c(self) -> c_int {
        self.map(|()| 0).into_c()
    }
    fn refused_with_errno(errno: c_int) -> Option<Self> {
        Some(Err(Errno(errno)))
    }
}

/// A pointer, or NULL with errno.
impl<T> Ret for Result<*mut T, Errno> {
    type C = *mut T;
    fn into_c(self) -> *mut T {
        self.map_err(|Errno(errno)| errno).into_c()
    }
    fn refused_with_errno(errno: c_int) -> Option<Self> {
        Some(Err(Errno(errno)))
    }
}

/// A text.
impl Ret for *const c_char {
    type C = Self;
    fn into_c(self) -> Self {
        self
    }
}

/// A pointer without an errno.
impl<T> Ret for *mut T {
    type C = Self;
    fn into_c(self) -> Self {
        self
    }
}

/// The C functions of safe functions: `name => function, (arguments) -> result;`.
#[macro_export]
macro_rules! c_functions {
    ($($(#[$meta:meta])* $vis:vis $name:ident => $verb:path, ($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        $(#[$meta])*
        #[allow(unsafe_code)]
        $vis unsafe extern "C" fn $name(
            $($arg: <$type as $crate::Arg>::C),*
        ) -> <$ret as $crate::Ret>::C {
            let result: $ret = $verb($({
                // SAFETY: the caller keeps to the man page of the function, which is all that `from_c` asks for.
                unsafe { <$type as $crate::Arg>::from_c($arg) }
            }),*);
            $crate::Ret::into_c(result)
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halve(number: In<'_, c_int>, half: Out<'_, c_int>) -> Result<(), Errno> {
        let number = number.get()?;
        if number % 2 != 0 {
            return Err(Errno(libc::EDOM));
        }
        half.put(number / 2);
        Ok(())
    }

    fn number_of_error(number: In<'_, c_int>) -> Result<(), c_int> {
        number.get().map(drop)
    }

    c_functions! {
        c_half => halve, (number: In<'_, c_int>, half: Out<'_, c_int>) -> Result<(), Errno>;
        c_number_of_error => number_of_error, (number: In<'_, c_int>) -> Result<(), c_int>;
    }

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }

    #[test]
    fn results_are_what_c_expects_of_them() {
        let (mut even, mut odd, mut to) = (8, 7, 0);
        let null = std::ptr::null_mut();
        // SAFETY: NULL, or places of the right type.
        unsafe {
            assert_eq!(c_half(&raw mut even, &raw mut to), 0);
            assert_eq!(to, 4);
            assert_eq!(c_half(&raw mut even, null), 0);
            assert_eq!(
                (c_half(&raw mut odd, &raw mut to), errno()),
                (-1, libc::EDOM)
            );
            assert_eq!((c_half(null, &raw mut to), errno()), (-1, libc::EINVAL));
            assert_eq!(c_number_of_error(null), libc::EINVAL);
        }
        assert_eq!(Ok::<usize, Errno>(usize::MAX).into_c(), isize::MAX);
        assert_eq!(
            (Err::<u64, _>(Errno(libc::EPERM)).into_c(), errno()),
            (-1, libc::EPERM)
        );
        let refused: Option<Result<*mut u8, Errno>> = Ret::refused_with_errno(libc::ENOMEM);
        assert!(refused.is_some_and(|refused| refused.into_c().is_null()));
        assert_eq!(errno(), libc::ENOMEM);
    }
}
