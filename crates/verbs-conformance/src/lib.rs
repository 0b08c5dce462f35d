//! The semantics of verbs as tests, written once and run on every provider.
//!
//! - [`tests`] is the suite. Each [`SuiteTest`] is a few lines that use [`TestEnv`], which names a provider (a table
//!   of libibverbs entry points) and one of its devices. The suite does not depend on the NIC on which it
//!   runs.
//! - [`harness::main`] runs tests, each in its own process, so that a crash or a hang of the NIC is the
//!   failure of one test. Its output has the format of libtest.
//! - The test programs are `tests/softnic.rs` (the software NIC, both link layers) and `tests/system.rs` (the
//!   machine's own libibverbs, if `VERBATIM_TEST_DEVICE` names a device). The program `verbs-conformance`
//!   runs the suite by hand on any provider.
//! - `tests/kills.rs` and `tests/fabric.rs` test features of the software NIC only: killed processes, and
//!   invalid files in shared memory.
//!
//! Where the specification permits several answers, a test accepts all of these answers and states them. If a
//! NIC lacks a capability, the run excludes the capability by name ([`NicCapability`], `--without uc`). No test is
//! skipped silently, because the suite does not rely on the capabilities that the NIC reports. Known errors
//! of a device are in a list ([`Deviations`]): a listed test runs, and must fail as listed.
//!
//! Layers, bottom up: [`memory`] and [`objects`] hold all unsafe code and make verbs objects that destroy
//! themselves. [`wr`] builds work requests, [`pair`] builds connected queue pairs, and `suite` holds the
//! tests. [`child_processes`] and [`worker`] are the other processes of tests with several processes.

#![deny(unsafe_code)]

pub mod child_processes;
mod deviations;
pub mod harness;
#[allow(unsafe_code)]
pub mod memory;
#[allow(unsafe_code)]
pub mod memory_window;
#[allow(unsafe_code)]
pub mod objects;
pub mod pair;
mod progress_notes;
#[allow(unsafe_code)]
mod provider;
#[allow(unsafe_code)]
pub mod raw_packet;
mod rng;
mod role;
#[allow(unsafe_code)]
mod signals;
mod suite;
#[allow(unsafe_code)]
pub mod tag_matching;
mod test_env;
pub mod worker;
#[allow(unsafe_code)]
pub mod wr;
#[allow(unsafe_code)]
pub mod xrc;

pub use deviations::{Deviation, DeviationKind, Deviations, PlaceInPair};
pub use provider::{ProviderKind, load_system};
pub use rng::{Rng, pattern};
pub use suite::tests;
pub use test_env::{
    NicCapability, PeerDevice, Settings, SuiteTest, TestEnv, TestOutcome, UnknownCapabilityName,
};
