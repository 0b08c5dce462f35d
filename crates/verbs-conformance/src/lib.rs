//! The semantics of verbs as tests, written once and run on every provider.
//!
//! - [`tests`] is the suite: each [`Test`] is a few lines against [`Env`], which names a provider (a table
//!   of libibverbs entry points) and a device of it. Nothing in it knows which NIC it runs on.
//! - [`harness::main`] runs tests, each in a process of its own: a crash or a hang of the NIC is the failure
//!   of one test. Its output is that of libtest.
//! - The instances are `tests/softnic.rs` (the software NIC, both link layers), `tests/system.rs` (the
//!   machine's own libibverbs, when `VERBATIM_TEST_DEVICE` names a device) and the program
//!   `verbs-conformance` (any provider, by hand).
//! - `tests/kills.rs` and `tests/fabric.rs` test what only the software NIC has: processes that are killed,
//!   and files in shared memory that are not what they should be.
//!
//! Where the specification leaves a choice, a test accepts every answer that it allows and says so. Where
//! a NIC lacks something, the run excludes the capability by name ([`Cap`], `--without uc`); nothing is
//! skipped silently, because the NIC's own word is not asked. What a device is known to do wrong stands in
//! its list ([`Deviations`]): a test that is listed there runs, and must fail as listed.
//!
//! Layers, bottom up: [`memory`] and [`objects`] hold all unsafe code and make verbs objects that clean up
//! after themselves; [`wr`] builds work requests; [`pair`] builds connected queue pairs; `suite` holds the
//! tests; [`peer`] and [`worker`] are the other processes of tests that need some.

#![deny(unsafe_code)]

mod deviations;
mod env;
pub mod harness;
#[allow(unsafe_code)]
pub mod memory;
mod notes;
#[allow(unsafe_code)]
pub mod objects;
pub mod pair;
pub mod peer;
#[allow(unsafe_code)]
mod provider;
#[allow(unsafe_code)]
pub mod raw;
mod rng;
mod role;
mod suite;
#[allow(unsafe_code)]
pub mod tags;
#[allow(unsafe_code)]
pub mod window;
pub mod worker;
#[allow(unsafe_code)]
pub mod wr;
#[allow(unsafe_code)]
pub mod xrc;

pub use deviations::{Deviation, Deviations, Kind};
pub use env::{Cap, Env, Outcome, Settings, Test, UnknownCap};
pub use provider::{ProviderKind, load_system};
pub use rng::{Rng, pattern};
pub use suite::tests;
