//! The edge to C: what a program passes becomes safe values, and what a verb returns becomes errno, NULL or -1.
//!
//! The verbs are safe functions. [`c_functions!`] makes the C function of each, and converts every argument by its type
//! with [`Arg`] and the result with [`Ret`]. So what the C ABI leaves to the caller's word is believed here and nowhere
//! else:
//!
//! - A handle stays a raw pointer that nobody follows: [`live`](crate::live) looks it up.
//! - Other pointers are [`In`], [`InConst`], [`InOut`] or [`Out`]. Each may be NULL, which the verb has to ask about.
//! - Numbers are numbers.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

use verbs_abi::ibv_grh;

/// A parameter of a verb, made of what C passed.
pub(super) trait Arg {
    /// What C passes.
    type C;

    /// # Safety
    /// What the man page of the verb says of this argument holds until the verb returns: a pointer is NULL or leads to an
    /// aligned place of its type, which can be read (for [`Out`]: written; for [`InOut`]: both) and which no other thread
    /// changes meanwhile.
    unsafe fn from_c(c: Self::C) -> Self;

    /// The address of a handle, for a plan of faults; 0 of anything else.
    fn address(_c: &Self::C) -> usize {
        0
    }
}

/// The result of a verb, as C gets it.
pub(super) trait Ret {
    /// What C gets.
    type C;

    fn into_c(self) -> Self::C;

    /// A verb that is refused with `errno`; `None` where its result can say nothing of the kind.
    fn refused(_errno: c_int) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

/// What C passes or gets as it is.
macro_rules! as_it_is {
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

as_it_is!((), u8, u16, u32, u64, usize, isize, c_int);

/// A handle, or an address that the verb only passes on.
impl<T> Arg for *mut T {
    type C = Self;
    #[inline(always)]
    unsafe fn from_c(c: Self) -> Self {
        c
    }
    fn address(c: &Self) -> usize {
        c.addr()
    }
}

/// Attributes that the verb reads.
pub(super) struct In<'a, T>(Option<&'a T>);

/// The same where the C function has `const`.
pub(super) struct InConst<'a, T>(Option<&'a T>);

/// Attributes that the verb reads and changes.
pub(super) struct InOut<'a, T>(Option<&'a mut T>);

/// A place for a result.
pub(super) struct Out<'a, T>(Option<&'a mut MaybeUninit<T>>);

impl<T> Arg for In<'_, T> {
    type C = *mut T;
    #[inline(always)]
    unsafe fn from_c(c: *mut T) -> Self {
        // SAFETY: NULL or readable until the verb returns, which bounds the lifetime (contract of `from_c`).
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
        // SAFETY: NULL, or readable, writable and left alone by others until the verb returns (contract of `from_c`).
        Self(unsafe { c.as_mut() })
    }
}

impl<T> Arg for Out<'_, T> {
    type C = *mut T;
    #[inline(always)]
    unsafe fn from_c(c: *mut T) -> Self {
        // SAFETY: NULL, or writable and left alone by others until the verb returns (contract of `from_c`); of
        // `MaybeUninit` any bytes are a value.
        Self(unsafe { c.cast::<MaybeUninit<T>>().as_mut() })
    }
}

/// The 40 bytes in front of a UD payload, which lie anywhere; zeroes for NULL.
pub(super) struct Grh(pub(super) [u8; 40]);

impl Arg for Grh {
    type C = *mut ibv_grh;
    unsafe fn from_c(c: *mut ibv_grh) -> Self {
        if c.is_null() {
            return Self([0; 40]);
        }
        // SAFETY: not NULL (above), so 40 readable bytes (contract of `from_c`); read without regard to alignment.
        Self(unsafe { c.cast::<[u8; 40]>().read_unaligned() })
    }
}

impl<'a, T> In<'a, T> {
    /// `EINVAL` for NULL.
    pub(super) fn get(self) -> Result<&'a T, c_int> {
        self.0.ok_or(libc::EINVAL)
    }

    pub(super) fn optional(self) -> Option<&'a T> {
        self.0
    }
}

impl<'a, T> InConst<'a, T> {
    pub(super) fn optional(self) -> Option<&'a T> {
        self.0
    }
}

impl<'a, T> InOut<'a, T> {
    /// `EINVAL` for NULL.
    pub(super) fn get(self) -> Result<&'a mut T, c_int> {
        self.0.ok_or(libc::EINVAL)
    }
}

impl<'a, T> Out<'a, T> {
    /// `EINVAL` for NULL.
    pub(super) fn get(self) -> Result<&'a mut MaybeUninit<T>, c_int> {
        self.0.ok_or(libc::EINVAL)
    }

    /// Writes the result, where the program wants it.
    pub(super) fn put(self, value: T) {
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
/// If neither `first` is NULL nor `len` 0, then `len` values lie there, which can be read as long as the result is used.
#[inline(always)]
pub(super) unsafe fn slice_from_c<'a, T>(first: *const T, len: usize) -> &'a [T] {
    if first.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: not NULL and not empty (above), so there are `len` values (contract of this function).
    unsafe { std::slice::from_raw_parts(first, len) }
}

/// Sets errno.
pub(super) fn set_errno(errno: c_int) {
    // SAFETY: glibc gives the address of this thread's errno, which lives as long as the thread.
    unsafe { *libc::__errno_location() = errno };
}

/// 0, or an errno.
impl Ret for Result<(), c_int> {
    type C = c_int;
    #[inline(always)]
    fn into_c(self) -> c_int {
        self.err().unwrap_or(0)
    }
    fn refused(errno: c_int) -> Option<Self> {
        Some(Err(errno))
    }
}

/// A pointer, or NULL with errno.
impl<T> Ret for Result<*mut T, c_int> {
    type C = *mut T;
    #[inline(always)]
    fn into_c(self) -> *mut T {
        self.unwrap_or_else(|errno| {
            set_errno(errno);
            std::ptr::null_mut()
        })
    }
    fn refused(errno: c_int) -> Option<Self> {
        Some(Err(errno))
    }
}

/// A number, or -1 with errno.
pub(super) struct OrMinusOne(pub(super) Result<c_int, c_int>);

impl Ret for OrMinusOne {
    type C = c_int;
    fn into_c(self) -> c_int {
        self.0.unwrap_or_else(|errno| {
            set_errno(errno);
            -1
        })
    }
    fn refused(errno: c_int) -> Option<Self> {
        Some(Self(Err(errno)))
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

/// The C functions of safe verbs: `name => verb, (arguments) -> result;`.
macro_rules! c_functions {
    ($($(#[$meta:meta])* $vis:vis $name:ident => $verb:path, ($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        $(#[$meta])*
        #[allow(unsafe_code)]
        $vis unsafe extern "C" fn $name(
            $($arg: <$type as $crate::abi::edge::Arg>::C),*
        ) -> <$ret as $crate::abi::edge::Ret>::C {
            let result: $ret = $verb($({
                // SAFETY: the caller keeps to the man page of the verb, which is all that `from_c` asks for.
                unsafe { <$type as $crate::abi::edge::Arg>::from_c($arg) }
            }),*);
            $crate::abi::edge::Ret::into_c(result)
        }
    )*};
}
pub(super) use c_functions;

/// The same for verbs outside the data path, which a plan of faults may refuse: `name => verb, (arguments) -> result;`.
macro_rules! control_verbs {
    ($($(#[$meta:meta])* $vis:vis $name:ident => $verb:path, ($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        $(#[$meta])*
        #[allow(unsafe_code)]
        $vis unsafe extern "C" fn $name(
            $($arg: <$type as $crate::abi::edge::Arg>::C),*
        ) -> <$ret as $crate::abi::edge::Ret>::C {
            if $crate::faults::are_on() {
                const NAME: &str = $crate::abi::faulty::verb_name(concat!("ibv_", stringify!($name)));
                let addresses: &[usize] = &[$(<$type as $crate::abi::edge::Arg>::address(&$arg)),*];
                let first = addresses.first().copied().unwrap_or(0);
                let refused = $crate::abi::faulty::refusal(NAME, first)
                    .and_then(<$ret as $crate::abi::edge::Ret>::refused);
                if let Some(refused) = refused {
                    return $crate::abi::edge::Ret::into_c(refused);
                }
            }
            let result: $ret = $verb($({
                // SAFETY: the caller keeps to the man page of the verb, which is all that `from_c` asks for.
                unsafe { <$type as $crate::abi::edge::Arg>::from_c($arg) }
            }),*);
            $crate::abi::edge::Ret::into_c(result)
        }
    )*};
}
pub(super) use control_verbs;
