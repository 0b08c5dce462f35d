//! Asynchronous events.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use verbs_abi as abi;

use crate::context::Context;
use crate::cq_srq_ids::id_from_context;
use crate::error::{EventError, last_error};
use crate::types::{Qpn, c_enum};
use crate::wait::wait_readable;

impl Context {
    /// Returns the file descriptor that is readable while an async event is pending.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the provider keeps the descriptor open as long as the context.
        unsafe { BorrowedFd::borrow_raw((*self.inner.raw).async_fd) }
    }

    /// Waits for the next async event and acknowledges it.
    ///
    /// # Errors
    /// - [`EventError::Interrupted`] (`EINTR`): a signal came before an event.
    /// - [`EventError::WouldBlock`] (`EAGAIN`): the descriptor does not block, and no event is there.
    /// - [`EventError::Refused`] (any other errno).
    pub fn wait_async_event(&self) -> Result<AsyncEvent, EventError> {
        let mut event = abi::ibv_async_event {
            element: abi::ibv_async_event_element { port_num: 0 },
            event_type: 0,
        };
        // SAFETY: live context, writable event.
        let ret = unsafe { (self.inner.symbols.ibv_get_async_event)(self.inner.raw, &mut event) };
        if ret != 0 {
            return Err(EventError::of("ibv_get_async_event", last_error()));
        }
        // SAFETY: the type determines the valid member, as ibv_get_async_event(3) lists it. An
        // object of an event cannot be destroyed before the event is acknowledged, which happens
        // below.
        let typed = unsafe { AsyncEvent::from_raw(&event) };
        // SAFETY: the event was just received and is acknowledged once.
        unsafe { (self.inner.symbols.ibv_ack_async_event)(&mut event) };
        Ok(typed)
    }

    /// Waits for an async event for at most `timeout`; returns `None` after that time.
    ///
    /// # Errors
    /// As [`wait_async_event`](Self::wait_async_event).
    pub fn wait_async_event_timeout(
        &self,
        timeout: std::time::Duration,
    ) -> Result<Option<AsyncEvent>, EventError> {
        if wait_readable(self.async_fd(), timeout) {
            self.wait_async_event().map(Some)
        } else {
            Ok(None)
        }
    }
}

impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.async_fd()
    }
}

impl AsRawFd for Context {
    fn as_raw_fd(&self) -> RawFd {
        self.async_fd().as_raw_fd()
    }
}

/// An asynchronous event of an object or a port (`ibv_get_async_event(3)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A CQ overran or failed; holds the CQ's [id](crate::CompletionQueue::id).
    CqErr(u64),
    /// An event of a queue pair.
    Qp(QpEvent, Qpn),
    /// A shared receive queue fell below its limit; holds its [id](crate::SharedReceiveQueue::id).
    SrqLimitReached(u64),
    /// A shared receive queue failed; holds its [id](crate::SharedReceiveQueue::id).
    SrqErr(u64),
    /// An event of a port, with the port's number.
    Port(PortEvent, u8),
    /// A fatal error of the device.
    DeviceFatal,
    /// An event that this version does not know.
    Other(u32),
}

c_enum! {
    /// The kind of an event of a queue pair.
    QpEvent {
        /// A fatal error.
        Fatal = abi::IBV_EVENT_QP_FATAL, "local work queue catastrophic error";
        /// An invalid request arrived.
        ReqErr = abi::IBV_EVENT_QP_REQ_ERR, "invalid request local work queue error";
        /// A request arrived that the QP's access flags forbid.
        AccessErr = abi::IBV_EVENT_QP_ACCESS_ERR, "local access violation work queue error";
        /// The first message arrived in RTR.
        CommEst = abi::IBV_EVENT_COMM_EST, "communication established";
        /// The send queue is drained (SQD).
        SqDrained = abi::IBV_EVENT_SQ_DRAINED, "send queue drained";
        /// A QP in error took the last WQE of the SRQ.
        LastWqeReached = abi::IBV_EVENT_QP_LAST_WQE_REACHED, "last WQE reached";
        /// The path has migrated.
        PathMig = abi::IBV_EVENT_PATH_MIG, "path migration";
        /// The path could not migrate.
        PathMigErr = abi::IBV_EVENT_PATH_MIG_ERR, "path migration request error";
    }
}

c_enum! {
    /// The kind of an event of a port.
    PortEvent {
        /// The port became active.
        Active = abi::IBV_EVENT_PORT_ACTIVE, "port active";
        /// The port went down.
        Err = abi::IBV_EVENT_PORT_ERR, "port error";
        /// The port's LID changed.
        LidChange = abi::IBV_EVENT_LID_CHANGE, "LID change";
        /// The port's P_Key table changed.
        PkeyChange = abi::IBV_EVENT_PKEY_CHANGE, "P_Key change";
        /// The port's subnet manager changed.
        SmChange = abi::IBV_EVENT_SM_CHANGE, "SM change";
        /// Clients must register again with the subnet administrator.
        ClientReregister = abi::IBV_EVENT_CLIENT_REREGISTER, "client reregistration";
        /// The port's GID table changed.
        GidChange = abi::IBV_EVENT_GID_CHANGE, "GID table change";
    }
}

impl AsyncEvent {
    /// Converts an event of the provider.
    ///
    /// # Safety
    /// `event` was returned by ibv_get_async_event and is not acknowledged yet.
    unsafe fn from_raw(event: &abi::ibv_async_event) -> Self {
        // SAFETY: see the function's contract; the type determines the valid member.
        unsafe {
            match event.event_type {
                abi::IBV_EVENT_CQ_ERR => {
                    Self::CqErr(id_from_context((*event.element.cq).cq_context))
                }
                abi::IBV_EVENT_SRQ_LIMIT_REACHED => {
                    Self::SrqLimitReached(id_from_context((*event.element.srq).srq_context))
                }
                abi::IBV_EVENT_SRQ_ERR => {
                    Self::SrqErr(id_from_context((*event.element.srq).srq_context))
                }
                abi::IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
                t => match (QpEvent::from_raw(t), PortEvent::from_raw(t)) {
                    (QpEvent::Other(_), PortEvent::Other(_)) => Self::Other(t),
                    (QpEvent::Other(_), port) => {
                        Self::Port(port, u8::try_from(event.element.port_num).unwrap_or(0))
                    }
                    (qp, _) => Self::Qp(qp, Qpn((*event.element.qp).qp_num)),
                },
            }
        }
    }
}
