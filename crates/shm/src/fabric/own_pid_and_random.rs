//! This process's pid, and random numbers.

/// Returns the pid of this process.
pub fn own_pid() -> u64 {
    u64::from(std::process::id())
}

/// Returns a random number that is not 0.
pub fn random_nonzero() -> u64 {
    loop {
        // The kernel's generator does not fail after boot. If it does, the address of a local and the time
        // still make incarnations differ and keep keys hard to guess.
        let n = getrandom::u64().unwrap_or_else(|_| {
            let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let local = 0u8;
            (std::ptr::from_ref(&local).addr() as u64) ^ t.tv_nsec.cast_unsigned().rotate_left(32)
        });
        if n != 0 {
            return n;
        }
    }
}
