//! What the functions of rsockets are given, as types that can be used safely.
//!
//! Each is made of what C passed, once, by [`Arg::from_c`], which believes the man page: a buffer is as long as the
//! argument beside it says, an address as long as its length. All that follows pointers of C stands in here.

use std::ffi::c_void;

use c_edge::{Arg, Errno, InOut, Ret};
use libc::{iovec, msghdr, pollfd, sockaddr, socklen_t};
use rdmacm::addr::{self, Addr};
use rdmacm::errno::{INVALID, Result};

/// Arguments that are kept as C passed them, until the argument beside them is known.
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
    /// Bytes to be sent: NULL or valid for as many as the length beside it says.
    Buffer: *const c_void;
    /// Room for bytes: NULL or valid for as many as the length beside it says, which nobody else uses.
    Room: *mut c_void;
    /// Buffers: NULL or valid for as many as the count beside it says.
    Buffers: *const iovec;
    /// An address: NULL or valid for the length beside it.
    Name: *const sockaddr;
    /// Room for an address: NULL, or valid for the length that the pointer beside it leads to.
    NameRoom: *mut sockaddr;
    /// Descriptors to wait for: NULL or valid for as many as the count beside it says.
    PollFds: *mut pollfd;
}

/// Refuses lengths that no memory has, and NULL.
fn check_buffer<T>(data: *const T, len: usize) -> Result {
    if data.is_null() || len > isize::MAX as usize {
        return Err(Errno(libc::EFAULT));
    }
    Ok(())
}

impl Buffer {
    /// Its bytes; `EFAULT` for NULL, unless there are none.
    pub(super) fn bytes<'a>(self, len: usize) -> Result<&'a [u8]> {
        if len == 0 {
            return Ok(&[]);
        }
        check_buffer(self.0, len)?;
        // SAFETY: not NULL, so valid for `len` bytes until the function returns (contract of `from_c`).
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), len) })
    }
}

impl Room {
    /// Its bytes; `EFAULT` for NULL, unless there are none.
    pub(super) fn bytes<'a>(self, len: usize) -> Result<&'a mut [u8]> {
        if len == 0 {
            return Ok(&mut []);
        }
        check_buffer(self.0, len)?;
        // SAFETY: not NULL, so valid for `len` bytes until the function returns, and nobody else's (contract of `from_c`).
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), len) })
    }

    /// Where it begins.
    pub(super) fn addr(self) -> *mut u8 {
        self.0.cast()
    }

    /// Its first bytes as an option's value of this type; `len` is how many there are.
    pub(super) fn put<const N: usize>(self, value: [u8; N], len: &mut socklen_t) -> Result {
        if (*len as usize) < N {
            return Err(INVALID);
        }
        self.bytes(N)?.copy_from_slice(&value);
        *len = socklen_t::try_from(N).unwrap_or(0);
        Ok(())
    }
}

/// One of several buffers.
#[repr(transparent)]
pub(super) struct Part(iovec);

impl Part {
    pub(super) fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Bytes to be sent.
    pub(super) fn bytes(&self) -> Result<&[u8]> {
        Buffer(self.0.iov_base).bytes(self.0.iov_len)
    }

    /// The first bytes of it, to be filled.
    pub(super) fn room<'a>(&self, len: usize) -> Result<&'a mut [u8]> {
        Room(self.0.iov_base).bytes(len.min(self.0.iov_len))
    }
}

impl Buffers {
    /// The buffers of `readv(2)` and `writev(2)`.
    pub(super) fn parts<'a>(self, count: usize) -> Result<&'a [Part]> {
        /// Most entries: `writev(2)`.
        const IOV_MAX: usize = 1024;
        if count == 0 {
            return Ok(&[]);
        }
        if self.is_null() || count > IOV_MAX {
            return Err(INVALID);
        }
        // SAFETY: not NULL, so there are as many (contract of `from_c`); a `Part` is one of them, in other words.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), count) })
    }
}

/// What a message consists of, without control messages: its buffers and how many, and its name. `EFAULT` for NULL,
/// `ENOTSUP` where there are control messages.
pub(super) fn message(msg: Option<&msghdr>) -> Result<(Buffers, usize, Name, NameRoom)> {
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
    pub(super) fn get(self, len: socklen_t) -> Result<Addr> {
        let len = len as usize;
        if self.is_null() || len < size_of::<libc::sa_family_t>() {
            return Err(INVALID);
        }
        // SAFETY: not NULL, so valid for `len` bytes (contract of `from_c`): the family's, and then those of its address.
        unsafe {
            let needed = addr::size_of_family((*self.0).sa_family.into());
            if len < needed.ok_or(Errno(libc::EAFNOSUPPORT))? {
                return Err(INVALID);
            }
            addr::read(self.0).ok_or(INVALID)
        }
    }
}

impl NameRoom {
    /// Writes an address as `accept(2)` does: as much as fits, and how long it is.
    pub(super) fn put(self, from: Addr, len: Option<&mut socklen_t>) {
        if let (false, Some(len)) = (self.is_null(), len) {
            let (storage, full) = addr::to_c(from);
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

    /// The same, for the length that C passed.
    pub(super) fn give(self, from: Addr, len: InOut<'_, socklen_t>) {
        self.put(from, len.optional());
    }
}

impl PollFds {
    /// `EFAULT` for NULL, unless there are none.
    pub(super) fn get<'a>(self, count: usize) -> Result<&'a mut [pollfd]> {
        if count == 0 {
            return Ok(&mut []);
        }
        if self.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: not NULL, so there are as many, which nobody else uses (contract of `from_c`).
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0, count) })
    }
}

/// A count of bytes, of which -1 with errno is the largest.
pub struct Written(pub(super) Result<usize>);

impl Ret for Written {
    type C = usize;
    fn into_c(self) -> usize {
        self.0.into_c().cast_unsigned()
    }
}
