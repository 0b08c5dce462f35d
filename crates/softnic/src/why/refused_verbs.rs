//! Reports of refused verbs: which argument, its value, and what is allowed.

use std::cell::RefCell;
use std::fmt::Display;

use super::report_detail::{prints_each_failure, write_to_stderr};

thread_local! {
    static LAST_REFUSAL_REASON: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Records the reason of a refusal and returns `EINVAL`. The text is made only if it will be printed.
#[cold]
pub(crate) fn einval_because<T: Display>(reason: impl FnOnce() -> T) -> i32 {
    record_refusal_reason(reason);
    libc::EINVAL
}

/// Records the reason why the current verb is refused.
#[cold]
pub(crate) fn record_refusal_reason<T: Display>(reason: impl FnOnce() -> T) {
    if prints_each_failure() {
        let text = reason().to_string();
        LAST_REFUSAL_REASON.with_borrow_mut(|kept| *kept = Some(text));
    }
}

/// Reports a verb outside the data path that was refused with `errno`.
#[cold]
pub(crate) fn report_refused_verb(verb: &str, errno: i32) {
    if !prints_each_failure() || is_answer(verb, errno) {
        return;
    }
    let reason = LAST_REFUSAL_REASON.with_borrow_mut(Option::take);
    let reason = reason.unwrap_or_else(|| match errno {
        libc::EINVAL => "a handle is of no live object of this process, or an argument is none that the man page allows"
            .to_owned(),
        libc::EBUSY => "the object is in use by others that were made from it".to_owned(),
        libc::EOPNOTSUPP => "the device does not have this".to_owned(),
        _ => std::io::Error::from_raw_os_error(errno).to_string(),
    });
    write_to_stderr(&format!(
        "verbatim: {verb} is refused with {}: {reason}\n",
        errno_name(errno)
    ));
}

/// Returns true if `errno` is an answer of the verb and no refusal.
fn is_answer(verb: &str, errno: i32) -> bool {
    match errno {
        // There is no event yet. The program has set `O_NONBLOCK`, or its thread waits outside the verb
        // (`cancellation::take_or_wait`).
        libc::EAGAIN => matches!(verb, "ibv_get_cq_event" | "ibv_get_async_event"),
        _ => false,
    }
}

/// Reports a work request that was refused with `EINVAL` when it was posted. (`ENOMEM`, a full queue, tells many
/// programs that they have to poll.)
#[cold]
pub(crate) fn report_refused_post(verb: &str, queue: &dyn Display, wr_id: u64) {
    if prints_each_failure() {
        let what = format!("{verb} of wr_id {wr_id:#x} to {queue}");
        report_refused_verb(&what, libc::EINVAL);
    }
}

fn errno_name(errno: i32) -> String {
    match errno {
        libc::EINVAL => "EINVAL".to_owned(),
        libc::ENOMEM => "ENOMEM".to_owned(),
        libc::EBUSY => "EBUSY".to_owned(),
        libc::EOPNOTSUPP => "EOPNOTSUPP".to_owned(),
        libc::ETIMEDOUT => "ETIMEDOUT".to_owned(),
        libc::EFAULT => "EFAULT".to_owned(),
        libc::EADDRINUSE => "EADDRINUSE".to_owned(),
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL".to_owned(),
        libc::EHOSTUNREACH => "EHOSTUNREACH".to_owned(),
        libc::ENETUNREACH => "ENETUNREACH".to_owned(),
        other => format!("errno {other}"),
    }
}
