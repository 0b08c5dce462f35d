//! Devices, contexts, and async events of contexts.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use verbs_abi::*;

use super::{
    Channel, Context, Cq, Pd, Qp, Srq, becomes_readable_within, expect_ok, last_errno, set_errno,
    set_nonblocking,
};
use crate::progress_notes::{record_awaited_event, wait_limit};
use crate::test_env::TestEnv;

/// Returns the names of the provider's devices.
///
/// # Errors
/// Returns the errno of `ibv_get_device_list`.
pub fn device_names(symbols: &'static Symbols) -> Result<Vec<String>, i32> {
    let list = DeviceList::new(symbols)?;
    Ok(list
        .devices()
        .map(|device| list.get_device_name(device))
        .collect())
}

/// The result of `ibv_get_device_list`.
pub struct DeviceList {
    symbols: &'static Symbols,
    list: NonNull<*mut ibv_device>,
    /// Number of devices that the call returned in `num_devices`.
    pub count: c_int,
}

impl DeviceList {
    /// Calls `ibv_get_device_list`.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn new(symbols: &'static Symbols) -> Result<Self, i32> {
        let mut count = -1;
        set_errno(0);
        // SAFETY: `count` is writable.
        let list = unsafe { (symbols.ibv_get_device_list)(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(last_errno)?;
        Ok(Self {
            symbols,
            list,
            count,
        })
    }

    /// Returns true if the call also works with a NULL pointer for the number of devices.
    #[must_use]
    pub fn accepts_null_count(&self) -> bool {
        // SAFETY: the man page allows NULL; the list is freed at once.
        unsafe {
            let list = (self.symbols.ibv_get_device_list)(std::ptr::null_mut());
            if !list.is_null() {
                (self.symbols.ibv_free_device_list)(list);
            }
            !list.is_null()
        }
    }

    /// Returns the devices of the list up to the terminating NULL.
    pub fn devices(&self) -> impl Iterator<Item = *mut ibv_device> + '_ {
        // SAFETY: the list ends with NULL (`ibv_get_device_list(3)`), and is freed only by `drop`.
        (0..)
            .map(|i| unsafe { *self.list.as_ptr().add(i) })
            .take_while(|d| !d.is_null())
    }

    /// Returns the name of a device of the list.
    #[must_use]
    pub fn get_device_name(&self, device: *mut ibv_device) -> String {
        assert!(self.devices().any(|d| d == device));
        // SAFETY: the device is in this list (just asserted); the name is a C string inside the device.
        let name = unsafe { CStr::from_ptr((self.symbols.ibv_get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    }

    /// Returns the GUID of a device of the list, in memory order.
    #[must_use]
    pub fn get_device_guid(&self, device: *mut ibv_device) -> u64 {
        assert!(self.devices().any(|d| d == device));
        // SAFETY: the device is in this list (just asserted).
        unsafe { (self.symbols.ibv_get_device_guid)(device) }
    }

    /// Opens a device of the list.
    ///
    /// # Errors
    /// Returns the errno of `ibv_open_device`.
    pub fn open(&self, env: &TestEnv, device: *mut ibv_device) -> Result<Context, i32> {
        assert!(self.devices().any(|d| d == device));
        set_errno(0);
        // SAFETY: the device is in this list (just asserted).
        let raw = unsafe { (self.symbols.ibv_open_device)(device) };
        Context::wrap(self.symbols, raw, env.clone())
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list and is freed once.
        unsafe { (self.symbols.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// Returns the texts for codes of statuses, events, node types and port states. The called functions
/// need no device.
#[must_use]
pub fn status_event_node_and_port_texts(
    symbols: &Symbols,
    codes: std::ops::RangeInclusive<u32>,
) -> Vec<String> {
    // SAFETY: the functions return C strings with static lifetime.
    let text = |ptr: *const std::ffi::c_char| unsafe {
        CStr::from_ptr(ptr).to_string_lossy().into_owned()
    };
    let mut texts = Vec::new();
    for code in codes {
        // SAFETY: the functions accept any number.
        unsafe {
            texts.push(text((symbols.ibv_wc_status_str)(code)));
            texts.push(text((symbols.ibv_event_type_str)(code)));
            texts.push(text((symbols.ibv_node_type_str)(code.cast_signed())));
            texts.push(text((symbols.ibv_port_state_str)(code)));
        }
    }
    texts
}

impl Context {
    /// Opens the device of `env`.
    #[must_use]
    #[track_caller]
    pub fn open(env: &TestEnv) -> Self {
        let list = expect_ok("ibv_get_device_list", DeviceList::new(env.symbols));
        let wanted = env.settings.device.as_deref();
        let device = list
            .devices()
            .find(|d| wanted.is_none_or(|name| list.get_device_name(*d) == name));
        let names: Vec<String> = list.devices().map(|d| list.get_device_name(d)).collect();
        let Some(device) = device else {
            panic!(
                "there is no device {}: there are {names:?}",
                wanted.unwrap_or("at all")
            );
        };
        expect_ok("ibv_open_device", list.open(env, device))
    }

    /// Returns the environment of the run.
    #[must_use]
    pub fn env(&self) -> &TestEnv {
        &self.0.env
    }

    pub(super) fn symbols(&self) -> &'static Symbols {
        self.0.symbols
    }

    /// Calls `ibv_query_device`.
    #[must_use]
    #[track_caller]
    pub fn device_attr(&self) -> ibv_device_attr {
        let mut attr = ibv_device_attr::zeroed();
        // SAFETY: a live context, a writable result.
        let errno = unsafe { (self.symbols().ibv_query_device)(self.raw(), &raw mut attr) };
        assert_eq!(errno, 0, "ibv_query_device");
        attr
    }

    /// Calls `ibv_query_port`.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn try_port_attr(&self, port: u8) -> Result<ibv_port_attr, i32> {
        let mut attr = ibv_port_attr::zeroed();
        // SAFETY: a live context; the result is writable, and zeroed as the symbol requires.
        match unsafe { (self.symbols().ibv_query_port)(self.raw(), port, &raw mut attr) } {
            0 => Ok(attr),
            errno => Err(errno),
        }
    }

    /// Calls `ibv_query_port` for the tested port.
    #[must_use]
    #[track_caller]
    pub fn port_attr(&self) -> ibv_port_attr {
        expect_ok(
            "ibv_query_port",
            self.try_port_attr(self.env().settings.port),
        )
    }

    /// Calls `ibv_query_gid`.
    ///
    /// # Errors
    /// Fails with the call's result if that is not 0.
    pub fn try_gid(&self, port: u8, index: i32) -> Result<[u8; 16], i32> {
        let mut gid = ibv_gid { raw: [0xa5; 16] };
        // SAFETY: a live context, a writable result.
        match unsafe { (self.symbols().ibv_query_gid)(self.raw(), port, index, &raw mut gid) } {
            // SAFETY: 16 initialised bytes either way.
            0 => Ok(unsafe { gid.raw }),
            other => Err(other),
        }
    }

    /// Calls `ibv_query_pkey`, and returns the P_Key in host order.
    ///
    /// # Errors
    /// Fails with the call's result if that is not 0.
    pub fn try_pkey(&self, port: u8, index: i32) -> Result<u16, i32> {
        let mut pkey = 0;
        // SAFETY: a live context, a writable result.
        match unsafe { (self.symbols().ibv_query_pkey)(self.raw(), port, index, &raw mut pkey) } {
            0 => Ok(u16::from_be(pkey)),
            other => Err(other),
        }
    }

    /// Returns `num_comp_vectors`.
    #[must_use]
    pub fn num_comp_vectors(&self) -> c_int {
        // SAFETY: a live context.
        unsafe { (*self.raw()).num_comp_vectors }
    }

    /// Allocates a protection domain.
    #[must_use]
    #[track_caller]
    pub fn alloc_pd(&self) -> Pd {
        set_errno(0);
        // SAFETY: a live context.
        let raw = unsafe { (self.symbols().ibv_alloc_pd)(self.raw()) };
        expect_ok("ibv_alloc_pd", Pd::wrap(self.symbols(), raw, self.clone()))
    }

    /// Creates a completion channel.
    #[must_use]
    #[track_caller]
    pub fn create_channel(&self) -> Channel {
        set_errno(0);
        // SAFETY: a live context.
        let raw = unsafe { (self.symbols().ibv_create_comp_channel)(self.raw()) };
        expect_ok(
            "ibv_create_comp_channel",
            Channel::wrap(self.symbols(), raw, self.clone()),
        )
    }

    /// Calls `ibv_create_cq`; `cq_context` is a number that stands for a pointer.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn try_create_cq(
        &self,
        cqe: c_int,
        channel: Option<&Channel>,
        vector: c_int,
        cq_context: usize,
    ) -> Result<Cq, i32> {
        set_errno(0);
        let channel_raw = channel.map_or(std::ptr::null_mut(), Channel::raw);
        let cq_context = std::ptr::without_provenance_mut::<c_void>(cq_context);
        // SAFETY: a live context; the channel, if any, is live and belongs to this context.
        let raw = unsafe {
            (self.symbols().ibv_create_cq)(self.raw(), cqe, cq_context, channel_raw, vector)
        };
        Cq::wrap(self.symbols(), raw, self.clone(), channel.cloned())
    }

    /// Creates a CQ without a channel.
    #[must_use]
    #[track_caller]
    pub fn create_cq(&self, cqe: c_int) -> Cq {
        expect_ok("ibv_create_cq", self.try_create_cq(cqe, None, 0, 0))
    }

    /// Creates a CQ on a channel.
    #[must_use]
    #[track_caller]
    pub fn create_cq_on_channel(&self, cqe: c_int, channel: &Channel) -> Cq {
        expect_ok(
            "ibv_create_cq",
            self.try_create_cq(cqe, Some(channel), 0, 0),
        )
    }

    /// Returns the next async event, or `None` if none occurs within `wait`.
    #[must_use]
    #[track_caller]
    pub fn get_async_event_within(&self, wait: Duration) -> Option<AsyncEvent> {
        // SAFETY: a live context.
        let fd = unsafe { (*self.raw()).async_fd };
        set_nonblocking(fd, true);
        if !becomes_readable_within(fd, wait) {
            return None;
        }
        let mut event = ibv_async_event {
            element: ibv_async_event_element { port_num: 0 },
            event_type: u32::MAX,
        };
        set_errno(0);
        // SAFETY: a live context, a writable result.
        let result = unsafe { (self.symbols().ibv_get_async_event)(self.raw(), &raw mut event) };
        if result != 0 {
            let errno = last_errno();
            assert_eq!(errno, libc::EAGAIN, "ibv_get_async_event");
            return None;
        }
        Some(AsyncEvent {
            raw: event,
            acked: false,
            ctx: self.clone(),
        })
    }

    /// Waits for the next async event. `COMM_EST`, which a NIC may raise at any time, is ignored.
    #[must_use]
    #[track_caller]
    pub fn await_async_event_but_comm_est(&self) -> AsyncEvent {
        record_awaited_event("waiting for an async event");
        let deadline = Instant::now() + wait_limit();
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            if let Some(event) = self.get_async_event_within(left)
                && event.kind() != IBV_EVENT_COMM_EST
            {
                record_awaited_event("");
                return event;
            }
        }
        panic!("no async event came");
    }

    /// Returns the errno of a non-blocking `ibv_get_async_event`; 0 if an event was waiting.
    #[must_use]
    pub fn nonblocking_get_async_event_errno(&self) -> i32 {
        // SAFETY: a live context.
        set_nonblocking(unsafe { (*self.raw()).async_fd }, true);
        let mut event = ibv_async_event {
            element: ibv_async_event_element { port_num: 0 },
            event_type: 0,
        };
        set_errno(0);
        // SAFETY: a live context, a writable result.
        match unsafe { (self.symbols().ibv_get_async_event)(self.raw(), &raw mut event) } {
            0 => 0,
            _ => last_errno(),
        }
    }
}

/// An async event; acknowledged when dropped.
pub struct AsyncEvent {
    raw: ibv_async_event,
    acked: bool,
    ctx: Context,
}

// SAFETY: the event is a copy of what the library returned; any thread may acknowledge it.
unsafe impl Send for AsyncEvent {}

impl AsyncEvent {
    /// Returns the event type: one of `IBV_EVENT_*`.
    #[must_use]
    pub fn kind(&self) -> ibv_event_type {
        self.raw.event_type
    }

    /// Returns true if the event concerns `qp`.
    #[must_use]
    pub fn concerns_qp(&self, qp: &Qp) -> bool {
        // SAFETY: all members are pointers or an int, and the union was filled by the library.
        unsafe { self.raw.element.qp == qp.raw() }
    }

    /// Returns true if the event concerns `cq`.
    #[must_use]
    pub fn concerns_cq(&self, cq: &Cq) -> bool {
        // SAFETY: as in `concerns_qp`.
        unsafe { self.raw.element.cq == cq.raw() }
    }

    /// Returns true if the event concerns `srq`.
    #[must_use]
    pub fn concerns_srq(&self, srq: &Srq) -> bool {
        // SAFETY: as in `concerns_qp`.
        unsafe { self.raw.element.srq == srq.raw() }
    }

    /// Acknowledges the event.
    pub fn ack(mut self) {
        self.ack_unless_acked();
    }

    fn ack_unless_acked(&mut self) {
        if !self.acked {
            self.acked = true;
            // SAFETY: the event came from ibv_get_async_event and is acknowledged once.
            unsafe { (self.ctx.symbols().ibv_ack_async_event)(&raw mut self.raw) };
        }
    }
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        self.ack_unless_acked();
    }
}
