//! Tests of signals that come while a thread waits for an event.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rdmacm::abi::*;
use verbs_abi::*;

use crate::common::*;

#[test]
fn a_signal_ends_a_wait_only_without_sa_restart() {
    Scene::new("roce").start("signals").done();
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn handle_signals(flags: c_int) {
    // SAFETY: zeros are valid, and the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = flags;
        ok!(libc::sigaction(
            libc::SIGUSR1,
            &raw const action,
            ptr::null_mut()
        ));
    }
    HANDLED.store(0, Ordering::Relaxed);
}

pub(crate) fn signals(_: &mut Stage) {
    let channel = Channel::new();
    let id = channel.id(RDMA_PS_TCP);
    // SAFETY: no arguments.
    let waiter = unsafe { libc::pthread_self() };
    // SAFETY: the thread waits for the end of those that send it signals.
    let interrupt = || unsafe {
        libc::pthread_kill(waiter, libc::SIGUSR1);
        libc::usleep(5_000);
    };
    let id_address = id.expose_provenance();
    handle_signals(libc::SA_RESTART);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while HANDLED.load(Ordering::Relaxed) < 10 {
                interrupt();
            }
            let id = ptr::with_exposed_provenance_mut(id_address);
            ok!(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, 7));
        });
        channel.expect(RDMA_CM_EVENT_USER);
    });
    handle_signals(0);
    let has_returned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_returned.load(Ordering::Relaxed) {
                interrupt();
            }
        });
        let mut event = ptr::null_mut();
        fails!(libc::EINTR, rdma_get_cm_event(channel.0, &raw mut event));
        has_returned.store(true, Ordering::Relaxed);
    });
    ok!(rdma_destroy_id(id));
    channel.destroy();
}
