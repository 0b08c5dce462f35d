//! The native part of the Python module `verbatim`: peers that exchange tensors, and groups of processes.
//!
//! The Python side is in `verbatim/tensor.py` and `verbatim/torch.py`. Types here take and return memory, element types
//! and shapes as the crate `tensor` has them.
//!
//! *Locks.* Calls that may wait for a lock of the crate `tensor` are made detached from the interpreter. A
//! `Py<PyMemoryView>` owns registered memory of Python, and its drop never waits for the interpreter. So a thread of the
//! crate that holds a lock never waits for Python.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod buffer;
mod errors;
mod group;
mod operation;
mod peer;
mod process;

use pyo3::prelude::*;

/// The native part of `verbatim`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<buffer::Registration>()?;
    module.add_class::<group::Group>()?;
    module.add_class::<group::GroupListener>()?;
    module.add_class::<group::Task>()?;
    module.add_class::<operation::Operation>()?;
    module.add_class::<peer::Peer>()?;
    module.add_class::<peer::Remote>()?;
    let at_exit = wrap_pyfunction!(process::end_calls_to_python, module)?;
    let atexit = module.py().import("atexit")?;
    atexit.call_method1("register", (at_exit,))?;
    Ok(())
}
