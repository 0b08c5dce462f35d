//! Memory: tensors as Python sees them, and Python's memory as the NIC sees it.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use tensor::{DType, Meta, Tensor};
use verbs::{Access, MemoryRegion, ProtectionDomain};

use crate::errors::{of_argument, of_system};

/// An element type as Python gives it: DLPack's code, bits and lanes.
pub(crate) type PyDType = (u8, u8, u16);

/// What a tensor is.
pub(crate) fn meta(dtype: PyDType, shape: Vec<u64>) -> PyResult<Meta> {
    let (code, bits, lanes) = dtype;
    Meta::new(DType { code, bits, lanes }, shape).map_err(of_argument)
}

/// A tensor's bytes, by the buffer protocol.
#[pyclass(frozen, module = "verbatim._native")]
pub(crate) struct Buffer {
    tensor: Tensor,
    readonly: bool,
}

impl Buffer {
    /// A tensor that nobody else writes; `readonly` if others read it.
    pub(crate) fn new(tensor: Tensor, readonly: bool) -> Self {
        Self { tensor, readonly }
    }
}

#[pymethods]
impl Buffer {
    /// DLPack's code, bits and lanes of the element type.
    #[getter]
    fn dtype(&self) -> PyDType {
        let DType { code, bits, lanes } = self.tensor.meta().dtype();
        (code, bits, lanes)
    }

    /// The shape.
    #[getter]
    fn shape(&self) -> Vec<u64> {
        self.tensor.meta().shape().to_vec()
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.tensor.meta().bytes()).unwrap_or(0)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let this = slf.get();
        let (mut addr, len) = (std::ptr::NonNull::<u8>::dangling().as_ptr(), this.__len__());
        if let Some(region) = this.tensor.region() {
            addr = region.as_mut_ptr();
        }
        let len = isize::try_from(len).map_err(of_argument)?;
        // SAFETY: the view is writable; the memory is the tensor's, which this object keeps, and the view keeps this object. The
        // WRITEs into it have completed, so no peer changes it.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                addr.cast(),
                len,
                this.readonly.into(),
                flags,
            )
        };
        if result != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }
}

/// Registered memory of Python's.
#[pyclass(frozen, module = "verbatim._native")]
pub(crate) struct Registration {
    region: Option<Arc<MemoryRegion>>,
}

impl Registration {
    /// Registers contiguous memory; with `writable` peers may WRITE it.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        memory: &Bound<'_, PyAny>,
        writable: bool,
    ) -> PyResult<Self> {
        let py = memory.py();
        let owner = PyMemoryView::from(memory)?;
        let buffer = PyBuffer::<u8>::get(&owner)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the memory is not contiguous"));
        }
        if writable && buffer.readonly() {
            return Err(PyBufferError::new_err("the memory is read-only"));
        }
        let (addr, len) = (Address(buffer.buf_ptr().cast()), buffer.len_bytes());
        if len == 0 {
            return Ok(Self { region: None });
        }
        let access = if writable {
            tensor::Remote::destination_access()
        } else {
            Access::LOCAL_READ
        };
        let owner = owner.unbind();
        let region = py.detach(|| {
            let addr = addr;
            // SAFETY: the memory is exported to `owner`, which the region keeps until it has deregistered: it is neither freed
            // nor moved meanwhile. It is writable if peers may write. Python and its libraries have no `&[u8]` to it.
            unsafe { pd.register_owned(addr.0, len, access, owner) }
        });
        Ok(Self {
            region: Some(Arc::new(region.map_err(of_system)?)),
        })
    }

    /// A tensor in this memory.
    pub(crate) fn tensor(&self, meta: Meta) -> PyResult<Tensor> {
        let bytes = meta.bytes();
        Tensor::new(meta, self.region.clone()).map_err(|region| {
            let len = region.map_or(0, |r| r.len());
            of_argument(format!(
                "a tensor of {bytes} bytes in {len} bytes of memory"
            ))
        })
    }
}

/// An address that goes to a function which is called detached from the interpreter, in the same thread.
#[derive(Clone, Copy)]
struct Address(*mut u8);

// SAFETY: it is only a number until it is registered.
unsafe impl Send for Address {}
// SAFETY: as for Send.
unsafe impl Sync for Address {}
