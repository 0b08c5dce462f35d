//! Argument types of the rsocket functions that safe code can use.
//!
//! [`Arg::from_c`] makes each value once, from a C argument. It relies on the man page: a buffer has the length in the
//! argument after it, and an address has the length in its length argument. All dereferences of C pointers are in this
//! module.

use std::ffi::c_void;

use c_edge::{Arg, Errno, InOut, Ret};
use libc::{iovec, msghdr, pollfd, sockaddr, socklen_t};
use rdmacm::addr::{self, IdAddress};
use rdmacm::errno::{INVALID, Result};

/// Defines argument types that store a pointer until its length argument is known.
macro_rules! pointers {
    ($( $(#[$meta:meta])* $name:ident: $c:ty; )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub struct $name($c);

        impl Arg for $name {
            type C = $c;
            unsafe fn from_c(c: $c) -> Self {
                Self(c)
            }
        }

        impl $name {
            pub(super) fn is_null(self) -> bool {
                self.0.is_null()
            }
        }
    )*};
}

pointers! {
    /// Bytes to send: NULL or valid for as many bytes as its length argument says.
    Buffer: *const c_void;
    /// Room for bytes: NULL or valid for as many bytes as its length argument says, with no other user.
    Room: *mut c_void;
    /// Buffers: NULL or valid for as many entries as its count argument says.
    Buffers: *const iovec;
    /// An address: NULL or valid for as many bytes as its length argument says.
    Name: *const sockaddr;
    /// Room for an address: NULL, or valid for as many bytes as the integer at its length argument says.
    NameRoom: *mut sockaddr;
    /// Descriptors to wait for: NULL or valid for as many entries as its count argument says.
    PollFds: *mut pollfd;
}

/// Refuses NULL, and lengths beyond `isize::MAX`.
fn check_buffer<T>(data: *const T, len: usize) -> Result {
    if data.is_null() || len > isize::MAX as usize {
        return Err(Errno(libc::EFAULT));
    }
    Ok(())
}

impl Buffer {
    /// Returns the bytes; `EFAULT` for NULL, unless `len` is 0.
    pub(super) fn as_bytes<'a>(self, len: usize) -> Result<&'a [u8]> {
        if len == 0 {
            return Ok(&[]);
        }
        check_buffer(self.0, len)?;
        // SAFETY: not NULL, so valid for `len` bytes until the function returns (contract of `from_c`).
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), len) })
    }
}

impl Room {
    /// Returns the bytes; `EFAULT` for NULL, unless `len` is 0.
    pub(super) fn as_mut_bytes<'a>(self, len: usize) -> Result<&'a mut [u8]> {
        if len == 0 {
            return Ok(&mut []);
        }
        check_buffer(self.0, len)?;
        // SAFETY: not NULL, so valid for `len` bytes until the function returns, with no other user (contract of
        // `from_c`).
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), len) })
    }

    /// Returns the start address.
    pub(super) fn addr(self) -> *mut u8 {
        self.0.cast()
    }

    /// Writes the value of an option to the start of the room; `len` is the size of the room and becomes that of the
    /// value.
    pub(super) fn write_option_value<const N: usize>(
        self,
        value: [u8; N],
        len: &mut socklen_t,
    ) -> Result {
        if (*len as usize) < N {
            return Err(INVALID);
        }
        self.as_mut_bytes(N)?.copy_from_slice(&value);
        *len = socklen_t::try_from(N).unwrap_or(0);
        Ok(())
    }
}

/// One buffer of several (`struct iovec`).
#[repr(transparent)]
pub(super) struct IovecPart(iovec);

impl IovecPart {
    pub(super) fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Returns the bytes to send.
    pub(super) fn as_bytes(&self) -> Result<&[u8]> {
        Buffer(self.0.iov_base).as_bytes(self.0.iov_len)
    }

    /// Returns the first `len` bytes of the buffer, or all, to be filled.
    pub(super) fn writable_prefix<'a>(&self, len: usize) -> Result<&'a mut [u8]> {
        Room(self.0.iov_base).as_mut_bytes(len.min(self.0.iov_len))
    }
}

impl Buffers {
    /// Returns the buffers of `readv(2)` and `writev(2)`.
    pub(super) fn parts<'a>(self, count: usize) -> Result<&'a [IovecPart]> {
        /// Largest number of entries: `writev(2)`.
        const IOV_MAX: usize = 1024;
        if count == 0 {
            return Ok(&[]);
        }
        if self.is_null() || count > IOV_MAX {
            return Err(INVALID);
        }
        // SAFETY: not NULL, so `count` entries are valid (contract of `from_c`); a `IovecPart` has the layout of
        // `iovec`.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), count) })
    }
}

/// Returns the parts of a message: its buffers, their number, and its address. `EFAULT` for NULL, `ENOTSUP` for control
/// messages.
pub(super) fn split_msghdr(msg: Option<&msghdr>) -> Result<(Buffers, usize, Name, NameRoom)> {
    let msg = msg.ok_or(Errno(libc::EFAULT))?;
    if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
        return Err(Errno(libc::ENOTSUP));
    }
    let name: *mut sockaddr = msg.msg_name.cast();
    let buffers = Buffers(msg.msg_iov);
    Ok((buffers, msg.msg_iovlen, Name(name), NameRoom(name)))
}

impl Name {
    /// Reads the address, as `bind(2)` does.
    pub(super) fn to_id_address(self, len: socklen_t) -> Result<IdAddress> {
        let len = len as usize;
        if self.is_null() || len < size_of::<libc::sa_family_t>() {
            return Err(INVALID);
        }
        // SAFETY: not NULL, so valid for `len` bytes (contract of `from_c`), which are at least those of the family,
        // and then those of its address.
        unsafe {
            let needed = addr::sockaddr_bytes_of_family((*self.0).sa_family.into());
            if len < needed.ok_or(Errno(libc::EAFNOSUPPORT))? {
                return Err(INVALID);
            }
            addr::read_sockaddr(self.0).ok_or(INVALID)
        }
    }
}

impl NameRoom {
    /// Writes an address as `accept(2)` does: as many bytes as fit, and the full length to `len`.
    pub(super) fn write_address(self, from: IdAddress, len: Option<&mut socklen_t>) {
        if let (false, Some(len)) = (self.is_null(), len) {
            let (storage, full) = addr::to_sockaddr(from);
            let fits = (*len).min(full) as usize;
            // SAFETY: not NULL, so valid for `*len` bytes (contract of `from_c`).
            unsafe {
                std::ptr::copy_nonoverlapping(
                    (&raw const storage).cast::<u8>(),
                    self.0.cast(),
                    fits,
                );
            }
            *len = full;
        }
    }

    /// As [`write_address`](Self::write_address), with the length argument from C.
    pub(super) fn write_address_with_length(self, from: IdAddress, len: InOut<'_, socklen_t>) {
        self.write_address(from, len.optional());
    }
}

impl PollFds {
    /// Returns the entries; `EFAULT` for NULL, unless `count` is 0.
    pub(super) fn as_mut_slice<'a>(self, count: usize) -> Result<&'a mut [pollfd]> {
        if count == 0 {
            return Ok(&mut []);
        }
        if self.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: not NULL, so `count` entries are valid, with no other user (contract of `from_c`).
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0, count) })
    }
}

/// A number of bytes as an unsigned C return value; an error is `(size_t)-1` with errno.
pub struct WrittenByteCountOrError(pub(super) Result<usize>);

impl Ret for WrittenByteCountOrError {
    type C = usize;
    fn into_c(self) -> usize {
        self.0.into_c().cast_unsigned()
    }
}
