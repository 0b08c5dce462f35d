//! Gives the library its version nodes and symbols: `symbols.txt` says which.

fn main() {
    dropin_exports::link("librdmacm.so.1");
}
