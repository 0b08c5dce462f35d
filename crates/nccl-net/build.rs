//! Links the plugin so that `dlclose` does not unload it.

fn main() {
    // NCCL closes a plugin with its last communicator, and opens it again later. The software NIC
    // has a thread and keys of thread-local storage, whose code must not be unmapped. With this
    // flag, `dlclose` leaves the library in place, and `dlopen` finds it again with its state
    // (`ld(1)`, `-z nodelete`).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
