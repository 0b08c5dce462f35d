//! This process, and peers that it is connected to.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyConnectionError;
use pyo3::prelude::*;
use service::NicConfig;
use tensor::{Config, StartError, TensorName};

use crate::buffer::{Buffer, PyDType, Registration, meta};
use crate::errors::{
    closed_peer_exception, exception_of_argument_error, exception_of_operation_error,
    exception_of_system_error,
};
use crate::operation::{Operation, duration, wait};
use crate::process::OfProcess;

/// Between two attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Something that can be closed before Python drops it.
struct Closable<T: Send + Sync>(OfProcess<Mutex<Option<Arc<T>>>>);

impl<T: Send + Sync> Closable<T> {
    fn new(inner: T) -> Self {
        Self(OfProcess::new(Mutex::new(Some(Arc::new(inner)))))
    }

    fn get(&self) -> PyResult<Arc<T>> {
        let inner = lock(self.0.get()?).clone();
        inner.ok_or_else(closed_peer_exception)
    }

    fn close(&self) {
        let inner = self.0.original().and_then(|inner| lock(inner).take());
        Python::attach(|py| py.detach(|| drop(inner)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Send + Sync> Drop for Closable<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// This process.
#[pyclass(frozen, module = "verbatim._native")]
pub(crate) struct Peer(Closable<tensor::Peer>);

/// A peer that this process is connected to.
#[pyclass(frozen, module = "verbatim._native")]
pub(crate) struct Remote(Closable<tensor::ConnectedPeer>);

fn name(key: &str, step: u64) -> PyResult<TensorName> {
    TensorName::new(key, step).map_err(exception_of_argument_error)
}

#[pymethods]
impl Peer {
    #[new]
    #[pyo3(signature = (listen, capacity, queue_pairs, provider, device))]
    fn new(
        py: Python<'_>,
        listen: Option<String>,
        capacity: u64,
        queue_pairs: usize,
        provider: String,
        device: Option<String>,
    ) -> PyResult<Self> {
        let config = Config {
            nic: NicConfig {
                provider,
                device,
                ..NicConfig::default()
            },
            listen_address: listen,
            data_queue_pair_count: queue_pairs,
            peer_store_capacity_bytes: capacity,
            ..Config::default()
        };
        let peer = py.detach(|| tensor::Peer::new(config));
        let peer = peer.map_err(|e| match e {
            StartError::InvalidConfig(_) => exception_of_argument_error(e),
            _ => exception_of_system_error(e),
        });
        Ok(Self(Closable::new(peer?)))
    }

    /// `host:port` where others find it.
    #[getter]
    fn address(&self) -> PyResult<Option<String>> {
        Ok(self.0.get()?.address().map(|a| a.to_string()))
    }

    /// Registers contiguous memory; peers may write it if `writable`. If it is that of `array`, it is registered until
    /// the array goes.
    #[pyo3(signature = (memory, writable, array))]
    fn register<'py>(
        &self,
        memory: &Bound<'py, PyAny>,
        writable: bool,
        array: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Registration>> {
        Registration::new(self.0.get()?.pd(), memory, writable, array)
    }

    /// Has a tensor for whoever asks.
    fn publish(&self, py: Python<'_>, key: &str, step: u64, source: Source<'_>) -> PyResult<()> {
        let (name, peer) = (name(key, step)?, self.0.get()?);
        let tensor = tensor_of(source)?;
        py.detach(|| peer.publish(name, tensor));
        Ok(())
    }

    /// Has a tensor no more; whether there was one.
    fn withdraw(&self, py: Python<'_>, key: &str, step: u64) -> PyResult<bool> {
        let (name, peer) = (name(key, step)?, self.0.get()?);
        Ok(py.detach(|| peer.withdraw(&name).is_some()))
    }

    /// The tensor of this name that this process has.
    fn find(&self, py: Python<'_>, key: &str, step: u64) -> PyResult<Option<Buffer>> {
        let (name, peer) = (name(key, step)?, self.0.get()?);
        let found = py.detach(|| peer.find_local(&name));
        Ok(found.map(|tensor| Buffer::new(tensor, true)))
    }

    /// Tensors, bytes of those that were stored, and how many had to go.
    fn holdings(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let peer = self.0.get()?;
        let h = py.detach(|| peer.store_statistics());
        Ok((
            h.published_and_stored_tensors,
            h.stored_bytes,
            h.evicted_tensors,
        ))
    }

    /// Connects to a peer, which may begin to listen within `timeout` seconds.
    fn connect(&self, py: Python<'_>, address: &str, timeout: f64) -> PyResult<Remote> {
        let peer = self.0.get()?;
        let timeout = duration(timeout)?;
        let begun = Instant::now();
        loop {
            let error = match py.detach(|| peer.connect(address)) {
                Ok(remote) => return Ok(Remote(Closable::new(remote))),
                Err(error) => error,
            };
            if error.is_permanent() || begun.elapsed() >= timeout {
                return Err(PyConnectionError::new_err(error.to_string()));
            }
            py.check_signals()?;
            py.detach(|| std::thread::sleep(CONNECT_PAUSE));
        }
    }

    /// Ends it and its connections.
    fn close(&self) {
        self.0.close();
    }
}

/// A tensor in memory of Python's: its registration, whose memory it is, element type and shape.
type Source<'py> = (PyRef<'py, Registration>, Py<PyAny>, PyDType, Vec<u64>);

fn tensor_of((memory, array, dtype, shape): Source<'_>) -> PyResult<tensor::Tensor> {
    memory.tensor(meta(dtype, shape)?, array)
}

impl Remote {
    fn begin_operation(
        &self,
        py: Python<'_>,
        begin: impl FnOnce(&tensor::ConnectedPeer) -> Result<tensor::Operation, tensor::Error> + Send,
    ) -> PyResult<tensor::Operation> {
        let remote = self.0.get()?;
        let begun = py.detach(|| begin(&remote));
        begun.map_err(|e| exception_of_operation_error(&e))
    }

    fn start_get(
        &self,
        py: Python<'_>,
        key: &str,
        step: u64,
        until_there: bool,
        into: Option<Source<'_>>,
    ) -> PyResult<tensor::Operation> {
        let name = name(key, step)?;
        let into = into.map(tensor_of).transpose()?;
        self.begin_operation(py, move |remote| remote.get(name, until_there, into))
    }

    fn start_put(
        &self,
        py: Python<'_>,
        key: &str,
        step: u64,
        tensor: tensor::Tensor,
    ) -> PyResult<tensor::Operation> {
        let name = name(key, step)?;
        self.begin_operation(py, move |remote| remote.put(name, tensor))
    }
}

#[pymethods]
impl Remote {
    /// Gets a tensor.
    #[pyo3(signature = (key, step, until_there, timeout, into))]
    fn get(
        &self,
        py: Python<'_>,
        key: &str,
        step: u64,
        until_there: bool,
        timeout: Option<f64>,
        into: Option<Source<'_>>,
    ) -> PyResult<Option<Buffer>> {
        let operation = self.start_get(py, key, step, until_there, into)?;
        wait(py, operation, timeout)
    }

    /// The same; the operation goes on.
    #[pyo3(signature = (key, step, until_there, into))]
    fn begin_get(
        &self,
        py: Python<'_>,
        key: &str,
        step: u64,
        until_there: bool,
        into: Option<Source<'_>>,
    ) -> PyResult<Operation> {
        let operation = self.start_get(py, key, step, until_there, into)?;
        Ok(Operation::new(operation))
    }

    /// Stores a tensor there.
    #[pyo3(signature = (key, step, source, timeout))]
    fn put(
        &self,
        py: Python<'_>,
        key: &str,
        step: u64,
        source: Source<'_>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let tensor = tensor_of(source)?;
        let operation = self.start_put(py, key, step, tensor)?;
        wait(py, operation, timeout).map(drop)
    }

    /// The same; the operation goes on.
    fn begin_put(
        &self,
        py: Python<'_>,
        key: &str,
        step: u64,
        source: Source<'_>,
    ) -> PyResult<Operation> {
        let tensor = tensor_of(source)?;
        Ok(Operation::new(self.start_put(py, key, step, tensor)?))
    }

    /// Removes a tensor there.
    #[pyo3(signature = (key, step, timeout))]
    fn remove(&self, py: Python<'_>, key: &str, step: u64, timeout: Option<f64>) -> PyResult<()> {
        let name = name(key, step)?;
        let operation = self.begin_operation(py, move |remote| remote.remove(name))?;
        wait(py, operation, timeout).map(drop)
    }

    /// Whether the connection has ended.
    fn has_ended(&self) -> bool {
        self.0.get().map_or(true, |remote| remote.has_ended())
    }

    /// Ends the connection.
    fn close(&self) {
        self.0.close();
    }
}
