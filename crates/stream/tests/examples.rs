//! Runs the examples of this crate.

#[path = "../examples/http.rs"]
mod http;

#[test]
fn http() {
    http::main().expect("it runs");
}
