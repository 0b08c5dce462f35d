//! Errors as Python's exceptions.

use pyo3::PyErr;
use pyo3::exceptions::{
    PyConnectionError, PyInterruptedError, PyKeyError, PyMemoryError, PyOSError, PyPermissionError,
    PyRuntimeError, PyTimeoutError, PyValueError,
};
use tensor::Error;

/// The exception for an operation's error.
pub(crate) fn exception_of_operation_error(error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::InvalidName(_) | Error::InvalidMetadata(_) | Error::MetadataMismatch { .. } => {
            PyValueError::new_err(text)
        }
        Error::NotFound(_) => PyKeyError::new_err(text),
        Error::Timeout { .. } => PyTimeoutError::new_err(text),
        Error::Cancelled(_) => PyInterruptedError::new_err(text),
        Error::TooLarge { .. } | Error::PeerCannotRegisterMemory(_) => PyMemoryError::new_err(text),
        Error::PublishedByPeer(_) => PyPermissionError::new_err(text),
        Error::Disconnected { .. } => PyConnectionError::new_err(text),
        Error::Verb(_) => PyOSError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// The exception for an error of the system or of a verb.
pub(crate) fn exception_of_system_error(error: impl std::fmt::Display) -> PyErr {
    PyOSError::new_err(error.to_string())
}

/// The exception for an argument.
pub(crate) fn exception_of_argument_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The exception for a peer that was closed.
pub(crate) fn closed_peer_exception() -> PyErr {
    PyConnectionError::new_err("it was closed")
}
