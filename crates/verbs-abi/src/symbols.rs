//! The entry points of libibverbs in a provider's table.

/// Passes the list of entry points to a macro: `for_each_symbol!(path::to::a_macro)`.
///
/// The macro receives
/// `$( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*` with
/// absolute paths to all types. From the list, a loader makes a `dlsym` call for each entry point. A
/// static provider makes a table of its own functions. A layer over another provider makes a wrapper
/// for each entry point.
///
/// ```
/// macro_rules! names {
///     ($( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
///         [$( stringify!($name) ),*]
///     };
/// }
/// assert!(verbs_abi::for_each_symbol!(names).contains(&"ibv_create_qp"));
/// ```
#[macro_export]
macro_rules! for_each_symbol {
    ($($with:tt)*) => {
        $($with)*! {
            /// Lists the devices, and writes their number to `num_devices` unless that is NULL.
            /// Returns NULL and sets errno on failure.
            fn ibv_get_device_list(num_devices: *mut ::std::ffi::c_int) -> *mut *mut $crate::ibv_device;
            /// Frees a list of devices, and all devices in it that were not opened.
            fn ibv_free_device_list(list: *mut *mut $crate::ibv_device);
            /// Returns the name of a device.
            fn ibv_get_device_name(device: *mut $crate::ibv_device) -> *const ::std::ffi::c_char;
            /// Returns the GUID of a device, big-endian.
            fn ibv_get_device_guid(device: *mut $crate::ibv_device) -> u64;
            /// Opens a device. Returns NULL and sets errno on failure.
            fn ibv_open_device(device: *mut $crate::ibv_device) -> *mut $crate::ibv_context;
            /// Closes a device.
            fn ibv_close_device(context: *mut $crate::ibv_context) -> ::std::ffi::c_int;
            /// Waits for the next async event. Returns -1 and sets errno on failure.
            fn ibv_get_async_event(context: *mut $crate::ibv_context, event: *mut $crate::ibv_async_event) -> ::std::ffi::c_int;
            /// Acknowledges an async event.
            fn ibv_ack_async_event(event: *mut $crate::ibv_async_event);
            /// Queries the properties of a device.
            fn ibv_query_device(context: *mut $crate::ibv_context, device_attr: *mut $crate::ibv_device_attr) -> ::std::ffi::c_int;
            /// Queries the properties of a port. The symbol of libibverbs writes only the first 48
            /// bytes. Zero all other bytes before, or call
            /// [`verbs_context::query_port`](crate::verbs_context::query_port) as the header does.
            fn ibv_query_port(context: *mut $crate::ibv_context, port_num: u8, port_attr: *mut $crate::ibv_port_attr) -> ::std::ffi::c_int;
            /// Reads an entry of the GID table.
            fn ibv_query_gid(context: *mut $crate::ibv_context, port_num: u8, index: ::std::ffi::c_int, gid: *mut $crate::ibv_gid) -> ::std::ffi::c_int;
            /// Reads an entry of the P_Key table, big-endian.
            fn ibv_query_pkey(context: *mut $crate::ibv_context, port_num: u8, index: ::std::ffi::c_int, pkey: *mut u16) -> ::std::ffi::c_int;
            /// Allocates a protection domain. Returns NULL and sets errno on failure.
            fn ibv_alloc_pd(context: *mut $crate::ibv_context) -> *mut $crate::ibv_pd;
            /// Deallocates a protection domain.
            fn ibv_dealloc_pd(pd: *mut $crate::ibv_pd) -> ::std::ffi::c_int;
            /// Registers a memory region. This is the exported symbol, not the macro of the same
            /// name. Returns NULL and sets errno on failure.
            fn ibv_reg_mr(pd: *mut $crate::ibv_pd, addr: *mut ::std::ffi::c_void, length: usize, access: ::std::ffi::c_int) -> *mut $crate::ibv_mr;
            /// Changes a memory region: its range, its protection domain or its access rights.
            /// Returns 0, or sets errno and returns an `ibv_rereg_mr_err_code`.
            fn ibv_rereg_mr(mr: *mut $crate::ibv_mr, flags: ::std::ffi::c_int, pd: *mut $crate::ibv_pd, addr: *mut ::std::ffi::c_void, length: usize, access: ::std::ffi::c_int) -> ::std::ffi::c_int;
            /// Deregisters a memory region.
            fn ibv_dereg_mr(mr: *mut $crate::ibv_mr) -> ::std::ffi::c_int;
            /// Creates a completion channel. Returns NULL and sets errno on failure.
            fn ibv_create_comp_channel(context: *mut $crate::ibv_context) -> *mut $crate::ibv_comp_channel;
            /// Destroys a completion channel.
            fn ibv_destroy_comp_channel(channel: *mut $crate::ibv_comp_channel) -> ::std::ffi::c_int;
            /// Creates a CQ of at least `cqe` entries. Returns NULL and sets errno on failure.
            fn ibv_create_cq(context: *mut $crate::ibv_context, cqe: ::std::ffi::c_int, cq_context: *mut ::std::ffi::c_void, channel: *mut $crate::ibv_comp_channel, comp_vector: ::std::ffi::c_int) -> *mut $crate::ibv_cq;
            /// Changes the capacity of a CQ.
            fn ibv_resize_cq(cq: *mut $crate::ibv_cq, cqe: ::std::ffi::c_int) -> ::std::ffi::c_int;
            /// Destroys a CQ, after waiting until its events are acknowledged.
            fn ibv_destroy_cq(cq: *mut $crate::ibv_cq) -> ::std::ffi::c_int;
            /// Waits for the next CQ event of a channel. Returns -1 and sets errno on failure.
            fn ibv_get_cq_event(channel: *mut $crate::ibv_comp_channel, cq: *mut *mut $crate::ibv_cq, cq_context: *mut *mut ::std::ffi::c_void) -> ::std::ffi::c_int;
            /// Acknowledges CQ events.
            fn ibv_ack_cq_events(cq: *mut $crate::ibv_cq, nevents: ::std::ffi::c_uint);
            /// Creates a shared receive queue. Returns NULL and sets errno on failure.
            fn ibv_create_srq(pd: *mut $crate::ibv_pd, srq_init_attr: *mut $crate::ibv_srq_init_attr) -> *mut $crate::ibv_srq;
            /// Changes size or limit of an SRQ.
            fn ibv_modify_srq(srq: *mut $crate::ibv_srq, srq_attr: *mut $crate::ibv_srq_attr, srq_attr_mask: ::std::ffi::c_int) -> ::std::ffi::c_int;
            /// Queries the attributes of an SRQ.
            fn ibv_query_srq(srq: *mut $crate::ibv_srq, srq_attr: *mut $crate::ibv_srq_attr) -> ::std::ffi::c_int;
            /// Destroys an SRQ.
            fn ibv_destroy_srq(srq: *mut $crate::ibv_srq) -> ::std::ffi::c_int;
            /// Creates a QP. Returns NULL and sets errno on failure.
            fn ibv_create_qp(pd: *mut $crate::ibv_pd, qp_init_attr: *mut $crate::ibv_qp_init_attr) -> *mut $crate::ibv_qp;
            /// Queries the attributes of a QP.
            fn ibv_query_qp(qp: *mut $crate::ibv_qp, attr: *mut $crate::ibv_qp_attr, attr_mask: ::std::ffi::c_int, init_attr: *mut $crate::ibv_qp_init_attr) -> ::std::ffi::c_int;
            /// Changes state and attributes of a QP.
            fn ibv_modify_qp(qp: *mut $crate::ibv_qp, attr: *mut $crate::ibv_qp_attr, attr_mask: ::std::ffi::c_int) -> ::std::ffi::c_int;
            /// Destroys a QP.
            fn ibv_destroy_qp(qp: *mut $crate::ibv_qp) -> ::std::ffi::c_int;
            /// Creates an address handle. Returns NULL and sets errno on failure.
            fn ibv_create_ah(pd: *mut $crate::ibv_pd, attr: *mut $crate::ibv_ah_attr) -> *mut $crate::ibv_ah;
            /// Destroys an address handle.
            fn ibv_destroy_ah(ah: *mut $crate::ibv_ah) -> ::std::ffi::c_int;
            /// Attaches a UD QP to a multicast group.
            fn ibv_attach_mcast(qp: *mut $crate::ibv_qp, gid: *const $crate::ibv_gid, lid: u16) -> ::std::ffi::c_int;
            /// Detaches a UD QP from a multicast group.
            fn ibv_detach_mcast(qp: *mut $crate::ibv_qp, gid: *const $crate::ibv_gid, lid: u16) -> ::std::ffi::c_int;
            /// Fills the address vector for replies to the sender of a UD message.
            fn ibv_init_ah_from_wc(context: *mut $crate::ibv_context, port_num: u8, wc: *mut $crate::ibv_wc, grh: *mut $crate::ibv_grh, ah_attr: *mut $crate::ibv_ah_attr) -> ::std::ffi::c_int;
            /// Creates the address handle for replies to the sender of a UD message. NULL with
            /// errno on failure.
            fn ibv_create_ah_from_wc(pd: *mut $crate::ibv_pd, wc: *mut $crate::ibv_wc, grh: *mut $crate::ibv_grh, port_num: u8) -> *mut $crate::ibv_ah;
            /// Prepares registered memory for `fork`.
            fn ibv_fork_init() -> ::std::ffi::c_int;
            /// Returns the text of a completion status.
            fn ibv_wc_status_str(status: $crate::ibv_wc_status) -> *const ::std::ffi::c_char;
            /// Returns the text of an async event type.
            fn ibv_event_type_str(event: $crate::ibv_event_type) -> *const ::std::ffi::c_char;
            /// Returns the text of a node type.
            fn ibv_node_type_str(node_type: $crate::ibv_node_type) -> *const ::std::ffi::c_char;
            /// Returns the text of a port state.
            fn ibv_port_state_str(port_state: $crate::ibv_port_state) -> *const ::std::ffi::c_char;
        }
    };
}

/// Passes the entry points that libibverbs got after version 1.1 to a macro, in the form of
/// [`for_each_symbol!`]. An installed library may lack some of them.
#[macro_export]
macro_rules! for_each_later_symbol {
    ($($with:tt)*) => {
        $($with)*! {
            /// Returns the index of a P_Key (big-endian) in a port's table. Returns -1 and
            /// sets errno on failure.
            fn ibv_get_pkey_index(context: *mut $crate::ibv_context, port_num: u8, pkey: u16) -> ::std::ffi::c_int;
            /// Returns the extended form of a QP, if created with `send_ops_flags`; otherwise NULL.
            fn ibv_qp_to_qp_ex(qp: *mut $crate::ibv_qp) -> *mut $crate::ibv_qp_ex;
            /// Registers a memory region whose addresses start at `iova`. Returns NULL and
            /// sets errno on failure.
            fn ibv_reg_mr_iova(pd: *mut $crate::ibv_pd, addr: *mut ::std::ffi::c_void, length: usize, iova: u64, access: ::std::ffi::c_int) -> *mut $crate::ibv_mr;
            /// Registers a memory region as `ibv_reg_mr_iova` does, with optional access flags.
            fn ibv_reg_mr_iova2(pd: *mut $crate::ibv_pd, addr: *mut ::std::ffi::c_void, length: usize, iova: u64, access: ::std::ffi::c_uint) -> *mut $crate::ibv_mr;
            /// Registers a dma-buf. Returns NULL and sets errno on failure.
            fn ibv_reg_dmabuf_mr(pd: *mut $crate::ibv_pd, offset: u64, length: usize, iova: u64, fd: ::std::ffi::c_int, access: ::std::ffi::c_int) -> *mut $crate::ibv_mr;
            /// Returns the kernel's index of a device, or -1.
            fn ibv_get_device_index(device: *mut $crate::ibv_device) -> ::std::ffi::c_int;
            /// Opens the device of another process's context. Returns NULL and sets errno
            /// on failure.
            fn ibv_import_device(cmd_fd: ::std::ffi::c_int) -> *mut $crate::ibv_context;
            /// Imports a protection domain by its handle. Returns NULL and sets errno on failure.
            fn ibv_import_pd(context: *mut $crate::ibv_context, pd_handle: u32) -> *mut $crate::ibv_pd;
            /// Releases an imported protection domain.
            fn ibv_unimport_pd(pd: *mut $crate::ibv_pd);
            /// Imports a memory region by its handle. Returns NULL and sets errno on failure.
            fn ibv_import_mr(pd: *mut $crate::ibv_pd, mr_handle: u32) -> *mut $crate::ibv_mr;
            /// Releases an imported memory region.
            fn ibv_unimport_mr(mr: *mut $crate::ibv_mr);
            /// Imports device memory by its handle. Returns NULL and sets errno on failure.
            fn ibv_import_dm(context: *mut $crate::ibv_context, dm_handle: u32) -> *mut $crate::ibv_dm;
            /// Releases imported device memory.
            fn ibv_unimport_dm(dm: *mut $crate::ibv_dm);
            /// Queries the options of enhanced connection establishment of a QP.
            fn ibv_query_ece(qp: *mut $crate::ibv_qp, ece: *mut $crate::ibv_ece) -> ::std::ffi::c_int;
            /// Sets options of enhanced connection establishment.
            fn ibv_set_ece(qp: *mut $crate::ibv_qp, ece: *mut $crate::ibv_ece) -> ::std::ffi::c_int;
            /// Reads an entry of the GID table with its type; called by the inline
            /// `ibv_query_gid_ex`.
            fn _ibv_query_gid_ex(context: *mut $crate::ibv_context, port_num: u32, gid_index: u32, entry: *mut $crate::ibv_gid_entry, flags: u32, entry_size: usize) -> ::std::ffi::c_int;
            /// Reads the valid entries of the GID tables of all ports; called by the inline
            /// `ibv_query_gid_table`. Returns their number, or a negative errno.
            fn _ibv_query_gid_table(context: *mut $crate::ibv_context, entries: *mut $crate::ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize) -> isize;
            /// Returns one of `ibv_fork_status`: whether forking is safe.
            fn ibv_is_fork_initialized() -> $crate::ibv_fork_status;
            /// Returns 1 if the data of an operation is written in the order of its addresses,
            /// otherwise 0.
            fn ibv_query_qp_data_in_order(qp: *mut $crate::ibv_qp, op: $crate::ibv_wr_opcode, flags: u32) -> ::std::ffi::c_int;
            /// Returns the type of a GID as sysfs names it: 0 for InfiniBand and RoCEv1, 1 for
            /// RoCEv2. Private to rdma-core, but called by its programs. Returns -1 and sets errno
            /// on failure.
            fn ibv_query_gid_type(context: *mut $crate::ibv_context, port_num: u8, index: ::std::ffi::c_uint, gid_type: *mut u32) -> ::std::ffi::c_int;
        }
    };
}

macro_rules! declare_later_symbols {
    ($( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        /// The entry points of libibverbs that came after version 1.1, each under its name, as in
        /// [`Symbols`].
        ///
        /// Generated from [`for_each_later_symbol!`](crate::for_each_later_symbol).
        #[derive(Clone, Copy, Debug)]
        pub struct LaterSymbols {
            $( $(#[$meta])* pub $name: unsafe extern "C" fn($( $arg: $type ),*) $(-> $ret)?, )*
        }

        impl LaterSymbols {
            /// Names of the symbols, in the order of the fields.
            pub const NAMES: &'static [&'static str] = &[$( stringify!($name) ),*];
        }
    };
}

for_each_later_symbol!(declare_later_symbols);

macro_rules! declare_symbols {
    ($( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        /// A provider: the entry points of libibverbs, each under its name.
        ///
        /// Every provider is such a table. The software NIC fills it with its own functions, and
        /// the system provider with the results of `dlsym` in the machine's libibverbs. Callers use
        /// the functions as C code calls libibverbs, under the rules of the man page of the field's
        /// name. Objects of one table must not be passed to another. Functions that are inline in
        /// the C header ([`ibv_post_send`](crate::ibv_post_send) …) are not in the table, since
        /// they call the object's context.
        ///
        /// Unless documented otherwise, functions that return `int` return 0 or an errno.
        ///
        /// Generated from [`for_each_symbol!`](crate::for_each_symbol).
        #[derive(Clone, Copy, Debug)]
        pub struct Symbols {
            $( $(#[$meta])* pub $name: unsafe extern "C" fn($( $arg: $type ),*) $(-> $ret)?, )*
        }

        impl Symbols {
            /// Names of the symbols, in the order of the fields.
            pub const NAMES: &'static [&'static str] = &[$( stringify!($name) ),*];
        }
    };
}

for_each_symbol!(declare_symbols);
