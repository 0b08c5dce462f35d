//! Imports of existing objects: `ibv_import_pd(3)`, `ibv_import_mr(3)`, `ibv_import_dm(3)`, within one
//! process.
//!
//! After an object is destroyed through one handle, its other handles refer to nothing and can only be
//! unimported. A handle is therefore live until it is unimported. An object still exists after all its
//! handles were unimported: at the end it is imported again and destroyed.

use std::ffi::c_int;
use std::ptr::null_mut;

use super::import_records::means_destroyed_elsewhere;
use super::object_place::store_object;
use super::objects::{World, extended};
use super::sizes::PLACES_PER_KIND;
use crate::input::DecisionBytes;

impl World<'_> {
    /// Returns the kernel handle to import: mostly of an existing object, sometimes of none.
    fn handle_to_import(input: &mut DecisionBytes<'_>, of: Option<u32>) -> u32 {
        match (of, input.next_byte()) {
            (Some(handle), 0..=239) => handle,
            (Some(handle), byte @ 240..=247) => handle.wrapping_add(u32::from(byte)),
            _ => input.next_u32(),
        }
    }

    pub(super) unsafe fn import_or_unimport_object(&mut self, input: &mut DecisionBytes<'_>) {
        let later = self.tables.later_symbols;
        let context = if input.one_in(16) {
            null_mut()
        } else {
            self.device.context
        };
        // SAFETY: as in `make_pd`; the fields of live handles are readable.
        unsafe {
            match input.index_below(6) {
                0 => {
                    let (from, place) = (
                        input.index_below(PLACES_PER_KIND),
                        input.index_below(PLACES_PER_KIND),
                    );
                    let of = self.pds[from].live_handle().as_ref().map(|pd| pd.handle);
                    let handle = Self::handle_to_import(input, of);
                    if !self.pds[place].is_live {
                        let made = (later.ibv_import_pd)(context, handle);
                        store_object(&mut self.pds, place, made);
                    }
                }
                1 => {
                    let place = &mut self.pds[input.index_below(PLACES_PER_KIND)];
                    self.imports
                        .unimported_pds
                        .extend(place.live_handle().as_ref().map(|pd| pd.handle));
                    (later.ibv_unimport_pd)(place.handle);
                    place.is_live = false;
                }
                2 => self.import_mr(input),
                3 => self.unimport_mr(input.index_below(PLACES_PER_KIND)),
                4 => {
                    let (from, place) = (input.index_below(2), input.index_below(2));
                    let of = self.dms[from].live_handle().as_ref().map(|dm| dm.handle);
                    let handle = Self::handle_to_import(input, of);
                    if !self.dms[place].is_live {
                        let made = (later.ibv_import_dm)(context, handle);
                        store_object(&mut self.dms, place, made);
                    }
                }
                _ => {
                    let place = &mut self.dms[input.index_below(2)];
                    self.imports
                        .unimported_dms
                        .extend(place.live_handle().as_ref().map(|dm| dm.handle));
                    (later.ibv_unimport_dm)(place.handle);
                    place.is_live = false;
                }
            }
        }
    }

    unsafe fn import_mr(&mut self, input: &mut DecisionBytes<'_>) {
        let (from, place) = (
            input.index_below(PLACES_PER_KIND),
            input.index_below(PLACES_PER_KIND),
        );
        let pd = self.pds[input.index_below(PLACES_PER_KIND)].handle;
        // SAFETY: as in `import`.
        unsafe {
            let of = self.mrs[from].live_handle().as_ref().map(|mr| mr.handle);
            let handle = Self::handle_to_import(input, of);
            if self.mrs[place].is_live {
                return;
            }
            let made = (self.tables.later_symbols.ibv_import_mr)(pd, handle);
            store_object(&mut self.mrs, place, made);
            self.imports.is_imported_mr[place] = true;
            self.imports.is_mr_destroyed_by_other_handle[place] = false;
            if let Some(mr) = made.as_ref() {
                assert!(mr.addr.is_null() && mr.handle == handle);
            }
        }
        self.mr_ranges[place] = self.mr_ranges[from];
    }

    /// Records that a region was registered in a place.
    pub(super) fn record_registered_mr(&mut self, place: usize) {
        self.imports.is_imported_mr[place] = false;
        self.imports.is_mr_destroyed_by_other_handle[place] = false;
    }

    /// Records the result of a region's destruction, after which its other handles refer to nothing.
    pub(super) fn record_deregistered_mr(&mut self, place: usize, handle: u32, errno: c_int) {
        if errno != 0 {
            return;
        }
        for other in (0..PLACES_PER_KIND).filter(|&other| other != place) {
            // SAFETY: the fields of a live handle are readable.
            let mr = unsafe { self.mrs[other].live_handle().as_ref() };
            if mr.is_some_and(|mr| mr.handle == handle) {
                self.imports.is_mr_destroyed_by_other_handle[other] = true;
            }
        }
    }

    /// Unimports a region's handle. A handle that was registered and not destroyed stays live: only
    /// destroying the region ends it.
    unsafe fn unimport_mr(&mut self, place: usize) {
        // SAFETY: as in `import`.
        unsafe { (self.tables.later_symbols.ibv_unimport_mr)(self.mrs[place].handle) };
        if self.imports.is_imported_mr[place] || self.imports.is_mr_destroyed_by_other_handle[place]
        {
            self.mrs[place].is_live = false;
        }
    }

    /// Destroys the regions, and unimports the handles of regions that were destroyed through other handles.
    pub(super) unsafe fn end_mrs(&mut self) {
        for place in 0..PLACES_PER_KIND {
            // SAFETY: as in `import`.
            unsafe {
                let Some(handle) = self.mrs[place].live_handle().as_ref().map(|mr| mr.handle)
                else {
                    continue;
                };
                let errno = (self.tables.symbols.ibv_dereg_mr)(self.mrs[place].handle);
                self.mrs[place].record_destroy_result(errno);
                self.record_deregistered_mr(place, handle, errno);
                if errno != 0 {
                    assert!(
                        self.imports.is_mr_destroyed_by_other_handle[place],
                        "a region is in use: {errno}"
                    );
                    self.unimport_mr(place);
                }
            }
        }
    }

    /// Destroys the remaining domains and device memory, through any handle.
    pub(super) unsafe fn destroy_remaining_pds_and_dms(&mut self) {
        let later = self.tables.later_symbols;
        let verbs = self.tables.symbols;
        let context = self.device.context;
        // SAFETY: as in `import`.
        unsafe {
            for dm in self.dms.iter_mut().filter(|dm| dm.is_live) {
                let errno = extended!(self.free_dm(dm.handle)).unwrap_or(libc::EOPNOTSUPP);
                if errno != 0 {
                    assert!(
                        means_destroyed_elsewhere(errno),
                        "device memory is in use: {errno}"
                    );
                    (later.ibv_unimport_dm)(dm.handle);
                }
                dm.is_live = false;
            }
            for handle in std::mem::take(&mut self.imports.unimported_dms) {
                let dm = (later.ibv_import_dm)(context, handle);
                if !dm.is_null() {
                    let errno = extended!(self.free_dm(dm)).unwrap_or(libc::EOPNOTSUPP);
                    assert_eq!(errno, 0, "device memory is in use");
                }
            }
            // Destroy parent domains before the domains that they were made of, with as many passes as there
            // are domains.
            for last in [false, false, false, true] {
                for pd in self.pds.iter_mut().filter(|pd| pd.is_live) {
                    let errno = (verbs.ibv_dealloc_pd)(pd.handle);
                    pd.record_destroy_result(errno);
                    if means_destroyed_elsewhere(errno) {
                        (later.ibv_unimport_pd)(pd.handle);
                        pd.is_live = false;
                    }
                    assert!(!last || !pd.is_live, "a domain is in use: {errno}");
                }
            }
            for handle in std::mem::take(&mut self.imports.unimported_pds) {
                let pd = (later.ibv_import_pd)(context, handle);
                if !pd.is_null() {
                    let errno = (verbs.ibv_dealloc_pd)(pd);
                    assert_eq!(errno, 0, "a domain is in use");
                }
            }
        }
    }
}
