//! Guarded accesses: accesses to memory that may be unmapped.
//!
//! If a program has unmapped the memory that a work request names, a NIC reports an error, but a CPU raises
//! SIGSEGV. Asking the kernel before each copy would cost a hundred times as much as the copy. The
//! instructions that access a program's memory are therefore listed in a table, each with the address at
//! which execution continues after a fault. The kernel uses the same method (exception tables) for accesses
//! to user memory.
//!
//! The signal handler looks up the faulting instruction. A fault of any other instruction is passed to the
//! handler that was installed before. Without faults the method costs nothing.
//!
//! A fault ends the process in two cases. Either the thread blocks SIGSEGV, or the program has later installed a
//! handler that does not call the previous one.

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::{guarded, install_fault_handlers};

/// On other architectures accesses are not guarded, and a fault ends the process.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn install_fault_handlers() {}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::Once;
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

    /// Executes instructions that may fault. The value is false if an instruction faulted; later
    /// instructions were then not executed.
    ///
    /// The instructions change no memory except their operands, and neither the stack nor the
    /// direction flag. They change only registers that are declared as `out`, whose values are not
    /// used.
    macro_rules! guarded {
        ([$($instruction:expr),+ $(,)?], $($operands:tt)*) => {
            'accessed: {
                std::arch::asm!(
                    "2:",
                    $($instruction,)+
                    "3:",
                    // "R" (retain): no code references the section.
                    ".pushsection softnic_faults, \"aR\", @progbits",
                    ".balign 4",
                    ".long 2b - ., 3b - ., {resume_address} - .",
                    ".popsection",
                    $($operands)*
                    resume_address = label { break 'accessed false },
                    options(nostack)
                );
                true
            }
        };
    }
    pub(in crate::mem) use guarded;

    /// An entry of the exception table; each field is an offset from the field's own address.
    #[repr(C)]
    struct ExceptionEntry {
        begin: i32,
        end: i32,
        resume_address: i32,
    }

    unsafe extern "C" {
        /// Symbols that the linker defines at the start and the end of the exception table.
        static __start_softnic_faults: [ExceptionEntry; 0];
        static __stop_softnic_faults: [ExceptionEntry; 0];
    }

    /// Returns the address at which to continue after the instruction at `ip` has faulted.
    fn resume_address(ip: usize) -> Option<usize> {
        let mut entry = (&raw const __start_softnic_faults).cast::<ExceptionEntry>();
        let stop = (&raw const __stop_softnic_faults).cast::<ExceptionEntry>();
        while entry < stop {
            let at = |field: *const i32| {
                // SAFETY: the field lies in the section, which holds only entries.
                let offset = unsafe { field.read() };
                field.addr().wrapping_add_signed(offset as isize)
            };
            // SAFETY: as above; `entry` lies before the end of the table.
            let (begin, end, resume_address) = unsafe {
                (
                    &raw const (*entry).begin,
                    &raw const (*entry).end,
                    &raw const (*entry).resume_address,
                )
            };
            if (at(begin)..at(end)).contains(&ip) {
                return Some(at(resume_address));
            }
            entry = entry.wrapping_add(1);
        }
        None
    }

    const FAULT_SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

    /// The previous handlers, one for each of [`FAULT_SIGNALS`]: `sa_sigaction` and `sa_flags`.
    static PREVIOUS_HANDLERS: [(AtomicUsize, AtomicI32); 2] =
        [const { (AtomicUsize::new(libc::SIG_DFL), AtomicI32::new(0)) }; 2];

    /// Installs the signal handlers, once per process.
    pub(in crate::mem) fn install_fault_handlers() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            for (signal, before) in FAULT_SIGNALS.into_iter().zip(&PREVIOUS_HANDLERS) {
                let mut old = MaybeUninit::<libc::sigaction>::uninit();
                // SAFETY: the call only reads the current action; `old` is large enough.
                if unsafe { libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) } != 0 {
                    continue;
                }
                // SAFETY: the call has filled `old`.
                let old = unsafe { old.assume_init() };
                before.0.store(old.sa_sigaction, Ordering::Relaxed);
                before.1.store(old.sa_flags, Ordering::Relaxed);
                let mut new = old;
                new.sa_sigaction = handle_fault_signal as *const () as usize;
                // SA_ONSTACK: the handler runs on the thread's alternate stack, if the thread has
                // one, because the previous handler may need that stack.
                new.sa_flags =
                    (old.sa_flags | libc::SA_SIGINFO | libc::SA_ONSTACK) & !libc::SA_RESETHAND;
                // SAFETY: `handle_fault_signal` is async-signal-safe, and its library stays loaded.
                unsafe { libc::sigaction(signal, &raw const new, ptr::null_mut()) };
            }
        });
    }

    extern "C" fn handle_fault_signal(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        // SAFETY: the kernel passes both pointers to a handler with SA_SIGINFO; they are valid while it runs.
        let (sent, ip) = unsafe {
            let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
            (
                (*info).si_code <= 0,
                &mut machine.gregs[libc::REG_RIP as usize],
            )
        };
        #[allow(clippy::cast_sign_loss, clippy::cast_possible_wrap)] // addresses
        if !sent && let Some(resume_address) = resume_address(*ip as usize) {
            *ip = resume_address as i64;
            return;
        }
        call_previous_handler(signal, info, context, sent);
    }

    /// Passes a signal that no guarded access caused to the handler that was installed before.
    fn call_previous_handler(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
        sent: bool,
    ) {
        let which = usize::from(signal != libc::SIGSEGV);
        let action = PREVIOUS_HANDLERS[which].0.load(Ordering::Relaxed);
        let flags = PREVIOUS_HANDLERS[which].1.load(Ordering::Relaxed);
        if flags & libc::SA_RESETHAND != 0 {
            PREVIOUS_HANDLERS[which]
                .0
                .store(libc::SIG_DFL, Ordering::Relaxed);
        }
        match action {
            libc::SIG_IGN if sent => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: both calls are async-signal-safe. A fault recurs when the handler returns; a signal
                // that a process sent is raised again.
                unsafe {
                    libc::signal(signal, libc::SIG_DFL);
                    if sent {
                        libc::raise(signal);
                    }
                }
            }
            _ if flags & libc::SA_SIGINFO != 0 => {
                type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                // SAFETY: the handler was installed as one with three arguments.
                let action = unsafe { std::mem::transmute::<usize, Action>(action) };
                action(signal, info, context);
            }
            _ => {
                type Action = extern "C" fn(libc::c_int);
                // SAFETY: the handler was installed as one with one argument.
                let action = unsafe { std::mem::transmute::<usize, Action>(action) };
                action(signal);
            }
        }
    }
}
