//! Accesses to memory that may not be there.
//!
//! A NIC goes on when a program has unmapped what a work request names; a CPU gets a SIGSEGV. To ask the
//! kernel before each copy costs a hundred times what the copy does. So the instructions that touch a
//! program's memory stand in a table, each with the place where it goes on when it faults, as those of the
//! kernel do that touch memory of processes. The handler of the signal looks the instruction up, and hands what
//! is not in the table to the handler that was there before. Where nothing faults, this costs nothing.
//!
//! A thread that blocks SIGSEGV, and a program that sets a handler of its own later and does not call the one that
//! it replaces, are without it: such a fault ends the process.

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::{guarded, install};

/// Elsewhere a fault ends the process.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn install() {}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::Once;
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

    /// Instructions any of which may fault: the value is false if one did, and then those behind it were not executed. They
    /// change no memory but what they are given, and neither the stack nor the direction flag; of registers they change
    /// those that are named as `out`, as values that are not used.
    macro_rules! guarded {
        ([$($instruction:expr),+ $(,)?], $($operands:tt)*) => {
            'accessed: {
                std::arch::asm!(
                    "2:",
                    $($instruction,)+
                    "3:",
                    // "R": nothing in the program names it.
                    ".pushsection softnic_faults, \"aR\", @progbits",
                    ".balign 4",
                    ".long 2b - ., 3b - ., {landing} - .",
                    ".popsection",
                    $($operands)*
                    landing = label { break 'accessed false },
                    options(nostack)
                );
                true
            }
        };
    }
    pub(in crate::mem) use guarded;

    /// A line of the table; each field counts from its own address.
    #[repr(C)]
    struct Entry {
        begin: i32,
        end: i32,
        landing: i32,
    }

    unsafe extern "C" {
        /// Made by the linker, around all sections of that name.
        static __start_softnic_faults: [Entry; 0];
        static __stop_softnic_faults: [Entry; 0];
    }

    /// Where to go on after a fault at `ip`.
    fn landing(ip: usize) -> Option<usize> {
        let mut entry = (&raw const __start_softnic_faults).cast::<Entry>();
        let stop = (&raw const __stop_softnic_faults).cast::<Entry>();
        while entry < stop {
            let at = |field: *const i32| {
                // SAFETY: within the section, which holds entries only.
                let offset = unsafe { field.read() };
                field.addr().wrapping_add_signed(offset as isize)
            };
            // SAFETY: as above; `entry` is not behind the last one.
            let (begin, end, landing) = unsafe {
                (
                    &raw const (*entry).begin,
                    &raw const (*entry).end,
                    &raw const (*entry).landing,
                )
            };
            if (at(begin)..at(end)).contains(&ip) {
                return Some(at(landing));
            }
            entry = entry.wrapping_add(1);
        }
        None
    }

    const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

    /// What was there before, for each of [`SIGNALS`]: `sa_sigaction` and `sa_flags`.
    static BEFORE: [(AtomicUsize, AtomicI32); 2] =
        [const { (AtomicUsize::new(libc::SIG_DFL), AtomicI32::new(0)) }; 2];

    /// Sets the handler, once.
    pub(in crate::mem) fn install() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
                let mut old = MaybeUninit::<libc::sigaction>::uninit();
                // SAFETY: asks only; `old` is large enough.
                if unsafe { libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) } != 0 {
                    continue;
                }
                // SAFETY: the call has filled it.
                let old = unsafe { old.assume_init() };
                before.0.store(old.sa_sigaction, Ordering::Relaxed);
                before.1.store(old.sa_flags, Ordering::Relaxed);
                let mut new = old;
                new.sa_sigaction = handler as *const () as usize;
                // On the stack that the thread has set up for it, if any: who is called from here may need that.
                new.sa_flags =
                    (old.sa_flags | libc::SA_SIGINFO | libc::SA_ONSTACK) & !libc::SA_RESETHAND;
                // SAFETY: `handler` is async-signal-safe, and the library that it is in stays loaded.
                unsafe { libc::sigaction(signal, &raw const new, ptr::null_mut()) };
            }
        });
    }

    extern "C" fn handler(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        // SAFETY: the kernel gives a handler of SA_SIGINFO both, for as long as it runs.
        let (sent, ip) = unsafe {
            let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
            (
                (*info).si_code <= 0,
                &mut machine.gregs[libc::REG_RIP as usize],
            )
        };
        #[allow(clippy::cast_sign_loss, clippy::cast_possible_wrap)] // addresses
        if !sent && let Some(landing) = landing(*ip as usize) {
            *ip = landing as i64;
            return;
        }
        hand_on(signal, info, context, sent);
    }

    /// Does with a signal that is not ours what would have been done without us.
    fn hand_on(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
        sent: bool,
    ) {
        let which = usize::from(signal != libc::SIGSEGV);
        let action = BEFORE[which].0.load(Ordering::Relaxed);
        let flags = BEFORE[which].1.load(Ordering::Relaxed);
        if flags & libc::SA_RESETHAND != 0 {
            BEFORE[which].0.store(libc::SIG_DFL, Ordering::Relaxed);
        }
        match action {
            libc::SIG_IGN if sent => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: async-signal-safe both. A fault happens again when the handler returns; a signal that
                // somebody sent is sent again.
                unsafe {
                    libc::signal(signal, libc::SIG_DFL);
                    if sent {
                        libc::raise(signal);
                    }
                }
            }
            _ if flags & libc::SA_SIGINFO != 0 => {
                type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                // SAFETY: a handler that was set as one with three arguments.
                let action = unsafe { std::mem::transmute::<usize, Action>(action) };
                action(signal, info, context);
            }
            _ => {
                type Action = extern "C" fn(libc::c_int);
                // SAFETY: a handler that was set as one with one argument.
                let action = unsafe { std::mem::transmute::<usize, Action>(action) };
                action(signal);
            }
        }
    }
}
