//! The objects that NCCL's opaque pointers point to.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};

use collective::{ListenHandle, Listener, PendingConnect, Receiver, RequestHandle, Sender};
use verbs::{Access, MemoryRegion};

use crate::abi::{self, NcclResult};
use crate::device::Device;

/// The failure of a call: the code for NCCL, and the reason for its log.
pub(crate) struct CallFailure {
    pub(crate) code: NcclResult,
    pub(crate) reason: String,
}

impl From<collective::Error> for CallFailure {
    fn from(e: collective::Error) -> Self {
        use collective::Error as E;
        let code = match e {
            E::Verb(_) => abi::SYSTEM_ERROR,
            E::UnknownRequest
            | E::InvalidReceiveCount(_)
            | E::InvalidRange(_)
            | E::MessageTooLong { .. } => abi::INVALID_ARGUMENT,
            _ => abi::REMOTE_ERROR,
        };
        Self {
            code,
            reason: e.to_string(),
        }
    }
}

/// Returns the failure of an invalid argument.
pub(crate) fn invalid_argument(reason: impl Into<String>) -> CallFailure {
    CallFailure {
        code: abi::INVALID_ARGUMENT,
        reason: reason.into(),
    }
}

/// `listenComm`.
pub(crate) struct ListenComm {
    listener: Mutex<Listener>,
    device: &'static Device,
}

/// `sendComm` and `recvComm`.
pub(crate) struct NcclComm {
    /// Locked for each call, so that two threads on one connection do no harm, although NCCL
    /// forbids that.
    sender_or_receiver: Mutex<SenderOrReceiver>,
    device: &'static Device,
}

enum SenderOrReceiver {
    Send(Box<Sender>),
    Recv(Box<Receiver>),
}

/// `mhandle`.
pub(crate) struct MemoryHandle(MemoryRegion);

/// `request`.
pub(crate) struct PendingRequest {
    comm: Arc<NcclComm>,
    request: RequestHandle,
}

/// Connections in progress, by the handle of the listener: NCCL calls `connect` again until the
/// connection exists.
static CONNECTS_IN_PROGRESS: Mutex<Option<HashMap<[u8; ListenHandle::BYTES], PendingConnect>>> =
    Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, CallFailure> {
    mutex.lock().map_err(|_| CallFailure {
        code: abi::INTERNAL_ERROR,
        reason: "an earlier call panicked".to_owned(),
    })
}

impl ListenComm {
    pub(crate) fn new(
        device: &'static Device,
    ) -> Result<(Self, [u8; ListenHandle::BYTES]), CallFailure> {
        let listener = Listener::new(&device.pd, &device.config, (device.listen_addr, 0).into())?;
        let handle = listener.handle().to_bytes();
        let listening = Self {
            listener: Mutex::new(listener),
            device,
        };
        Ok((listening, handle))
    }

    /// Returns the next connection, or `None` if none is complete.
    pub(crate) fn poll_accept(&self) -> Result<Option<Arc<NcclComm>>, CallFailure> {
        let receiver = lock(&self.listener)?.poll()?;
        Ok(receiver
            .map(|receiver| NcclComm::new(SenderOrReceiver::Recv(Box::new(receiver)), self.device)))
    }
}

/// Connects to a handle; returns `None` until the connection is complete.
pub(crate) fn begin_or_poll_connect(
    device: &'static Device,
    bytes: &[u8; ListenHandle::BYTES],
) -> Result<Option<Arc<NcclComm>>, CallFailure> {
    let mut connecting = lock(&CONNECTS_IN_PROGRESS)?;
    let connecting = connecting.get_or_insert_default();
    if !connecting.contains_key(bytes) {
        let handle = ListenHandle::from_bytes(bytes).ok_or_else(|| {
            invalid_argument("this is no handle of this plugin: all ranks need the same")
        })?;
        let begun = PendingConnect::new(&device.pd, &device.config, &handle)?;
        connecting.insert(*bytes, begun);
    }
    let polled = connecting.get_mut(bytes).map(PendingConnect::poll);
    match polled {
        Some(Ok(None)) | None => Ok(None),
        Some(Ok(Some(sender))) => {
            connecting.remove(bytes);
            Ok(Some(NcclComm::new(
                SenderOrReceiver::Send(Box::new(sender)),
                device,
            )))
        }
        Some(Err(error)) => {
            connecting.remove(bytes);
            Err(error.into())
        }
    }
}

/// Abandons all connections in progress.
pub(crate) fn abandon_connecting() {
    if let Ok(mut connecting) = CONNECTS_IN_PROGRESS.lock() {
        *connecting = None;
    }
}

impl NcclComm {
    fn new(end: SenderOrReceiver, device: &'static Device) -> Arc<Self> {
        Arc::new(Self {
            sender_or_receiver: Mutex::new(end),
            device,
        })
    }

    /// Registers memory that NCCL owns.
    ///
    /// # Safety
    /// As for [`verbs::raw::register_borrowed`].
    pub(crate) unsafe fn register(
        &self,
        data: *mut c_void,
        size: usize,
    ) -> Result<MemoryHandle, CallFailure> {
        // SAFETY: contract of this function.
        let region = unsafe {
            verbs::raw::register_borrowed(&self.device.pd, data.cast(), size, Access::ALL)
        };
        let region = region.map_err(|e| CallFailure {
            code: abi::SYSTEM_ERROR,
            reason: format!("{size} bytes at {data:p} cannot be registered: {e}"),
        })?;
        Ok(MemoryHandle(region))
    }

    pub(crate) fn isend(
        self: &Arc<Self>,
        (data, size): (*mut c_void, usize),
        tag: i32,
        memory: Option<&MemoryHandle>,
    ) -> Result<Option<PendingRequest>, CallFailure> {
        let (region, range) = self.region_and_range(data, size, memory)?;
        let mut end = lock(&self.sender_or_receiver)?;
        let SenderOrReceiver::Send(sender) = &mut *end else {
            return Err(invalid_argument("isend of a connection that receives"));
        };
        let request = sender.isend(region, range, tag.cast_unsigned())?;
        Ok(request.map(|request| self.new_pending_request(request)))
    }

    pub(crate) fn irecv(
        self: &Arc<Self>,
        parts: &[(*mut c_void, usize, i32, Option<&MemoryHandle>)],
    ) -> Result<Option<PendingRequest>, CallFailure> {
        let part = |&(data, size, tag, memory): &(*mut c_void, usize, i32, _)| {
            let (region, range) = self.region_and_range(data, size, memory)?;
            Ok((region, range, tag.cast_unsigned()))
        };
        let parts = parts
            .iter()
            .map(part)
            .collect::<Result<Vec<_>, CallFailure>>()?;
        let mut end = lock(&self.sender_or_receiver)?;
        let SenderOrReceiver::Recv(receiver) = &mut *end else {
            return Err(invalid_argument("irecv of a connection that sends"));
        };
        let request = receiver.irecv(&parts)?;
        Ok(request.map(|request| self.new_pending_request(request)))
    }

    pub(crate) fn try_start_flush(
        self: &Arc<Self>,
        data: *mut c_void,
        memory: &MemoryHandle,
    ) -> Result<Option<PendingRequest>, CallFailure> {
        let (region, range) = self.region_and_range(data, 0, Some(memory))?;
        let mut end = lock(&self.sender_or_receiver)?;
        let SenderOrReceiver::Recv(receiver) = &mut *end else {
            return Err(invalid_argument("iflush of a connection that sends"));
        };
        let request = receiver.try_start_flush(region, range.start)?;
        Ok(request.map(|request| self.new_pending_request(request)))
    }

    fn new_pending_request(self: &Arc<Self>, request: RequestHandle) -> PendingRequest {
        PendingRequest {
            comm: Arc::clone(self),
            request,
        }
    }

    /// Returns the region and the range in it of `size` bytes at `data`.
    fn region_and_range<'m>(
        &'m self,
        data: *mut c_void,
        size: usize,
        memory: Option<&'m MemoryHandle>,
    ) -> Result<(&'m MemoryRegion, std::ops::Range<usize>), CallFailure> {
        let Some(MemoryHandle(region)) = memory else {
            if size == 0 {
                return Ok((&self.device.empty_receive_buffer, 0..0));
            }
            return Err(invalid_argument(format!(
                "{size} bytes at {data:p} have no mhandle"
            )));
        };
        let start = (data.addr() as u64).checked_sub(region.addr());
        let start = start.and_then(|start| usize::try_from(start).ok());
        let end = start.and_then(|start| start.checked_add(size));
        match start.zip(end) {
            Some((start, end)) if end <= region.len() => Ok((region, start..end)),
            _ if size == 0 => Ok((&self.device.empty_receive_buffer, 0..0)),
            _ => Err(invalid_argument(format!(
                "{size} bytes at {data:p} are not inside of their mhandle's {} bytes at {:#x}",
                region.len(),
                region.addr()
            ))),
        }
    }
}

impl PendingRequest {
    /// Returns true once the request is complete, and then appends the sizes, at most 8.
    pub(crate) fn append_sizes_if_complete(
        &self,
        sizes: &mut Vec<u32>,
    ) -> Result<bool, CallFailure> {
        match &mut *lock(&self.comm.sender_or_receiver)? {
            SenderOrReceiver::Send(sender) => {
                let done = sender.test(self.request)?;
                sizes.extend(done);
                Ok(done.is_some())
            }
            SenderOrReceiver::Recv(receiver) => {
                let done = receiver.test(self.request)?;
                sizes.extend(done.iter().flat_map(|sizes| sizes.as_slice()));
                Ok(done.is_some())
            }
        }
    }
}
