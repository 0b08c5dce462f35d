//! Which handles are live: the one place that turns a handle of the program's into the object behind it.
//!
//! A program may use a handle after it has destroyed the object: through an error path that cleans up twice, or a
//! copy that it forgot. libibverbs may then do anything. Here the verbs that create, change, ask and destroy look each
//! handle up, and refuse one that is not live or is of another kind, with the errno of a bad argument.
//!
//! The table owns the objects. So a look-up follows no pointer of the program's: it compares addresses, and what it finds
//! it hands out with a reference of its own. That is why the verbs need no unsafe code to use a handle, and why an object
//! that another thread destroys meanwhile stays in memory until the verb returns.
//!
//! A child that was forked gets the same answer for what its parent made: the objects are the parent's, which goes on
//! using them. (The kernel would let the child destroy them, through the descriptor that both have.) It may ask its
//! parent's contexts about device and port, and allocate device memory of its own.
//!
//! The data path does not look handles up: that costs more than a post. Nor is a handle told from another one of the same
//! kind that has been given the same address since.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An object of the verbs that programs have a handle of.
pub(crate) trait Object: Any + Send + Sync {
    /// The structure that the handle points to: the first field of the object, as [`object!`] checks.
    type C;
    /// What C calls that structure.
    const KIND: &'static str;
}

/// Makes a type an [`Object`] whose field `abi` is the structure that C sees.
macro_rules! object {
    ($type:ty, $c:ty) => {
        const _: () = assert!(std::mem::offset_of!($type, abi) == 0);
        impl $crate::live::Object for $type {
            type C = $c;
            const KIND: &'static str = stringify!($c);
        }
    };
}
pub(crate) use object;

/// What is known of an address.
struct Handle {
    kind: &'static str,
    object: Arc<dyn Any + Send + Sync>,
    /// The process that made it: a forked child inherits the table, and has none of the objects.
    pid: u32,
    /// How often it was handed out.
    lives: usize,
    /// A verb is destroying it, and waits for its events to be acknowledged.
    ending: bool,
}

impl Handle {
    /// The object, if it is of this type and this process has made it.
    fn own<T: Object>(&self) -> Option<Arc<T>> {
        self.object_of::<T>()
            .filter(|_| self.pid == std::process::id())
    }

    fn object_of<T: Object>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.object).downcast().ok()
    }
}

type Handles = HashMap<usize, Handle>;

/// Parts of the table.
const PARTS: usize = 16;
static LIVE: [Mutex<Option<Handles>>; PARTS] = [const { Mutex::new(None) }; PARTS];

/// Part of the table, by address: threads that create objects seldom meet.
fn part(address: usize) -> MutexGuard<'static, Option<Handles>> {
    // Allocations of objects are 64 bytes apart or more.
    LIVE[address / 64 % PARTS]
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// How many objects of each kind this process has made and not destroyed, by their names in C.
pub(crate) fn left() -> BTreeMap<&'static str, usize> {
    let pid = std::process::id();
    let mut left = BTreeMap::new();
    for part in &LIVE {
        let part = part.lock().unwrap_or_else(PoisonError::into_inner);
        let own = part.iter().flat_map(HashMap::values);
        for handle in own.filter(|handle| handle.pid == pid) {
            *left.entry(handle.kind).or_default() += 1;
        }
    }
    left
}

/// Makes a handle of an object: the address of its first field. An object can be handed out several times.
pub(crate) fn hand_out<T: Object>(object: Arc<T>) -> *mut T::C {
    let handle = Arc::as_ptr(&object).cast_mut().cast();
    hand_out_as(handle, object)
}

/// Makes a handle that lies elsewhere than the object that stands for it.
pub(crate) fn hand_out_as<T: Object>(handle: *mut T::C, object: Arc<T>) -> *mut T::C {
    let pid = std::process::id();
    let mut part = part(handle.addr());
    let live = part.get_or_insert_default();
    if let Some(known) = live.get_mut(&handle.addr())
        && known.pid == pid
    {
        known.lives += 1;
        return handle;
    }
    let new = Handle {
        kind: T::KIND,
        object,
        pid,
        lives: 1,
        ending: false,
    };
    // What a forked child has inherited does not end here.
    std::mem::forget(live.insert(handle.addr(), new));
    handle
}

/// The object behind a live handle.
pub(crate) fn find<T: Object>(handle: *mut T::C) -> Option<Arc<T>> {
    part(handle.addr()).as_ref()?.get(&handle.addr())?.own()
}

/// The same, whichever process has made the object: this one, or one that it was forked from.
pub(crate) fn find_inherited<T: Object>(handle: *mut T::C) -> Option<Arc<T>> {
    part(handle.addr())
        .as_ref()?
        .get(&handle.addr())?
        .object_of()
}

/// Says that the object is about to be destroyed; false if it is not live or somebody else has said so.
pub(crate) fn start_ending<T: Object>(handle: *mut T::C) -> bool {
    let mut part = part(handle.addr());
    let known = part.as_mut().and_then(|live| live.get_mut(&handle.addr()));
    known
        .filter(|known| known.own::<T>().is_some())
        .is_some_and(|known| !std::mem::replace(&mut known.ending, true))
}

/// Ends the life of a handle that was handed out once, or one of its lives; `None` if it has none.
pub(crate) fn take_back<T: Object>(handle: *mut T::C) -> Option<Arc<T>> {
    let mut part = part(handle.addr());
    let live = part.as_mut()?;
    let known = live.get_mut(&handle.addr())?;
    let object = known.own()?;
    known.lives -= 1;
    if known.lives == 0 {
        // `object` keeps it: it is not dropped under the lock.
        live.remove(&handle.addr());
    }
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_live_from_first_to_last() {
        struct A {
            abi: u8,
        }
        object!(A, u8);
        struct B {
            abi: u8,
        }
        object!(B, u8);
        let object = Arc::new(A { abi: 7 });
        let handle = hand_out(Arc::clone(&object));
        let again = hand_out(Arc::clone(&object));
        assert_eq!(handle, again);
        assert!(find::<A>(handle).is_some() && find::<B>(handle).is_none());
        assert!(take_back::<B>(handle).is_none());
        assert_eq!(take_back::<A>(handle).map(|a| a.abi), Some(7));
        assert!(start_ending::<A>(again) && !start_ending::<A>(again));
        assert!(find_inherited::<A>(again).is_some());
        assert!(take_back::<A>(again).is_some());
        assert!(take_back::<A>(again).is_none() && find::<A>(again).is_none());
        assert_eq!(Arc::strong_count(&object), 1);
        assert_eq!(B { abi: 1 }.abi, 1);
        assert!(find::<A>(std::ptr::null_mut()).is_none());
    }
}
