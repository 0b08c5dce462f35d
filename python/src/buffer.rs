//! Memory: tensors as Python sees them, and Python's memory as the NIC sees it.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyWeakrefReference};
use tensor::{DType, Tensor, TensorMeta};
use verbs::{Access, MemoryRegion, ProtectionDomain};

use crate::errors::{exception_of_argument_error, exception_of_system_error};

/// An element type as Python gives it: DLPack's code, bits and lanes.
pub(crate) type PyDType = (u8, u8, u16);

/// What a tensor is.
pub(crate) fn meta(dtype: PyDType, shape: Vec<u64>) -> PyResult<TensorMeta> {
    let (code, bits, lanes) = dtype;
    TensorMeta::new(
        DType {
            dlpack_type_code: code,
            bits_per_lane: bits,
            lanes,
        },
        shape,
    )
    .map_err(exception_of_argument_error)
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
        let DType {
            dlpack_type_code: code,
            bits_per_lane: bits,
            lanes,
        } = self.tensor.meta().dtype();
        (code, bits, lanes)
    }

    /// The shape.
    #[getter]
    fn shape(&self) -> Vec<u64> {
        self.tensor.meta().shape().to_vec()
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.tensor.meta().total_bytes()).unwrap_or(0)
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
        let len = isize::try_from(len).map_err(exception_of_argument_error)?;
        // SAFETY: the view is writable; the memory is the tensor's, which this object keeps, and the view keeps this
        // object. The WRITEs into it have completed, so no peer changes it.
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

/// The region of a registration, until it is revoked.
type RegionSlot = Arc<Mutex<Option<Arc<MemoryRegion>>>>;

/// Registered memory of Python's. It is registered until this goes or is revoked or, if it belongs to an array, until that
/// array goes.
#[pyclass(frozen, module = "verbatim._native")]
pub(crate) struct Registration {
    region: RegionSlot,
    is_empty: bool,
    /// Takes the region away when the array goes.
    _weak: Option<Py<PyWeakrefReference>>,
}

/// Takes the region of a registration away. It does not keep the registration, which keeps it.
#[pyclass(frozen, module = "verbatim._native")]
struct Invalidate(RegionSlot);

#[pymethods]
impl Invalidate {
    fn __call__(&self, weak: &Bound<'_, PyAny>) {
        empty_slot(weak.py(), &self.0);
    }
}

/// Takes the region out of a slot. Its last use deregisters it, which may wait for threads that need the interpreter.
fn empty_slot(py: Python<'_>, slot: &RegionSlot) {
    py.detach(|| {
        let region = lock(slot).take();
        drop(region);
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registration {
    /// Registers contiguous memory; with `writable` peers may WRITE it. With `array`, the memory is that of this
    /// object, which the registration does not keep.
    pub(crate) fn new<'py>(
        pd: &ProtectionDomain,
        memory: &Bound<'py, PyAny>,
        writable: bool,
        array: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let py = memory.py();
        let (owner, addr, len) = export_memory(memory, writable)?;
        let slot = RegionSlot::default();
        let invalidate = Bound::new(py, Invalidate(Arc::clone(&slot)))?;
        let weak = array.map(|array| PyWeakrefReference::new_with(array, &invalidate));
        let weak = weak.transpose()?.map(Bound::unbind);
        let kept = weak.is_none().then_some(owner);
        let region = (len > 0).then(|| {
            let access = if writable {
                tensor::ConnectedPeer::destination_access()
            } else {
                Access::LOCAL_READ
            };
            py.detach(|| {
                // SAFETY: the memory stays where it is until the region has deregistered. It is exported to `kept`,
                // which the region keeps; or it is that of `array`, whose end calls `Invalidate` before it frees the
                // memory, and then no tensor has the region, since each keeps the array (`tensor`). It is writable if
                // peers may write. Python and its libraries have no `&[u8]` to it.
                unsafe { pd.register_owned(addr.get(), len, access, kept) }
            })
        });
        let region = region
            .transpose()
            .map_err(exception_of_system_error)?
            .map(Arc::new);
        let registration = Self {
            is_empty: region.is_none(),
            region: slot,
            _weak: weak,
        };
        *lock(&registration.region) = region;
        Bound::new(py, registration)
    }

    /// A tensor in this memory, which keeps `array` while it is used.
    pub(crate) fn tensor(&self, meta: TensorMeta, array: Py<PyAny>) -> PyResult<Tensor> {
        let bytes = meta.total_bytes();
        let region = lock(&self.region).clone();
        if region.is_none() && !self.is_empty {
            return Err(exception_of_argument_error("the registered array is gone"));
        }
        let tensor = Tensor::new(meta, region).map_err(|region| {
            let len = region.map_or(0, |r| r.len());
            exception_of_argument_error(format!(
                "a tensor of {bytes} bytes in {len} bytes of memory"
            ))
        })?;
        Ok(tensor.with_owner(array))
    }
}

#[pymethods]
impl Registration {
    /// Whether the memory is registered.
    #[getter]
    fn valid(&self) -> bool {
        self.is_empty || lock(&self.region).is_some()
    }

    /// Deregisters the memory, once no tensor uses it.
    fn revoke(&self, py: Python<'_>) {
        empty_slot(py, &self.region);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        Python::attach(|py| empty_slot(py, &self.region));
    }
}

/// A view that keeps memory exported, its address and its bytes.
fn export_memory(
    memory: &Bound<'_, PyAny>,
    writable: bool,
) -> PyResult<(Py<PyMemoryView>, Address, usize)> {
    let owner = PyMemoryView::from(memory)?;
    let buffer = PyBuffer::<u8>::get(&owner)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the memory is not contiguous"));
    }
    if writable && buffer.readonly() {
        return Err(PyBufferError::new_err("the memory is read-only"));
    }
    let (addr, len) = (Address(buffer.buf_ptr().cast()), buffer.len_bytes());
    Ok((owner.unbind(), addr, len))
}

/// Contiguous memory of Python's that a group sends from or receives into. It is never registered.
pub(crate) struct HostMemory {
    addr: Address,
    len: usize,
    writable: bool,
    /// Keeps the memory exported, and so where it is.
    _owner: Py<PyMemoryView>,
}

impl HostMemory {
    /// The memory of an object with the buffer protocol.
    pub(crate) fn new(memory: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let (owner, addr, len) = export_memory(memory, writable)?;
        Ok(Self {
            addr,
            len,
            writable,
            _owner: owner,
        })
    }

    /// Whether a byte belongs to both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.addr.get().addr(), other.addr.get().addr());
        ours < theirs + other.len && theirs < ours + self.len && self.len > 0 && other.len > 0
    }

    /// The bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the view keeps the memory exported, so it stays where it is. As `torch.distributed` demands, the
        // program does not write to a tensor until its collective is done.
        unsafe { std::slice::from_raw_parts(self.addr.get(), self.len) }
    }

    /// The bytes, to be written; none if the memory is read-only.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.len == 0 || !self.writable {
            return &mut [];
        }
        // SAFETY: as above, and nobody else uses the tensor until its collective is done. Memory that overlaps is
        // refused or copied before (`group`).
        unsafe { std::slice::from_raw_parts_mut(self.addr.get(), self.len) }
    }
}

impl collective::MessageMemory for HostMemory {
    fn bytes(&self) -> &[u8] {
        self.as_slice()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

/// An address that goes to a function which is called detached from the interpreter, in the same thread.
#[derive(Clone, Copy)]
struct Address(*mut u8);

impl Address {
    /// The address. A closure that calls this captures the whole value, not the pointer in it.
    fn get(self) -> *mut u8 {
        self.0
    }
}

// SAFETY: it is only a number until it is registered.
unsafe impl Send for Address {}
// SAFETY: as for Send.
unsafe impl Sync for Address {}
