//! Servers and clients, as threads and as processes. All in one binary, since each is linked anew.

mod bad_input;
mod common;
mod designs;
mod limited;
mod restart;

/// What a process of these tests runs instead of tests.
#[test]
fn child_main() {
    common::child_main();
}
