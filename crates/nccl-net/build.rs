//! Links the plugin so that it stays in the process.

fn main() {
    // NCCL closes a plugin when its last communicator is gone and opens it again later. The software NIC has a thread and
    // keys of thread-local storage whose code must not be unmapped: `dlclose` leaves a library with this flag where it is,
    // and `dlopen` finds it again with its state (`ld(1)`, `-z nodelete`).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
