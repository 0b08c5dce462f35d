//! The own process, and numbers that others cannot guess.

/// The own pid.
pub fn own_pid() -> u64 {
    u64::from(std::process::id())
}

/// A number that is random and not 0.
pub fn random_nonzero() -> u64 {
    loop {
        // The kernel's generator does not fail after boot; should it, the address of a local and the time
        // still make incarnations differ, and keys stay hard to guess for other processes.
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
