//! Places of objects, with the handles of live and destroyed objects.

use std::ffi::c_int;
use std::ptr::null_mut;

/// A place for an object that is live, was destroyed, or never existed.
pub(super) struct ObjectPlace<T> {
    pub(super) handle: *mut T,
    pub(super) is_live: bool,
}

impl<T> Clone for ObjectPlace<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ObjectPlace<T> {}

impl<T> ObjectPlace<T> {
    pub(super) const EMPTY: Self = Self {
        handle: null_mut(),
        is_live: false,
    };

    /// Returns the handle if the object is live, else NULL.
    pub(super) fn live_handle(self) -> *mut T {
        if self.is_live {
            self.handle
        } else {
            null_mut()
        }
    }

    /// Records the result of a destroying verb: 0 ends the object.
    pub(super) fn record_destroy_result(&mut self, errno: c_int) {
        if errno == 0 {
            assert!(self.is_live, "a destroyed handle was destroyed again");
            self.is_live = false;
        }
    }
}

/// Stores a new object in a place. A destroyed handle with the same address is forgotten, because it cannot
/// be distinguished any more.
pub(super) fn store_object<T>(places: &mut [ObjectPlace<T>], place: usize, handle: *mut T) {
    for other in &mut *places {
        if std::ptr::eq(other.handle, handle) {
            other.handle = null_mut();
        }
    }
    places[place] = ObjectPlace {
        handle,
        is_live: !handle.is_null(),
    };
}
