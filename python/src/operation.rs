//! Operations that go on while Python does something else.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tensor::Outcome;

use crate::buffer::Buffer;
use crate::errors::{exception_of_argument_error, exception_of_operation_error};
use crate::process::{OfProcess, attach_until_exit};

/// How often a blocking call looks whether a signal has come.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Something that a peer was asked for.
#[pyclass(frozen, module = "verbatim._native")]
pub(crate) struct Operation {
    inner: Option<OfProcess<tensor::Operation>>,
}

impl Operation {
    pub(crate) fn new(inner: tensor::Operation) -> Self {
        Self {
            inner: Some(OfProcess::new(inner)),
        }
    }

    fn inner(&self) -> PyResult<&tensor::Operation> {
        // It goes only when this is dropped.
        match &self.inner {
            Some(inner) => inner.get(),
            None => unreachable!("taken by drop alone"),
        }
    }
}

/// Turns an outcome into a result for Python.
pub(crate) fn outcome_to_python(outcome: Outcome) -> PyResult<Option<Buffer>> {
    match outcome {
        Ok(tensor) => Ok(tensor.map(|tensor| Buffer::new(tensor, false))),
        Err(e) => Err(exception_of_operation_error(&e)),
    }
}

/// So many seconds; the longest time there is for more than that has, such as infinity.
pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() {
        return Err(exception_of_argument_error("a timeout is not a number"));
    }
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

/// Waits for an operation, and for signals.
pub(crate) fn wait(
    py: Python<'_>,
    operation: tensor::Operation,
    timeout: Option<f64>,
) -> PyResult<Option<Buffer>> {
    let timeout = timeout.map(duration).transpose()?;
    let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            let error = operation.timeout_error(timeout.unwrap_or_default());
            py.detach(|| drop(operation));
            return Err(exception_of_operation_error(&error));
        }
        let turn = left.map_or(SIGNAL_CHECK_INTERVAL, |left| {
            left.min(SIGNAL_CHECK_INTERVAL)
        });
        if py.detach(|| operation.is_done_within(turn))
            && let Some(outcome) = operation.take_outcome()
        {
            return outcome_to_python(outcome);
        }
        if let Err(interrupted) = py.check_signals() {
            py.detach(|| drop(operation));
            return Err(interrupted);
        }
    }
}

#[pymethods]
impl Operation {
    /// Whether there is an outcome.
    fn done(&self) -> PyResult<bool> {
        Ok(self.inner()?.is_done())
    }

    /// Has `callback` called without arguments once there is an outcome, by any thread.
    fn on_done(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        let inner = self.inner()?;
        py.detach(|| {
            inner.on_done(move || {
                attach_until_exit(|py| {
                    if let Err(e) = callback.call0(py) {
                        e.write_unraisable(py, None);
                    }
                });
            });
        });
        Ok(())
    }

    /// The outcome, once: the tensor, nothing, or an exception; also nothing while there is none.
    fn result(&self, py: Python<'_>) -> PyResult<Option<Buffer>> {
        let inner = self.inner()?;
        py.detach(|| inner.take_outcome())
            .map_or(Ok(None), outcome_to_python)
    }

    /// Ends it. Nothing comes into given memory after that.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner()?;
        py.detach(|| inner.cancel());
        Ok(())
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let inner = self.inner.take();
        Python::attach(|py| py.detach(|| drop(inner)));
    }
}
