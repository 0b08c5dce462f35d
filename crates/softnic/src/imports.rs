//! Objects that processes share: protection domains and device memory that one process has made and others import.
//!
//! The process that made an object is its *home*. A table in its segment has the object's handle, and the number of
//! objects that the home has made of it. A process that imports the object has the same in a table of its own imports.
//! Every process can thus see the users of an object, and the uses of a process end with it.
//!
//! An imported protection domain has a number of its own in each process. A key that a queue pair's process does not
//! have may belong to another process that has the same domain. The key is looked for there, on a path that no other
//! key takes ([`find_key_in_shared_pd`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::lock::lock;
use crate::nic::Nic;
use nic_core::rights::OwningPdOrQp;
use shm::fabric::Peer;
use shm::fabric::layout::*;
use shm::keys;

/// The kinds of objects that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ImportableKind {
    Pd,
    Dm,
}

impl ImportableKind {
    fn code(self) -> u32 {
        match self {
            Self::Pd => IMPORT_PD,
            Self::Dm => IMPORT_DM,
        }
    }

    /// Returns the number of places in the table of a process.
    fn table_slots(self) -> usize {
        match self {
            Self::Pd => MAX_PDS,
            Self::Dm => MAX_DMS,
        }
    }

    /// Returns the place in which `handle` of `peer` would lie.
    fn table_place_for_handle(self, peer: &Peer, handle: u32) -> Option<&ImportableObjectShared> {
        let index = handle as usize % self.table_slots();
        match self {
            Self::Pd => peer
                .segment
                .find_pd(index)
                .map(|pd| &pd.handle_and_use_count),
            Self::Dm => peer
                .segment
                .find_dm(index)
                .map(|dm| &dm.handle_and_use_count),
        }
    }

    /// Returns the offset of that place in a segment, and its length in bytes.
    fn place_offset_and_len(self, handle: u32) -> (usize, usize) {
        let index = handle as usize % self.table_slots();
        match self {
            Self::Pd => (
                PDS_AT + index * size_of::<PdShared>(),
                size_of::<PdShared>(),
            ),
            Self::Dm => (
                DMS_AT + index * size_of::<DmShared>(),
                size_of::<DmShared>(),
            ),
        }
    }
}

/// The bit that is set in numbers of imported protection domains, and clear in handles of own objects.
const IMPORTED_PD_BIT: u32 = OwningPdOrQp::PD_NUMBER_LIMIT >> 1;

/// The objects that a process shares.
#[derive(Default)]
pub(crate) struct SharedObjects {
    next_pd_handle_or_import_place: AtomicU32,
    /// The present imports, by home, kind and handle: two imports of one object are one.
    live_imports: Mutex<HashMap<(u64, ImportableKind, u32), Weak<ImportedObject>>>,
    /// Own objects whose handles the program has given back while they existed, kept for other processes.
    exports_kept_after_release: Mutex<Vec<Arc<dyn MaybeShared>>>,
}

/// An object behind a program's handle that may stand for a shared object.
pub(crate) trait MaybeShared: Send + Sync {
    /// Returns the shared object, if there is one.
    fn shared_object(&self) -> Option<&SharedObject>;
}

/// Takes a program's handle back without destroying the shared object: "the second one way cleanup what ever is
/// needed/opposite of the import without calling the kernel" (`ibv_import_pd(3)`). An own object stays until a process
/// destroys it, or this process ends.
pub(crate) fn release_without_destroying<T: MaybeShared + 'static>(object: Arc<T>) {
    if let Some(SharedObject::Own(own)) = object.shared_object()
        && find_existing_object(own.nic.this_process(), own.kind, own.handle).is_some()
    {
        let nic = own.nic;
        lock(&nic.shared_objects.exports_kept_after_release).push(object);
    }
}

/// Drops the kept objects that other processes have destroyed, so that their places are free.
fn drop_destroyed_exports(nic: &Nic) {
    let exists =
        |object: &Arc<dyn MaybeShared>| object.shared_object().is_some_and(SharedObject::exists);
    let destroyed: Vec<_> = lock(&nic.shared_objects.exports_kept_after_release)
        .extract_if(.., |object| !exists(object))
        .collect();
    // Dropped without the lock.
    drop(destroyed);
}

/// An object of this process that others may import. The object ends when this value is dropped, unless
/// [`release_without_destroying`] took it.
pub(crate) struct ExportedObject {
    nic: &'static Nic,
    kind: ImportableKind,
    handle: u32,
}

impl ExportedObject {
    /// Enters an object in the table. `describe` writes the object's properties before another process can find it.
    /// Handles are used in turn, so that one comes back as late as possible.
    ///
    /// # Errors
    /// `ENOMEM` if the table or shared memory is full.
    pub(crate) fn new(
        nic: &'static Nic,
        kind: ImportableKind,
        describe: impl FnOnce(usize),
    ) -> Result<Self, i32> {
        drop_destroyed_exports(nic);
        for _ in 0..kind.table_slots() {
            let handle = nic
                .shared_objects
                .next_pd_handle_or_import_place
                .fetch_add(1, Ordering::Relaxed)
                % IMPORTED_PD_BIT;
            let (at, len) = kind.place_offset_and_len(handle);
            nic.fabric
                .back_with_memory(at, len)
                .map_err(|_| libc::ENOMEM)?;
            let Some(place) = kind
                .table_place_for_handle(nic.this_process(), handle)
                .filter(|_| handle != 0)
            else {
                continue;
            };
            let taken = place.handle.compare_exchange(
                0,
                OBJECT_DESTROYED,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                place.home_use_count.store(0, Ordering::Relaxed);
                describe(handle as usize % kind.table_slots());
                place.handle.store(handle, Ordering::Release);
                return Ok(Self { nic, kind, handle });
            }
        }
        Err(libc::ENOMEM)
    }
}

impl Drop for ExportedObject {
    fn drop(&mut self) {
        if let Some(place) = self
            .kind
            .table_place_for_handle(self.nic.this_process(), self.handle)
        {
            place.handle.store(0, Ordering::Release);
        }
    }
}

/// An object of another process that this process has imported. The import ends when this value is dropped.
pub(crate) struct ImportedObject {
    nic: &'static Nic,
    import_table_index: usize,
    home: Arc<Peer>,
    kind: ImportableKind,
    handle: u32,
    /// For a protection domain: its number in this process.
    pd_number: u32,
}

impl ImportedObject {
    /// Imports an object of `home` through a device of this process, or returns the existing import.
    ///
    /// # Errors
    /// `ENOENT` if `home` has no object with that handle; `ENOMEM` if the table or shared memory is full.
    pub(crate) fn new(
        (nic, device): (&'static Nic, u8),
        home: &Arc<Peer>,
        kind: ImportableKind,
        handle: u32,
    ) -> Result<Arc<Self>, i32> {
        find_existing_object(home, kind, handle).ok_or(libc::ENOENT)?;
        let mut known = lock(&nic.shared_objects.live_imports);
        let name = (home.incarnation, kind, handle);
        if let Some(import) = known.get(&name).and_then(Weak::upgrade) {
            return Ok(import);
        }
        known.retain(|_, import| import.strong_count() != 0);
        let me = &nic.this_process().segment;
        let free = |&index: &usize| {
            me.import(index)
                .is_some_and(|place| place.home_incarnation.load(Ordering::Relaxed) == 0)
        };
        // Only the places below `imports_used` are reserved, so only they are read.
        let used =
            usize::try_from(me.header().import_slots_end.load(Ordering::Relaxed)).unwrap_or(0);
        let index = (0..used).find(free).unwrap_or(used);
        let at = IMPORTS_AT + index * size_of::<ImportShared>();
        if index >= MAX_IMPORTS {
            return Err(libc::ENOMEM);
        }
        nic.fabric
            .back_with_memory(at, size_of::<ImportShared>())
            .map_err(|_| libc::ENOMEM)?;
        let place = me.import(index).ok_or(libc::ENOMEM)?;
        // The number comes back as late as possible, and encodes the index of its place.
        let lap = nic
            .shared_objects
            .next_pd_handle_or_import_place
            .fetch_add(1, Ordering::Relaxed);
        let laps = IMPORTED_PD_BIT / u32::try_from(MAX_IMPORTS).unwrap_or(1);
        let first = u32::try_from(index).map_err(|_| libc::ENOMEM)?;
        let number = IMPORTED_PD_BIT | (lap % laps * (IMPORTED_PD_BIT / laps) + first);
        let slot = u32::try_from(home.slot).map_err(|_| libc::ENOMEM)?;
        place.home_slot.store(slot, Ordering::Relaxed);
        place.kind.store(kind.code(), Ordering::Relaxed);
        place.home_handle.store(handle, Ordering::Relaxed);
        place.local_pd_number.store(number, Ordering::Relaxed);
        place.local_device.store(device.into(), Ordering::Relaxed);
        place.local_use_count.store(0, Ordering::Relaxed);
        place
            .home_incarnation
            .store(home.incarnation, Ordering::Release);
        me.header()
            .import_slots_end
            .fetch_max(index as u64 + 1, Ordering::Release);
        home.segment
            .header()
            .is_imported_by_others
            .store(1, Ordering::Release);
        let import = Arc::new(Self {
            nic,
            import_table_index: index,
            home: Arc::clone(home),
            kind,
            handle,
            pd_number: number,
        });
        known.insert(name, Arc::downgrade(&import));
        Ok(import)
    }

    fn import_entry(&self) -> Option<&'static ImportShared> {
        self.nic
            .this_process()
            .segment
            .import(self.import_table_index)
    }

    /// Returns the counter of objects that this process has made of the import.
    fn derived_object_count(&self) -> Option<&AtomicU32> {
        Some(&self.import_entry()?.local_use_count)
    }
}

impl Drop for ImportedObject {
    fn drop(&mut self) {
        if let Some(place) = self.import_entry() {
            place.home_incarnation.store(0, Ordering::Release);
        }
    }
}

/// The shared object that a program's handle stands for.
pub(crate) enum SharedObject {
    /// An object of this process, and the handle that it was made with.
    Own(ExportedObject),
    /// An object of this process, imported by this process.
    OwnImported(&'static Nic, ImportableKind, u32),
    /// An object of another process.
    Imported(Arc<ImportedObject>),
}

impl SharedObject {
    /// Imports an object of `home`, which may be this process, through a device of this process.
    ///
    /// # Errors
    /// As for [`ImportedObject::new`].
    pub(crate) fn import(
        (nic, device): (&'static Nic, u8),
        home: &Arc<Peer>,
        kind: ImportableKind,
        handle: u32,
    ) -> Result<Self, i32> {
        if home.is_self {
            find_existing_object(home, kind, handle).ok_or(libc::ENOENT)?;
            Ok(Self::OwnImported(nic, kind, handle))
        } else {
            ImportedObject::new((nic, device), home, kind, handle).map(Self::Imported)
        }
    }

    fn home_kind_and_handle(&self) -> (&'static Nic, &Arc<Peer>, ImportableKind, u32) {
        match self {
            Self::Own(own) => (own.nic, own.nic.this_process(), own.kind, own.handle),
            Self::OwnImported(nic, kind, handle) => (*nic, nic.this_process(), *kind, *handle),
            Self::Imported(import) => (import.nic, &import.home, import.kind, import.handle),
        }
    }

    /// Returns the process that the object belongs to.
    pub(crate) fn home(&self) -> &Arc<Peer> {
        self.home_kind_and_handle().1
    }

    /// Returns the handle that the object has in its process.
    pub(crate) fn handle(&self) -> u32 {
        self.home_kind_and_handle().3
    }

    /// Returns the number that queue pairs and regions of this process use for a protection domain.
    pub(crate) fn pd_number(&self) -> u32 {
        match self {
            Self::Imported(import) => import.pd_number,
            _ => self.handle(),
        }
    }

    /// Returns false once a process that shares the object has destroyed it, or its process has ended.
    pub(crate) fn exists(&self) -> bool {
        let (_, home, kind, handle) = self.home_kind_and_handle();
        find_existing_object(home, kind, handle).is_some()
    }

    /// Returns the counter of objects that this process has made of the shared object, which all processes see.
    pub(crate) fn derived_object_count(&self) -> Option<&AtomicU32> {
        match self {
            Self::Imported(import) => import.derived_object_count(),
            _ => {
                let (_, home, kind, handle) = self.home_kind_and_handle();
                Some(&kind.table_place_for_handle(home, handle)?.home_use_count)
            }
        }
    }

    /// Destroys the object; its process keeps a handle without an object.
    ///
    /// # Errors
    /// `ENOENT` if it has been destroyed, or its process has ended; `EBUSY` while any process has objects made of it.
    pub(crate) fn destroy(&self) -> Result<(), i32> {
        let (nic, home, kind, handle) = self.home_kind_and_handle();
        destroy_object_of(nic, home, kind, handle)
    }
}

/// Returns the object of `home` with that handle, unless it has been destroyed or its process has ended.
fn find_existing_object(
    home: &Peer,
    kind: ImportableKind,
    handle: u32,
) -> Option<&ImportableObjectShared> {
    if handle == 0 || handle >= IMPORTED_PD_BIT || home.kernel_says_ended() {
        return None;
    }
    let place = kind.table_place_for_handle(home, handle)?;
    (place.handle.load(Ordering::Acquire) == handle).then_some(place)
}

/// Destroys an object of `home`, as [`SharedObject::destroy`].
fn destroy_object_of(nic: &Nic, home: &Peer, kind: ImportableKind, handle: u32) -> Result<(), i32> {
    let object = find_existing_object(home, kind, handle).ok_or(libc::ENOENT)?;
    let importers_use_it = || {
        has_objects_imported_by_others(home)
            && nic.fabric.live_processes().iter().any(|peer| {
                imports_of_object(peer, home, kind, handle)
                    .any(|import| import.local_use_count.load(Ordering::Acquire) != 0)
                    && !peer.kernel_says_ended()
            })
    };
    if object.home_use_count.load(Ordering::Acquire) != 0 || importers_use_it() {
        return Err(libc::EBUSY);
    }
    let destroyed = object.handle.compare_exchange(
        handle,
        OBJECT_DESTROYED,
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
    destroyed.map(drop).map_err(|_| libc::ENOENT)
}

/// Returns true if another process has imported an object of `peer`.
fn has_objects_imported_by_others(peer: &Peer) -> bool {
    peer.segment
        .header()
        .is_imported_by_others
        .load(Ordering::Acquire)
        != 0
}

/// Returns the imports of `peer` that stand for an object of `home`.
fn imports_of_object<'p>(
    peer: &'p Peer,
    home: &'p Peer,
    kind: ImportableKind,
    handle: u32,
) -> impl Iterator<Item = &'p ImportShared> {
    let used = peer
        .segment
        .header()
        .import_slots_end
        .load(Ordering::Acquire);
    let used = usize::try_from(used).unwrap_or(0).min(MAX_IMPORTS);
    (0..used)
        .filter_map(|index| peer.segment.import(index))
        .filter(move |import| {
            import.home_incarnation.load(Ordering::Acquire) == home.incarnation
                && import.kind.load(Ordering::Relaxed) == kind.code()
                && import.home_handle.load(Ordering::Relaxed) == handle
        })
}

/// Returns the home of protection domain `number` of `peer`, and the domain's handle there.
fn home_of_pd(nic: &Nic, peer: &Arc<Peer>, number: u32) -> Option<(Arc<Peer>, u32)> {
    if number & IMPORTED_PD_BIT == 0 {
        return Some((Arc::clone(peer), number));
    }
    let import = import_of_pd(peer, number)?;
    let incarnation = import.home_incarnation.load(Ordering::Acquire);
    let home = nic
        .fabric
        .peer(import.home_slot.load(Ordering::Relaxed) as usize)?;
    (home.incarnation == incarnation).then(|| (home, import.home_handle.load(Ordering::Relaxed)))
}

/// Returns the import that gave a protection domain of `peer` its number.
fn import_of_pd(peer: &Peer, number: u32) -> Option<&ImportShared> {
    // `IMPORTED_PD_BIT` is a multiple of the table's length.
    let import = peer.segment.find_import(number as usize % MAX_IMPORTS)?;
    let used = import.home_incarnation.load(Ordering::Acquire) != 0;
    (used && import.local_pd_number.load(Ordering::Relaxed) == number).then_some(import)
}

/// Returns the counter of objects that `peer` has made of its protection domain `number`.
pub(crate) fn pd_derived_object_count(peer: &Peer, number: u32) -> Option<&AtomicU32> {
    if number & IMPORTED_PD_BIT == 0 {
        find_existing_object(peer, ImportableKind::Pd, number).map(|object| &object.home_use_count)
    } else {
        import_of_pd(peer, number).map(|import| &import.local_use_count)
    }
}

/// A region or window of another process, found in a protection domain.
pub(crate) struct FoundRegionOrWindow {
    /// The process that has it.
    pub(crate) owner: Arc<Peer>,
    pub(crate) key_table_index: usize,
}

/// Looks for `key` in the other processes that have protection domain `pd` of `peer`.
#[cold]
pub(crate) fn find_key_in_shared_pd(
    nic: &Nic,
    peer: &Arc<Peer>,
    pd: u32,
    key: u32,
) -> Option<FoundRegionOrWindow> {
    // Larger numbers are those of no domain, which queue pairs without a domain have.
    let shared = pd < OwningPdOrQp::PD_NUMBER_LIMIT
        && (pd & IMPORTED_PD_BIT != 0 || has_objects_imported_by_others(peer));
    if !shared {
        return None;
    }
    let (home, handle) = home_of_pd(nic, peer, pd)?;
    let in_domain = |owner: Arc<Peer>, pd: u32| {
        let (index, mr) = keys::find_slot_of_key(&owner, key)?;
        let belongs = OwningPdOrQp::from_word(mr.owner_pd_or_qp.load(Ordering::Relaxed))
            .pd_number()
            == Some(pd);
        (belongs && !owner.kernel_says_ended()).then_some(FoundRegionOrWindow {
            owner,
            key_table_index: index,
        })
    };
    if home.slot != peer.slot
        && let Some(found) = in_domain(Arc::clone(&home), handle)
    {
        return Some(found);
    }
    let others = nic.fabric.live_processes().into_iter();
    others
        .filter(|other| other.slot != peer.slot && other.slot != home.slot)
        .find_map(|other| {
            let number = imports_of_object(&other, &home, ImportableKind::Pd, handle)
                .map(|import| import.local_pd_number.load(Ordering::Relaxed))
                .next()?;
            in_domain(other, number)
        })
}
