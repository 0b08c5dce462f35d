//! Measurements of one verb at a time, with every parameter that its cost depends on.
//!
//! A [`VerbStream`] keeps windows of WRs outstanding and measures a rate. A [`PingPong`] has one
//! message under way and measures a latency. Both run for a time instead of a count, so that a NIC
//! that is a hundred times slower takes no longer. Both check every message or, for RDMA WRITEs,
//! the last message of each slot. [`compare_nics`] runs the same on two NICs and compares them with
//! `perftest`.

pub mod compare_nics;
mod credit;
pub(crate) mod lanes;
mod model;
pub(crate) mod one_core;
mod one_sided;
pub(crate) mod outcome;
pub(crate) mod parameters;
mod payload_form;
mod ping;
mod receiver;
mod receiver_result;
mod requests;
mod selective_signaling;
mod send_rates;
mod sender;
mod shared_atomic_counters;
mod sides;
pub(crate) mod task;
#[cfg(test)]
mod tests;
pub(crate) mod timer;
mod transport;
pub(crate) mod verb;
pub(crate) mod worker_pool;
mod wr_window;

pub(crate) use self::lanes::combine_lane_results;
pub use self::outcome::{PingPongLatency, StreamRate, TaskResult};
pub use self::parameters::{
    MAX_ATOMIC_COUNTERS, MAX_COUNTER_SPACING_BYTES, MAX_DEFAULT_INLINE_BYTES, MAX_PAYLOAD_BYTES,
    MAX_QUEUE_PAIRS_PER_THREAD, MAX_THREADS, MAX_WINDOW, MeasuredRole, MicroParameters, VerbStream,
};
pub(crate) use self::shared_atomic_counters::{SharedAtomicCounters, fail_if_wrong};
pub(crate) use self::sides::{run_measured_side, run_other_side};
pub use self::task::{MeasurementTask, PingPong};
pub use self::verb::Verb;
pub use self::worker_pool::WorkerPool;
pub use crate::open_nic::RegionPageSize;
