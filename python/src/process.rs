//! The end of the interpreter, and copies of objects in forked processes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// How long the end of the interpreter waits for threads that are in Python.
const EXIT_WAIT_MAX: Duration = Duration::from_secs(1);

static INTERPRETER_ENDS: AtomicBool = AtomicBool::new(false);
/// Threads that are in [`attach_until_exit`].
static ATTACHED_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Calls Python in a thread that the interpreter does not know. Does nothing once the interpreter ends: such a thread would
/// then be ended in the middle of its functions, and that ends the process with a signal.
pub(crate) fn attach_until_exit<R>(work: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    ATTACHED_THREADS.fetch_add(1, Ordering::SeqCst);
    let result = match INTERPRETER_ENDS.load(Ordering::SeqCst) {
        true => None,
        false => Some(Python::attach(work)),
    };
    ATTACHED_THREADS.fetch_sub(1, Ordering::SeqCst);
    result
}

/// The interpreter ends: no other thread calls Python any more.
#[pyfunction]
pub(crate) fn end_calls_to_python(py: Python<'_>) {
    INTERPRETER_ENDS.store(true, Ordering::SeqCst);
    py.detach(|| {
        let begun = Instant::now();
        while ATTACHED_THREADS.load(Ordering::SeqCst) > 0 && begun.elapsed() < EXIT_WAIT_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Something that belongs to the process that made it. A forked child has a copy, without the threads that the original
/// needs to end. So the child neither uses nor drops it.
pub(crate) struct OfProcess<T> {
    inner: Option<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self {
            inner: Some(inner),
            process: std::process::id(),
        }
    }

    /// The original, in the process that made it.
    pub(crate) fn original(&self) -> Option<&T> {
        let is_original = self.process == std::process::id();
        self.inner.as_ref().filter(|_| is_original)
    }

    /// The same.
    ///
    /// # Errors
    /// In another process.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.original().ok_or_else(|| {
            PyRuntimeError::new_err(format!(
                "process {} made this and then forked: make a Peer in process {}, and connect there",
                self.process,
                std::process::id()
            ))
        })
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.original().is_none() {
            std::mem::forget(self.inner.take());
        }
    }
}
