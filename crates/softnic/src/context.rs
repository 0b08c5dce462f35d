//! Open devices, which `ibv_open_device` returns, and their asynchronous events.

use std::io;
use std::mem::offset_of;
use std::sync::Arc;

use verbs_abi::{
    IBV_EVENT_DEVICE_FATAL, ibv_async_event, ibv_context, ibv_cq, ibv_device, ibv_event_type,
    ibv_qp, ibv_srq, ibv_wq, verbs_context,
};

use crate::abi_cell::AbiCell;
use crate::device::Device;
use crate::event::EventQueue;
use crate::listed_object::ListedObject;
use crate::nic::Nic;
use crate::why;
use shm::fabric::Peer;

/// An open device.
///
/// A program's `ibv_context` is a field of the `verbs_context` at the start. Contexts are never freed. A program that
/// closes a device while objects are open, or keeps a handle, therefore causes no crash.
#[repr(C)]
pub(crate) struct Context {
    abi: AbiCell<verbs_context>,
    /// The descriptor by which other processes identify the context.
    pub(crate) cmd_fd: i32,
    pub(crate) nic: &'static Nic,
    /// Which of its devices.
    pub(crate) device: &'static Device,
    /// The process whose objects the context imports, if the context itself was imported (`ibv_import_device(3)`).
    pub(crate) imported_from: Option<Arc<Peer>>,
    events: EventQueue<AsyncEvent>,
    /// The context on lists of the fabric's objects, until it is closed.
    listed_object: ListedObject,
}

/// An asynchronous event, with the handle of the object that it concerns.
#[derive(Clone, Copy)]
pub(crate) struct AsyncEvent(pub(crate) ibv_async_event);
// SAFETY: opaque values here, handed back to the program.
unsafe impl Send for AsyncEvent {}

impl Context {
    pub(crate) fn new(
        (nic, device): (&'static Nic, &'static Device),
        mut abi: verbs_context,
        home: Option<Arc<Peer>>,
    ) -> io::Result<Self> {
        let events = EventQueue::new()?;
        abi.context.async_fd = events.raw_fd();
        Ok(Self {
            cmd_fd: abi.context.cmd_fd,
            abi: AbiCell::new(abi),
            nic,
            device,
            imported_from: home,
            events,
            listed_object: ListedObject::list_context(nic, device.number),
        })
    }

    /// Returns the program's handle: a field of the structure that `verbs.h` expects around it.
    pub(crate) fn handle(&self) -> *mut ibv_context {
        self.abi
            .handle()
            .wrapping_byte_add(offset_of!(verbs_context, context))
            .cast()
    }

    /// Closes the descriptor of the context's events, and takes the context off the lists.
    pub(crate) fn close_events_and_unlist(&self) {
        self.listed_object.remove();
        self.events.close();
    }

    /// Returns the next event; `count` counts its delivery.
    pub(crate) fn next_event(
        &self,
        count: impl Fn(&ibv_async_event),
    ) -> io::Result<ibv_async_event> {
        self.events.next(|e| count(&e.0)).map(|e| e.0)
    }

    pub(crate) fn raise_qp_event(&self, event: ibv_event_type, qp: *mut ibv_qp) {
        let mut e = ibv_async_event::zeroed();
        e.event_type = event;
        e.element.qp = qp;
        self.events.push(AsyncEvent(e));
    }

    pub(crate) fn raise_cq_event(&self, event: ibv_event_type, cq: *mut ibv_cq) {
        let mut e = ibv_async_event::zeroed();
        e.event_type = event;
        e.element.cq = cq;
        self.events.push(AsyncEvent(e));
    }

    pub(crate) fn raise_srq_event(&self, event: ibv_event_type, srq: *mut ibv_srq) {
        let mut e = ibv_async_event::zeroed();
        e.event_type = event;
        e.element.srq = srq;
        self.events.push(AsyncEvent(e));
    }

    pub(crate) fn raise_wq_event(&self, event: ibv_event_type, wq: *mut ibv_wq) {
        let mut e = ibv_async_event::zeroed();
        e.event_type = event;
        e.element.wq = wq;
        self.events.push(AsyncEvent(e));
    }

    /// Returns the process whose objects this context imports: by default, this process.
    pub(crate) fn home_process(&self) -> &Arc<Peer> {
        self.imported_from
            .as_ref()
            .unwrap_or(self.nic.this_process())
    }

    /// Raises the event for a device that is gone.
    pub(crate) fn raise_device_fatal_event(&self) {
        self.raise_event_for_each_port(IBV_EVENT_DEVICE_FATAL);
    }

    /// Raises the event once for each port; `IBV_EVENT_DEVICE_FATAL` is raised once for the whole device.
    pub(crate) fn raise_event_for_each_port(&self, event: ibv_event_type) {
        let mut e = ibv_async_event::zeroed();
        e.event_type = event;
        if event == IBV_EVENT_DEVICE_FATAL {
            return self.events.push(AsyncEvent(e));
        }
        for port in self.device.ports() {
            e.element.port_num = i32::from(port.place.port_num);
            self.events.push(AsyncEvent(e));
        }
    }

    /// Whether objects of the other context can be used with this one's: they are of the same device.
    ///
    /// # Errors
    /// `EINVAL`: they are not. The kernel looks for an object among those of the context.
    pub(crate) fn require_same_device(&self, other: &Self) -> Result<(), i32> {
        if self.device.number == other.device.number {
            return Ok(());
        }
        Err(why::einval_because(|| {
            format!(
                "objects of {} and of {} are mixed: a protection domain, its queues and its queue pairs are of one device",
                self.device.name, other.device.name
            )
        }))
    }

    /// Drops the events of an object that is being destroyed.
    pub(crate) fn discard_events_of_object(&self, of: *mut ibv_device) {
        self.events.discard_matching(|e| {
            // SAFETY: all members of the union are pointers or smaller; only the address is compared.
            unsafe { e.0.element.qp.cast::<ibv_device>() == of }
        });
    }
}
