//! Sets the library's version nodes and symbols from `symbols.txt`.

fn main() {
    dropin_exports::link("libibumad.so.3");
}
