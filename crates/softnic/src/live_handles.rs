//! The table of live handles: the only place that turns a program's handle into the object behind it.
//!
//! A program may use a handle after it has destroyed the object: in an error path that cleans up twice, or by a
//! forgotten copy. With libibverbs the result is undefined. Here the verbs that create, change, query and destroy
//! objects look each handle up. They refuse a handle that is not live or is of another kind, with the errno of a bad
//! argument.
//!
//! The table owns the objects. A look-up therefore dereferences no pointer of the program: it compares addresses, and
//! returns a reference of its own. So the verbs need no unsafe code to use a handle. An object that another thread
//! destroys meanwhile stays in memory until the verb returns.
//!
//! A forked child gets the same answer for the objects of its parent, which goes on using them. The kernel would let
//! the child destroy them, through the descriptor that both have. The child may query device and port through its
//! parent's contexts, and allocate device memory of its own.
//!
//! The data path does not look handles up, since a look-up costs more than a post. The table cannot tell a stale handle
//! from a later one of the same kind at the same address.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An object of the verbs for which programs have a handle.
pub(crate) trait VerbsObject: Any + Send + Sync {
    /// The structure that the handle points to: the first field of the object, as [`object!`] checks.
    type C;
    /// The name of that structure in C.
    const C_STRUCT_NAME: &'static str;
}

/// Makes a type an [`VerbsObject`] whose field `abi` is the structure that C sees.
macro_rules! object {
    ($type:ty, $c:ty) => {
        const _: () = assert!(std::mem::offset_of!($type, abi) == 0);
        impl $crate::live_handles::VerbsObject for $type {
            type C = $c;
            const C_STRUCT_NAME: &'static str = stringify!($c);
        }
    };
}
pub(crate) use object;

/// The entry of the table for an address.
struct LiveHandle {
    c_struct_name: &'static str,
    object: Arc<dyn Any + Send + Sync>,
    /// The process that made the object: a forked child inherits the table, but owns none of the objects.
    pid: u32,
    /// Number of times that the handle is given out.
    times_given_out: usize,
    /// True while a verb destroys the object and waits for its events to be acknowledged.
    is_being_destroyed: bool,
}

impl LiveHandle {
    /// Returns the object, if it is of this type and this process has made it.
    fn object_of_this_process<T: VerbsObject>(&self) -> Option<Arc<T>> {
        self.object_as::<T>()
            .filter(|_| self.pid == std::process::id())
    }

    fn object_as<T: VerbsObject>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.object).downcast().ok()
    }
}

type LiveHandlesByAddress = HashMap<usize, LiveHandle>;

/// Number of parts of the table.
const TABLE_SHARDS: usize = 16;
static LIVE_HANDLES: [Mutex<Option<LiveHandlesByAddress>>; TABLE_SHARDS] =
    [const { Mutex::new(None) }; TABLE_SHARDS];

/// Locks the part of the table for an address. Threads that create objects seldom need the same part.
fn lock_shard(address: usize) -> MutexGuard<'static, Option<LiveHandlesByAddress>> {
    // Allocations of objects are 64 bytes apart or more.
    LIVE_HANDLES[address / 64 % TABLE_SHARDS]
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of objects of each kind, by its name in C, that this process has made and not destroyed.
pub(crate) fn count_undestroyed_objects() -> BTreeMap<&'static str, usize> {
    let pid = std::process::id();
    let mut left = BTreeMap::new();
    for part in &LIVE_HANDLES {
        let part = part.lock().unwrap_or_else(PoisonError::into_inner);
        let own = part.iter().flat_map(HashMap::values);
        for handle in own.filter(|handle| handle.pid == pid) {
            *left.entry(handle.c_struct_name).or_default() += 1;
        }
    }
    left
}

/// Makes a handle of an object: the address of its first field. An object can be given out several times.
pub(crate) fn make_handle<T: VerbsObject>(object: Arc<T>) -> *mut T::C {
    let handle = Arc::as_ptr(&object).cast_mut().cast();
    make_handle_at_address(handle, object)
}

/// Makes a handle whose address is not that of the object behind it.
pub(crate) fn make_handle_at_address<T: VerbsObject>(
    handle: *mut T::C,
    object: Arc<T>,
) -> *mut T::C {
    let pid = std::process::id();
    let mut part = lock_shard(handle.addr());
    let live = part.get_or_insert_default();
    if let Some(known) = live.get_mut(&handle.addr())
        && known.pid == pid
    {
        known.times_given_out += 1;
        return handle;
    }
    let new = LiveHandle {
        c_struct_name: T::C_STRUCT_NAME,
        object,
        pid,
        times_given_out: 1,
        is_being_destroyed: false,
    };
    // An object that a forked child has inherited must not end here.
    std::mem::forget(live.insert(handle.addr(), new));
    handle
}

/// Returns the object behind a live handle.
pub(crate) fn find_object<T: VerbsObject>(handle: *mut T::C) -> Option<Arc<T>> {
    lock_shard(handle.addr())
        .as_ref()?
        .get(&handle.addr())?
        .object_of_this_process()
}

/// Returns the object behind a live handle, made by this process or by one from which it was forked.
pub(crate) fn find_own_or_inherited_object<T: VerbsObject>(handle: *mut T::C) -> Option<Arc<T>> {
    lock_shard(handle.addr())
        .as_ref()?
        .get(&handle.addr())?
        .object_as()
}

/// Marks the object as about to be destroyed. Returns false if it is not live or already marked.
pub(crate) fn mark_being_destroyed<T: VerbsObject>(handle: *mut T::C) -> bool {
    let mut part = lock_shard(handle.addr());
    let known = part.as_mut().and_then(|live| live.get_mut(&handle.addr()));
    known
        .filter(|known| known.object_of_this_process::<T>().is_some())
        .is_some_and(|known| !std::mem::replace(&mut known.is_being_destroyed, true))
}

/// Takes a handle back once, and removes it from the table if it is given out no more. `None` if the handle is not
/// live.
pub(crate) fn take_back_handle<T: VerbsObject>(handle: *mut T::C) -> Option<Arc<T>> {
    let mut part = lock_shard(handle.addr());
    let live = part.as_mut()?;
    let known = live.get_mut(&handle.addr())?;
    let object = known.object_of_this_process()?;
    known.times_given_out -= 1;
    if known.times_given_out == 0 {
        // `object` keeps a reference, so the object is not dropped under the lock.
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
        let handle = make_handle(Arc::clone(&object));
        let again = make_handle(Arc::clone(&object));
        assert_eq!(handle, again);
        assert!(find_object::<A>(handle).is_some() && find_object::<B>(handle).is_none());
        assert!(take_back_handle::<B>(handle).is_none());
        assert_eq!(take_back_handle::<A>(handle).map(|a| a.abi), Some(7));
        assert!(mark_being_destroyed::<A>(again) && !mark_being_destroyed::<A>(again));
        assert!(find_own_or_inherited_object::<A>(again).is_some());
        assert!(take_back_handle::<A>(again).is_some());
        assert!(take_back_handle::<A>(again).is_none() && find_object::<A>(again).is_none());
        assert_eq!(Arc::strong_count(&object), 1);
        assert_eq!(B { abi: 1 }.abi, 1);
        assert!(find_object::<A>(std::ptr::null_mut()).is_none());
    }
}
