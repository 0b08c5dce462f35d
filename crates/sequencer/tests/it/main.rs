//! Servers and clients, as threads and as processes. All tests are in one binary to save link time.

mod bad_input;
mod common;
mod designs;
mod limited;
mod restart;

/// Entry point of the child processes of these tests.
#[test]
fn child_main() {
    common::child_main();
}
