//! Trace text of arguments and results of the verbs.
#![allow(unsafe_code)]
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    reason = "each asks for what the function that the value belongs to asks for, and needs no more"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write;

use super::errno::error_text;
use super::names::*;

/// An argument of a traced call.
pub trait TracedArgument: Copy {
    /// Adds the argument's value before the call to the text; `name` is the argument's name.
    unsafe fn write_input(self, name: &str, text: &mut String);

    /// Adds the value that a successful call stored through the argument, if this value is
    /// relevant.
    unsafe fn write_stored_value(self, _text: &mut String) {}
}

/// A result of a traced call.
pub trait TracedResult: Copy {
    /// True if a call that fails with EAGAIN has no line, because programs repeat such calls.
    const EAGAIN_IS_NOT_TRACED: bool = false;

    /// Adds the result to the text; returns true if the result means success.
    unsafe fn write_result(self, errno: c_int, text: &mut String) -> bool;
}

/// The target type of a pointer.
pub trait Pointee: Sized {
    /// Name of the type's handles, if the type is an object.
    const HANDLE_KIND: Option<HandleKind> = None;
    /// True if a function that returns such an object has created it.
    const IS_NEW_WHEN_RETURNED: bool = true;
    /// True if a function that stores such an object through an argument has created it.
    const IS_NEW_IN_ARGUMENT: bool = false;

    /// Adds the pointer to the text as the argument of a call.
    unsafe fn write_input(this: *const Self, _name: &str, text: &mut String) {
        match Self::HANDLE_KIND {
            Some(kind) => write_handle_name(text, kind, this.addr(), false),
            None => {
                let name = std::any::type_name::<Self>();
                let name = name.rsplit(':').next().unwrap_or(name);
                let _ = write!(text, "&{name}");
                unsafe { Self::write_input_content(this, text) };
            }
        }
    }

    /// Adds the content of a structure that is passed to a function.
    unsafe fn write_input_content(_this: *const Self, _text: &mut String) {}

    /// Adds the value that a function stored in the target.
    unsafe fn write_stored_value(_this: *const Self, _text: &mut String) {}

    /// Adds the content of a structure to which a function stored a pointer.
    unsafe fn write_stored_pointee(_this: *const Self, _text: &mut String) {}

    /// Adds the properties of a new object.
    unsafe fn write_object_details(_this: *const Self, _text: &mut String) {}
}

impl<T: Pointee> TracedArgument for *const T {
    unsafe fn write_input(self, name: &str, text: &mut String) {
        if self.is_null() {
            text.push_str("NULL");
        } else {
            unsafe { T::write_input(self, name, text) };
        }
    }

    unsafe fn write_stored_value(self, text: &mut String) {
        if !self.is_null() {
            unsafe { T::write_stored_value(self, text) };
        }
    }
}

impl<T: Pointee> TracedArgument for *mut T {
    unsafe fn write_input(self, name: &str, text: &mut String) {
        unsafe { self.cast_const().write_input(name, text) };
    }

    unsafe fn write_stored_value(self, text: &mut String) {
        unsafe { self.cast_const().write_stored_value(text) };
    }
}

/// A pointer to a pointer: the stored pointer is written if it refers to an object, or to relevant
/// content.
impl<T: Pointee> Pointee for *mut T {
    unsafe fn write_input(_this: *const Self, _name: &str, text: &mut String) {
        text.push('&');
    }

    unsafe fn write_stored_value(this: *const Self, text: &mut String) {
        unsafe {
            match T::HANDLE_KIND {
                Some(kind) => write_handle_name(text, kind, (*this).addr(), T::IS_NEW_IN_ARGUMENT),
                None if !(*this).is_null() => T::write_stored_pointee(*this, text),
                None => {}
            }
        }
    }
}

impl<T: Pointee> TracedResult for *mut T {
    unsafe fn write_result(self, errno: c_int, text: &mut String) -> bool {
        text.push_str(" = ");
        if self.is_null() {
            let _ = write!(text, "NULL ({})", error_text(errno));
            return false;
        }
        match T::HANDLE_KIND {
            Some(kind) => {
                write_handle_name(text, kind, self.addr(), T::IS_NEW_WHEN_RETURNED);
                unsafe { T::write_object_details(self, text) };
            }
            None => text.push_str("a pointer"),
        }
        true
    }
}

impl TracedResult for *const c_char {
    unsafe fn write_result(self, _errno: c_int, text: &mut String) -> bool {
        text.push_str(" = ");
        unsafe { self.write_input("", text) };
        !self.is_null()
    }
}

impl TracedResult for () {
    unsafe fn write_result(self, _errno: c_int, _text: &mut String) -> bool {
        true
    }
}

impl TracedResult for c_int {
    unsafe fn write_result(self, errno: c_int, text: &mut String) -> bool {
        let _ = write!(text, " = {self}");
        let errno = if self == -1 { errno } else { self };
        if errno > 0 && self != 0 {
            let _ = write!(text, " ({})", error_text(errno));
        }
        self == 0
    }
}

/// The result of a function that fails as system calls do: with -1 and an errno.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct SyscallStyleResult<T>(pub T);

macro_rules! returned {
    ($( $type:ty )*) => {
        $(
            impl TracedResult for SyscallStyleResult<$type> {
                const EAGAIN_IS_NOT_TRACED: bool = true;

                unsafe fn write_result(self, errno: c_int, text: &mut String) -> bool {
                    let Self(value) = self;
                    if value == !0 {
                        let _ = write!(text, " = -1 ({})", error_text(errno));
                    } else {
                        let _ = write!(text, " = {value}");
                    }
                    value != !0
                }
            }
        )*
    };
}

returned! { c_int isize usize i64 }

/// Declares results that never indicate a failure.
macro_rules! numbers {
    ($( $type:ty )*) => {
        $(
            impl TracedResult for $type {
                unsafe fn write_result(self, _errno: c_int, text: &mut String) -> bool {
                    let _ = write!(text, " = {self}");
                    true
                }
            }
        )*
    };
}

numbers! { u16 u32 u64 isize }

impl TracedArgument for c_int {
    unsafe fn write_input(self, name: &str, text: &mut String) {
        match name {
            "access" => write_flag_names(text, self.cast_unsigned(), "IBV_ACCESS_", ACCESS),
            "attr_mask" | "flags" | "srq_attr_mask" => {
                let _ = write!(text, "{self:#x}");
            }
            _ => {
                let _ = write!(text, "{self}");
            }
        }
    }
}

impl TracedArgument for u32 {
    unsafe fn write_input(self, name: &str, text: &mut String) {
        match name {
            "access" => write_flag_names(text, self, "IBV_ACCESS_", ACCESS),
            "ps" => write_named_value(text, self, "RDMA_PS_", PORT_SPACES),
            "event" => write_named_value(text, self, "IBV_EVENT_", EVENTS),
            _ => {
                let _ = write!(text, "{self}");
            }
        }
    }
}

macro_rules! plain {
    ($( $type:ty )*) => {
        $(
            impl TracedArgument for $type {
                unsafe fn write_input(self, name: &str, text: &mut String) {
                    let _ = match name {
                        "iova" => write!(text, "{self:#x}"),
                        _ => write!(text, "{self}"),
                    };
                }
            }
        )*
    };
}

plain! { u8 u16 u64 usize i16 i64 }

impl Pointee for c_void {
    unsafe fn write_input(this: *const Self, _name: &str, text: &mut String) {
        let _ = write!(text, "{:#x}", this.addr());
    }
}

impl Pointee for c_char {
    unsafe fn write_input(this: *const Self, _name: &str, text: &mut String) {
        // Strings of the verbs are zero-terminated.
        let _ = write!(text, "{:?}", unsafe { CStr::from_ptr(this) });
    }
}

/// Declares number types that functions store through pointers.
macro_rules! places {
    ($( $type:ty )*) => {
        $(
            impl Pointee for $type {
                unsafe fn write_input(_this: *const Self, _name: &str, text: &mut String) {
                    text.push('&');
                }

                unsafe fn write_stored_value(this: *const Self, text: &mut String) {
                    let _ = write!(text, "{}", unsafe { this.read() });
                }
            }
        )*
    };
}

places! { c_int u16 u32 }
