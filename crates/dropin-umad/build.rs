//! Sets the library's version nodes and symbols from `symbols.txt`.

fn main() {
    dropin_exports::write_and_link_exports("libibumad.so.3");
}
