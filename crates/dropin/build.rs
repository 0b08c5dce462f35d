//! Sets the library's version nodes and symbols from `symbols.txt`.

fn main() {
    dropin_exports::link("libibverbs.so.1");
}
