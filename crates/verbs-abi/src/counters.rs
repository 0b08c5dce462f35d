//! Counters attached to flows.

use crate::context::ibv_context;

c_consts! {
    /// The quantity that a counter counts: [`ibv_counter_attach_attr::counter_desc`].
    enum ibv_counter_description: u32 {
        IBV_COUNTER_PACKETS = 0,
        IBV_COUNTER_BYTES = 1,
    }

    /// Flags of `ibv_read_counters`.
    enum ibv_read_counters_flags: u32 {
        IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1 << 0,
    }
}

c_types! {
    /// Attributes for the creation of counters: `ibv_create_counters(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_counters_init_attr {
        comp_mask: u32,
    }

    /// A set of counters that flows can be attached to.
    #[derive(Clone, Copy, Debug)]
    struct ibv_counters {
        context: *mut ibv_context,
    }

    /// The counter of a set that a flow feeds: `ibv_attach_counters_point_flow(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_counter_attach_attr {
        counter_desc: ibv_counter_description,
        index: u32,
        comp_mask: u32,
    }
}
