//! Which handles are live.
//!
//! A program may use a handle after it has destroyed the object: through an error path that cleans up twice, or a
//! copy that it forgot. libibverbs may then do anything. Here the verbs that create, change, ask and destroy look each
//! handle up, and refuse one that is not live or is of another kind, with the errno of a bad argument.
//!
//! A child that was forked gets the same answer for what its parent made: the objects are the parent's, which goes on
//! using them. (The kernel would let the child destroy them, through the descriptor that both have.) It may ask its
//! parent's contexts about device and port, and allocate device memory of its own.
//!
//! The data path does not: a look-up costs more than a post. Nor is a handle told from another one of the same kind
//! that has been given the same address since.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is known of an address.
#[derive(Clone, Copy)]
struct Handle {
    of: TypeId,
    /// The process that made it: a forked child inherits the table, and has none of the objects.
    pid: u32,
    /// How often it was handed out.
    lives: usize,
    /// A verb is destroying it, and waits for its events to be acknowledged.
    ending: bool,
}

type Handles = HashMap<usize, Handle>;

/// Part of the table, by address: threads that create objects seldom meet.
fn part(address: usize) -> MutexGuard<'static, Option<Handles>> {
    const PARTS: usize = 16;
    static LIVE: [Mutex<Option<Handles>>; PARTS] = [const { Mutex::new(None) }; PARTS];
    // Allocations of objects are 64 bytes apart or more.
    LIVE[address / 64 % PARTS]
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn enter<T: 'static, A>(handle: *mut A) -> *mut A {
    let mut part = part(handle.addr());
    let live = part.get_or_insert_default();
    let new = Handle {
        of: TypeId::of::<T>(),
        pid: std::process::id(),
        lives: 0,
        ending: false,
    };
    let entry = live.entry(handle.addr()).or_insert(new);
    if entry.pid != std::process::id() {
        *entry = new;
    }
    entry.lives += 1;
    handle
}

impl Handle {
    /// An object of this type that this process has made.
    fn is<T: 'static>(&self) -> bool {
        self.of == TypeId::of::<T>() && self.pid == std::process::id()
    }
}

/// Looks at what is known of a live handle of this type.
fn with<T: 'static, A, R>(handle: *mut A, look: impl FnOnce(&mut Handle) -> R) -> Option<R> {
    let mut part = part(handle.addr());
    let known = part.as_mut()?.get_mut(&handle.addr());
    known.filter(|known| known.is::<T>()).map(look)
}

/// Whether the handle is that of a live object of this type.
pub(super) fn is_live<T: 'static, A>(handle: *mut A) -> bool {
    with::<T, A, _>(handle, |_| ()).is_some()
}

/// The same, whichever process has made the object: this one, or one that it was forked from.
pub(super) fn is_known<T: 'static, A>(handle: *mut A) -> bool {
    let part = part(handle.addr());
    let known = part.as_ref().and_then(|live| live.get(&handle.addr()));
    known.is_some_and(|known| known.of == TypeId::of::<T>())
}

/// Says that the object is about to be destroyed; false if it is not live or somebody else has said so.
pub(super) fn is_ending<T: 'static, A>(handle: *mut A) -> bool {
    let before = with::<T, A, _>(handle, |known| std::mem::replace(&mut known.ending, true));
    before == Some(false)
}

/// Ends the life of a handle that was handed out once, or one of its lives. False if it has none.
fn leave<T: 'static, A>(handle: *mut A) -> bool {
    let mut part = part(handle.addr());
    let Some(live) = part.as_mut() else {
        return false;
    };
    let known = live.get_mut(&handle.addr());
    let Some(known) = known.filter(|known| known.is::<T>()) else {
        return false;
    };
    known.lives -= 1;
    if known.lives == 0 {
        live.remove(&handle.addr());
    }
    true
}

/// Makes a handle of an object, which begins with the structure that the program sees.
pub(super) fn hand_out<T: 'static, A>(object: Arc<T>) -> *mut A {
    enter::<T, A>(Arc::into_raw(object).cast_mut().cast())
}

/// The same for an object that only its handle owns.
pub(super) fn hand_out_box<T: 'static, A>(object: Box<T>) -> *mut A {
    enter::<T, A>(Box::into_raw(object).cast())
}

/// Makes a handle of an object that is never freed.
pub(super) fn hand_out_leaked<T: 'static, A>(_object: &'static T, handle: *mut A) -> *mut A {
    enter::<T, A>(handle)
}

/// Takes back what [`hand_out_leaked`] made; false if it is not live.
pub(super) fn take_back_leaked<T: 'static, A>(handle: *mut A) -> bool {
    leave::<T, A>(handle)
}

/// Takes back what [`hand_out`] made; `None` if it is not live.
pub(super) fn take_back<T: 'static, A>(handle: *mut A) -> Option<Arc<T>> {
    // SAFETY: a live handle of this type came from `Arc::into_raw` of it, and each of its lives is ended once.
    leave::<T, A>(handle).then(|| unsafe { Arc::from_raw(handle.cast::<T>()) })
}

/// Takes back what [`hand_out_box`] made; `None` if it is not live.
pub(super) fn take_back_box<T: 'static, A>(handle: *mut A) -> Option<Box<T>> {
    // SAFETY: a live handle of this type came from `Box::into_raw` of it, and its life is ended once.
    leave::<T, A>(handle).then(|| unsafe { Box::from_raw(handle.cast::<T>()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_live_from_first_to_last() {
        struct A(u8);
        struct B;
        let object = Arc::new(A(7));
        let handle: *mut A = hand_out(Arc::clone(&object));
        let again: *mut A = hand_out(Arc::clone(&object));
        assert!(is_live::<A, _>(handle) && !is_live::<B, _>(handle));
        assert!(take_back::<B, _>(handle).is_none());
        assert_eq!(take_back::<A, _>(handle).map(|a| a.0), Some(7));
        assert!(is_live::<A, _>(again));
        assert!(take_back::<A, _>(again).is_some());
        assert!(take_back::<A, _>(again).is_none());
        assert_eq!(Arc::strong_count(&object), 1);
        assert!(!is_live::<A, A>(std::ptr::null_mut()));
    }
}
