//! The device under test.

use std::ffi::c_int;

use verbs_abi::*;

use crate::tables::ProviderTables;

/// The device under test, opened once.
pub(crate) struct Device {
    pub(super) context: *mut ibv_context,
    /// Two more contexts, for raw packets.
    pub(super) raw_packet_contexts: [*mut ibv_context; 2],
    pub(super) has_ethernet: bool,
    pub(super) lid: u16,
}

// SAFETY: any thread may use a context (libibverbs is thread safe).
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn open(tables: ProviderTables) -> Self {
        let verbs = tables.symbols;
        // SAFETY: the calls follow the man pages, and all results are writable.
        unsafe {
            let mut count = 0;
            let list = (verbs.ibv_get_device_list)(&raw mut count);
            assert!(!list.is_null() && count > 0, "the provider has no device");
            let [context, a, b] = [(); 3].map(|()| (verbs.ibv_open_device)(*list));
            assert!(
                !context.is_null() && !a.is_null() && !b.is_null(),
                "the device opens"
            );
            (verbs.ibv_free_device_list)(list);
            set_nonblocking((*context).async_fd);
            let mut port = ibv_port_attr::zeroed();
            assert_eq!((verbs.ibv_query_port)(context, 1, &raw mut port), 0);
            Self {
                context,
                raw_packet_contexts: [a, b],
                has_ethernet: port.link_layer == IBV_LINK_LAYER_ETHERNET,
                lid: port.lid,
            }
        }
    }
}

/// Makes reads of a descriptor non-blocking.
pub(super) fn set_nonblocking(fd: c_int) {
    // SAFETY: only the descriptor's flags change.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}
