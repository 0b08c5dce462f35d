//! Verbs objects that destroy themselves, in the right order, and insist that destroying works.
//!
//! Each is a counted handle: a clone is the same object, and an object keeps alive what it was made from.
//! Constructors come in two forms: `try_x` gives the errno of a refusal, `x` panics with it.
//!
//! Safe to call, though libibverbs is not: every pointer that is passed on is made here from live objects.
//! What the *contents* of work requests say is up to the test; refusing what is wrong is what a NIC is
//! tested for.
// Tests hand invalid pointers and handles to the verbs on purpose; these wrappers pass them on as C would.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs_abi::*;

use crate::env::Env;
use crate::harness::{note, patience};
use crate::memory::{MemKind, Memory};
use crate::wr::{RecvWr, Refused, Remote, SendWr, Wc, link_recv, link_send};

/// Local write, and everything that a remote peer may do.
pub const ALL_ACCESS: c_int = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC;

/// `errno` of the call that has just returned NULL.
fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn set_errno(value: c_int) {
    // SAFETY: the location is valid for this thread's life.
    unsafe { *libc::__errno_location() = value };
}

/// Declares a counted handle over a raw object, destroyed by an entry point of the provider.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $inner:ident: $raw:ty, $destroy:ident, keeps ($($keep:ident: $keep_ty:ty),*)) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name(Arc<$inner>);

        struct $inner {
            raw: NonNull<$raw>,
            symbols: &'static Symbols,
            gone: AtomicBool,
            $( $keep: $keep_ty, )*
        }

        // SAFETY: libibverbs objects may be used from any thread at once (`Documentation/libibverbs.md` of
        // rdma-core: "libibverbs is thread safe").
        unsafe impl Send for $inner {}
        // SAFETY: as for Send.
        unsafe impl Sync for $inner {}

        impl $name {
            #[allow(clippy::redundant_field_names)]
            fn wrap(symbols: &'static Symbols, raw: *mut $raw, $($keep: $keep_ty),*) -> Result<Self, i32> {
                let raw = NonNull::new(raw).ok_or_else(last_errno)?;
                Ok(Self(Arc::new($inner { raw, symbols, gone: AtomicBool::new(false), $($keep),* })))
            }

            /// The raw object.
            #[must_use]
            pub fn raw(&self) -> *mut $raw {
                self.0.raw.as_ptr()
            }

            /// Tries to destroy it while it is still in use; what the call returns. When that is 0 the
            /// object is gone, and this handle must not be used any more.
            #[must_use]
            pub fn try_destroy(&self) -> i32 {
                assert!(!self.0.gone.load(Ordering::Relaxed), "destroyed before");
                // SAFETY: the object is live (`gone` is false, just asserted).
                let errno = unsafe { (self.0.symbols.$destroy)(self.raw()) };
                self.0.gone.store(errno == 0, Ordering::Relaxed);
                errno
            }
        }

        impl Drop for $inner {
            fn drop(&mut self) {
                if *self.gone.get_mut() {
                    return;
                }
                // SAFETY: the object is live, and this is its last handle.
                let errno = unsafe { (self.symbols.$destroy)(self.raw.as_ptr()) };
                if errno != 0 && !std::thread::panicking() {
                    panic!(concat!(stringify!($destroy), " returned {}"), errno);
                }
            }
        }
    };
}

object! {
    /// An open device.
    Context, ContextInner: ibv_context, ibv_close_device, keeps (env: Env)
}
object! {
    /// A protection domain.
    Pd, PdInner: ibv_pd, ibv_dealloc_pd, keeps (ctx: Context)
}
object! {
    /// A memory region. It does not own its memory: see [`Buf`].
    Mr, MrInner: ibv_mr, ibv_dereg_mr, keeps (_pd: Pd)
}
object! {
    /// A completion channel.
    Channel, ChannelInner: ibv_comp_channel, ibv_destroy_comp_channel, keeps (_ctx: Context)
}
object! {
    /// A completion queue.
    Cq, CqInner: ibv_cq, ibv_destroy_cq, keeps (_ctx: Context, _channel: Option<Channel>)
}
object! {
    /// A shared receive queue.
    Srq, SrqInner: ibv_srq, ibv_destroy_srq, keeps (_pd: Pd)
}
object! {
    /// A queue pair.
    Qp, QpInner: ibv_qp, ibv_destroy_qp, keeps (_pd: Pd, _cqs: [Cq; 2], _srq: Option<Srq>)
}
object! {
    /// An address handle.
    Ah, AhInner: ibv_ah, ibv_destroy_ah, keeps (_pd: Pd)
}

/// Calls `$what` and panics with its name and the errno if it refuses.
#[track_caller]
fn must<T>(what: &str, result: Result<T, i32>) -> T {
    result.unwrap_or_else(|errno| {
        panic!(
            "{what} failed: {}",
            std::io::Error::from_raw_os_error(errno)
        );
    })
}

/// Names of the devices of a provider.
///
/// # Errors
/// The errno of `ibv_get_device_list`.
pub fn device_names(symbols: &'static Symbols) -> Result<Vec<String>, i32> {
    let list = DeviceList::new(symbols)?;
    Ok(list.devices().map(|device| list.name(device)).collect())
}

/// What `ibv_get_device_list` returned.
pub struct DeviceList {
    symbols: &'static Symbols,
    list: NonNull<*mut ibv_device>,
    /// The count that it wrote.
    pub count: c_int,
}

impl DeviceList {
    /// Gets the list.
    ///
    /// # Errors
    /// The errno of `ibv_get_device_list`.
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

    /// Whether a call without a place for the count works too.
    #[must_use]
    pub fn works_without_count(&self) -> bool {
        // SAFETY: the man page allows NULL; the list is freed at once.
        unsafe {
            let list = (self.symbols.ibv_get_device_list)(std::ptr::null_mut());
            if !list.is_null() {
                (self.symbols.ibv_free_device_list)(list);
            }
            !list.is_null()
        }
    }

    /// Each device up to the NULL at the end.
    pub fn devices(&self) -> impl Iterator<Item = *mut ibv_device> + '_ {
        // SAFETY: the list ends with NULL (`ibv_get_device_list(3)`), and is freed only by `drop`.
        (0..)
            .map(|i| unsafe { *self.list.as_ptr().add(i) })
            .take_while(|d| !d.is_null())
    }

    /// Name of a device of the list.
    #[must_use]
    pub fn name(&self, device: *mut ibv_device) -> String {
        assert!(self.devices().any(|d| d == device));
        // SAFETY: the device is of this list, just asserted; the name is a C string inside it.
        let name = unsafe { CStr::from_ptr((self.symbols.ibv_get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    }

    /// GUID of a device of the list, as it lies in memory.
    #[must_use]
    pub fn guid(&self, device: *mut ibv_device) -> u64 {
        assert!(self.devices().any(|d| d == device));
        // SAFETY: the device is of this list, just asserted.
        unsafe { (self.symbols.ibv_get_device_guid)(device) }
    }

    /// Opens a device of the list.
    ///
    /// # Errors
    /// The errno of `ibv_open_device`.
    pub fn open(&self, env: &Env, device: *mut ibv_device) -> Result<Context, i32> {
        assert!(self.devices().any(|d| d == device));
        set_errno(0);
        // SAFETY: the device is of this list, just asserted.
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

/// The texts of codes, which need no device.
#[must_use]
pub fn code_texts(symbols: &Symbols, codes: std::ops::RangeInclusive<u32>) -> Vec<String> {
    // SAFETY: a C string that lives for ever.
    let text = |ptr: *const std::ffi::c_char| unsafe {
        CStr::from_ptr(ptr).to_string_lossy().into_owned()
    };
    let mut texts = Vec::new();
    for code in codes {
        // SAFETY: the functions take any number.
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
    pub fn open(env: &Env) -> Self {
        let list = must("ibv_get_device_list", DeviceList::new(env.symbols));
        let wanted = env.settings.device.as_deref();
        let device = list
            .devices()
            .find(|d| wanted.is_none_or(|name| list.name(*d) == name));
        let names: Vec<String> = list.devices().map(|d| list.name(d)).collect();
        let Some(device) = device else {
            panic!(
                "there is no device {}: there are {names:?}",
                wanted.unwrap_or("at all")
            );
        };
        must("ibv_open_device", list.open(env, device))
    }

    /// Where the suite runs.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.0.env
    }

    fn symbols(&self) -> &'static Symbols {
        self.0.symbols
    }

    /// `ibv_query_device`.
    #[must_use]
    #[track_caller]
    pub fn device_attr(&self) -> ibv_device_attr {
        let mut attr = ibv_device_attr::zeroed();
        // SAFETY: a live context, a writable result.
        let errno = unsafe { (self.symbols().ibv_query_device)(self.raw(), &raw mut attr) };
        assert_eq!(errno, 0, "ibv_query_device");
        attr
    }

    /// `ibv_query_port`.
    ///
    /// # Errors
    /// Its errno.
    pub fn try_port_attr(&self, port: u8) -> Result<ibv_port_attr, i32> {
        let mut attr = ibv_port_attr::zeroed();
        // SAFETY: a live context, a writable result, zeroed as the symbol asks for.
        match unsafe { (self.symbols().ibv_query_port)(self.raw(), port, &raw mut attr) } {
            0 => Ok(attr),
            errno => Err(errno),
        }
    }

    /// `ibv_query_port` of the port that is tested.
    #[must_use]
    #[track_caller]
    pub fn port_attr(&self) -> ibv_port_attr {
        must(
            "ibv_query_port",
            self.try_port_attr(self.env().settings.port),
        )
    }

    /// `ibv_query_gid`.
    ///
    /// # Errors
    /// What it returned.
    pub fn try_gid(&self, port: u8, index: i32) -> Result<[u8; 16], i32> {
        let mut gid = ibv_gid { raw: [0xa5; 16] };
        // SAFETY: a live context, a writable result.
        match unsafe { (self.symbols().ibv_query_gid)(self.raw(), port, index, &raw mut gid) } {
            // SAFETY: 16 initialised bytes either way.
            0 => Ok(unsafe { gid.raw }),
            other => Err(other),
        }
    }

    /// `ibv_query_pkey`, in host order.
    ///
    /// # Errors
    /// What it returned.
    pub fn try_pkey(&self, port: u8, index: i32) -> Result<u16, i32> {
        let mut pkey = 0;
        // SAFETY: a live context, a writable result.
        match unsafe { (self.symbols().ibv_query_pkey)(self.raw(), port, index, &raw mut pkey) } {
            0 => Ok(u16::from_be(pkey)),
            other => Err(other),
        }
    }

    /// `num_comp_vectors`.
    #[must_use]
    pub fn comp_vectors(&self) -> c_int {
        // SAFETY: a live context.
        unsafe { (*self.raw()).num_comp_vectors }
    }

    /// Allocates a protection domain.
    #[must_use]
    #[track_caller]
    pub fn pd(&self) -> Pd {
        set_errno(0);
        // SAFETY: a live context.
        let raw = unsafe { (self.symbols().ibv_alloc_pd)(self.raw()) };
        must("ibv_alloc_pd", Pd::wrap(self.symbols(), raw, self.clone()))
    }

    /// Creates a completion channel.
    #[must_use]
    #[track_caller]
    pub fn channel(&self) -> Channel {
        set_errno(0);
        // SAFETY: a live context.
        let raw = unsafe { (self.symbols().ibv_create_comp_channel)(self.raw()) };
        must(
            "ibv_create_comp_channel",
            Channel::wrap(self.symbols(), raw, self.clone()),
        )
    }

    /// `ibv_create_cq`, with `cq_context` as a number.
    ///
    /// # Errors
    /// Its errno.
    pub fn try_cq(
        &self,
        cqe: c_int,
        channel: Option<&Channel>,
        vector: c_int,
        cq_context: usize,
    ) -> Result<Cq, i32> {
        set_errno(0);
        let channel_raw = channel.map_or(std::ptr::null_mut(), Channel::raw);
        let cq_context = std::ptr::without_provenance_mut::<c_void>(cq_context);
        // SAFETY: a live context; the channel, if any, is live and of this context.
        let raw = unsafe {
            (self.symbols().ibv_create_cq)(self.raw(), cqe, cq_context, channel_raw, vector)
        };
        Cq::wrap(self.symbols(), raw, self.clone(), channel.cloned())
    }

    /// A CQ without a channel.
    #[must_use]
    #[track_caller]
    pub fn cq(&self, cqe: c_int) -> Cq {
        must("ibv_create_cq", self.try_cq(cqe, None, 0, 0))
    }

    /// A CQ on a channel.
    #[must_use]
    #[track_caller]
    pub fn cq_on(&self, cqe: c_int, channel: &Channel) -> Cq {
        must("ibv_create_cq", self.try_cq(cqe, Some(channel), 0, 0))
    }

    /// The next async event, or `None` if there is none within `wait`.
    #[must_use]
    #[track_caller]
    pub fn async_event(&self, wait: Duration) -> Option<AsyncEvent> {
        // SAFETY: a live context.
        let fd = unsafe { (*self.raw()).async_fd };
        set_nonblocking(fd, true);
        if !readable(fd, wait) {
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

    /// Waits for the next async event, ignoring those that a NIC may raise on its own (`COMM_EST`).
    #[must_use]
    #[track_caller]
    pub fn next_async_event(&self) -> AsyncEvent {
        note("waiting for an async event");
        let deadline = Instant::now() + patience();
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            if let Some(event) = self.async_event(left)
                && event.kind() != IBV_EVENT_COMM_EST
            {
                note("");
                return event;
            }
        }
        panic!("no async event came");
    }

    /// What a read of the async event queue returns when it is empty and not blocking: the errno.
    #[must_use]
    pub fn async_event_errno(&self) -> i32 {
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

// SAFETY: a copy of what the library handed out; any thread may acknowledge it.
unsafe impl Send for AsyncEvent {}

impl AsyncEvent {
    /// One of `IBV_EVENT_*`.
    #[must_use]
    pub fn kind(&self) -> ibv_event_type {
        self.raw.event_type
    }

    /// Whether it is about that QP.
    #[must_use]
    pub fn is_of_qp(&self, qp: &Qp) -> bool {
        // SAFETY: all members are pointers or an int, and the union was filled by the library.
        unsafe { self.raw.element.qp == qp.raw() }
    }

    /// Whether it is about that SRQ.
    #[must_use]
    pub fn is_of_srq(&self, srq: &Srq) -> bool {
        // SAFETY: as in `is_of_qp`.
        unsafe { self.raw.element.srq == srq.raw() }
    }

    /// Acknowledges it.
    pub fn ack(mut self) {
        self.do_ack();
    }

    fn do_ack(&mut self) {
        if !self.acked {
            self.acked = true;
            // SAFETY: the event came from ibv_get_async_event and is acknowledged once.
            unsafe { (self.ctx.symbols().ibv_ack_async_event)(&raw mut self.raw) };
        }
    }
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        self.do_ack();
    }
}

/// Whether `fd` is readable within `wait`.
#[must_use]
pub fn readable(fd: c_int, wait: Duration) -> bool {
    // SAFETY: the descriptor belongs to a live object of the library.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let timeout = rustix::time::Timespec {
        tv_sec: i64::try_from(wait.as_secs()).expect("a sane wait"),
        tv_nsec: wait.subsec_nanos().into(),
    };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&timeout)), Ok(n) if n > 0)
}

/// Sets or clears `O_NONBLOCK`, as programs do with the library's descriptors.
pub fn set_nonblocking(fd: c_int, on: bool) {
    // SAFETY: the descriptor belongs to a live object of the library.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let mut flags = fcntl_getfl(fd).expect("F_GETFL of the library's descriptor");
    flags.set(OFlags::NONBLOCK, on);
    fcntl_setfl(fd, flags).expect("F_SETFL of the library's descriptor");
}

impl Pd {
    fn symbols(&self) -> &'static Symbols {
        self.0.symbols
    }

    /// The device that it is of.
    #[must_use]
    pub fn ctx(&self) -> &Context {
        &self.0.ctx
    }

    /// `ibv_reg_mr` of any range.
    ///
    /// # Errors
    /// Its errno.
    pub fn try_reg(&self, addr: *mut c_void, len: usize, access: c_int) -> Result<Mr, i32> {
        set_errno(0);
        // SAFETY: a live PD; the NIC checks the range, and the test keeps its memory while it is used.
        let raw = unsafe { (self.symbols().ibv_reg_mr)(self.raw(), addr, len, access) };
        Mr::wrap(self.symbols(), raw, self.clone())
    }

    /// `ibv_alloc_null_mr`.
    #[must_use]
    #[track_caller]
    pub fn null_mr(&self) -> Mr {
        set_errno(0);
        // SAFETY: a live PD of a context that has the extended operations.
        let raw = unsafe {
            let alloc = verbs_get_ctx((*self.raw()).context)
                .as_ref()
                .and_then(|extended| extended.alloc_null_mr);
            alloc.map_or(std::ptr::null_mut(), |alloc| alloc(self.raw()))
        };
        must(
            "ibv_alloc_null_mr",
            Mr::wrap(self.symbols(), raw, self.clone()),
        )
    }

    /// Registers `memory` from its first to its last byte.
    #[must_use]
    #[track_caller]
    pub fn reg(&self, memory: &Memory, access: c_int) -> Mr {
        must(
            "ibv_reg_mr",
            self.try_reg(memory.as_ptr(), memory.len(), access),
        )
    }

    /// Fresh memory, registered.
    #[must_use]
    #[track_caller]
    pub fn buf_with(&self, kind: MemKind, len: usize, access: c_int) -> Buf {
        let memory = Arc::new(Memory::new(self.ctx().env(), kind, len));
        let mr = self.reg(&memory, access);
        Buf { mr, memory }
    }

    /// Fresh private memory, registered with every right.
    #[must_use]
    #[track_caller]
    pub fn buf(&self, len: usize) -> Buf {
        self.buf_with(MemKind::Private, len, ALL_ACCESS)
    }

    /// `ibv_create_qp`; `init` comes back as the call left it.
    ///
    /// # Errors
    /// Its errno.
    pub fn try_qp(&self, init: &mut QpInit) -> Result<Qp, i32> {
        let mut attr = init.attr();
        set_errno(0);
        // SAFETY: a live PD; the CQs and the SRQ in `attr` are live (`init` holds them) or NULL.
        let raw = unsafe { (self.symbols().ibv_create_qp)(self.raw(), &raw mut attr) };
        if !raw.is_null() {
            init.cap = attr.cap;
        }
        let cqs = [init.send_cq.clone(), init.recv_cq.clone()];
        Qp::wrap(self.symbols(), raw, self.clone(), cqs, init.srq.clone())
    }

    /// `ibv_create_qp` with a NULL send CQ, or a NULL receive CQ: always wrong.
    #[must_use]
    pub fn qp_without_cq(&self, init: &QpInit, send: bool) -> Option<Qp> {
        let mut attr = init.attr();
        if send {
            attr.send_cq = std::ptr::null_mut();
        } else {
            attr.recv_cq = std::ptr::null_mut();
        }
        // SAFETY: as in `try_qp`; that NULL is refused is what is tested.
        let raw = unsafe { (self.symbols().ibv_create_qp)(self.raw(), &raw mut attr) };
        let cqs = [init.send_cq.clone(), init.recv_cq.clone()];
        Qp::wrap(self.symbols(), raw, self.clone(), cqs, None).ok()
    }

    /// Creates a QP.
    #[must_use]
    #[track_caller]
    pub fn qp(&self, init: &mut QpInit) -> Qp {
        must("ibv_create_qp", self.try_qp(init))
    }

    /// `ibv_create_srq`; the sizes that it really has.
    ///
    /// # Errors
    /// Its errno.
    pub fn try_srq(&self, max_wr: u32, max_sge: u32) -> Result<(Srq, ibv_srq_attr), i32> {
        let mut init = ibv_srq_init_attr::zeroed();
        init.srq_context = std::ptr::without_provenance_mut(0x5e9);
        init.attr.max_wr = max_wr;
        init.attr.max_sge = max_sge;
        set_errno(0);
        // SAFETY: a live PD, readable and writable attributes.
        let raw = unsafe { (self.symbols().ibv_create_srq)(self.raw(), &raw mut init) };
        Ok((Srq::wrap(self.symbols(), raw, self.clone())?, init.attr))
    }

    /// An SRQ of 64 WRs with 4 SGEs.
    #[must_use]
    #[track_caller]
    pub fn srq(&self) -> Srq {
        must("ibv_create_srq", self.try_srq(64, 4)).0
    }

    /// `ibv_create_ah`.
    ///
    /// # Errors
    /// Its errno.
    pub fn try_ah(&self, attr: &ibv_ah_attr) -> Result<Ah, i32> {
        let mut attr = *attr;
        set_errno(0);
        // SAFETY: a live PD, readable attributes.
        let raw = unsafe { (self.symbols().ibv_create_ah)(self.raw(), &raw mut attr) };
        Ah::wrap(self.symbols(), raw, self.clone())
    }

    /// `ibv_create_ah`.
    #[must_use]
    #[track_caller]
    pub fn ah(&self, attr: &ibv_ah_attr) -> Ah {
        must("ibv_create_ah", self.try_ah(attr))
    }

    /// `ibv_create_ah_from_wc`: the way back to the sender of a UD message, whose GRH is in `grh`.
    ///
    /// # Errors
    /// Its errno.
    pub fn try_ah_from_wc(&self, wc: &Wc, grh: &[u8; 40]) -> Result<Ah, i32> {
        let mut wc = wc.0;
        let mut grh = grh_of(grh);
        let port = self.ctx().env().settings.port;
        set_errno(0);
        // SAFETY: a live PD; completion and GRH are copies of what the NIC delivered.
        let raw = unsafe {
            (self.symbols().ibv_create_ah_from_wc)(self.raw(), &raw mut wc, &raw mut grh, port)
        };
        Ah::wrap(self.symbols(), raw, self.clone())
    }

    /// `ibv_init_ah_from_wc`.
    ///
    /// # Errors
    /// What it returned.
    pub fn ah_attr_from_wc(&self, wc: &Wc, grh: &[u8; 40]) -> Result<ibv_ah_attr, i32> {
        let mut wc = wc.0;
        let mut grh = grh_of(grh);
        let mut attr = ibv_ah_attr::zeroed();
        let ctx = self.ctx();
        let port = ctx.env().settings.port;
        // SAFETY: a live context; copies of what the NIC delivered; a writable result.
        let result = unsafe {
            (self.symbols().ibv_init_ah_from_wc)(
                ctx.raw(),
                port,
                &raw mut wc,
                &raw mut grh,
                &raw mut attr,
            )
        };
        if result == 0 { Ok(attr) } else { Err(result) }
    }
}

fn grh_of(bytes: &[u8; 40]) -> ibv_grh {
    // SAFETY: `ibv_grh` is 40 bytes of plain numbers.
    unsafe { std::mem::transmute_copy(bytes) }
}

/// Whether the two address vectors name the same GID (and, without GRH, the same LID).
#[must_use]
pub fn same_destination(a: &ibv_ah_attr, b: &ibv_ah_attr) -> bool {
    // SAFETY: GIDs are 16 bytes of plain numbers.
    let gids = unsafe { a.grh.dgid.raw == b.grh.dgid.raw };
    a.is_global == b.is_global && a.dlid == b.dlid && (a.is_global == 0 || gids)
}

impl Mr {
    /// `ibv_rereg_mr` of the access rights alone: what it returns.
    #[must_use]
    pub fn rereg_access(&self, access: c_int) -> c_int {
        let flags = IBV_REREG_MR_CHANGE_ACCESS;
        let (pd, addr) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live region; what is not to be changed is not looked at.
        unsafe { (self.0.symbols.ibv_rereg_mr)(self.raw(), flags, pd, addr, 0, access) }
    }

    /// The region as the library filled it.
    #[must_use]
    pub fn fields(&self) -> ibv_mr {
        // SAFETY: live; the library does not write to it.
        unsafe { *self.raw() }
    }

    /// Its L_Key.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.fields().lkey
    }

    /// Its R_Key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.fields().rkey
    }
}

/// Registered memory.
#[derive(Clone)]
pub struct Buf {
    /// The region: deregistered before the memory goes.
    pub mr: Mr,
    /// The memory.
    pub memory: Arc<Memory>,
}

impl Buf {
    /// `len` bytes from `offset`, also where these are out of range.
    #[must_use]
    pub fn sge(&self, offset: u64, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.memory.addr().wrapping_add(offset),
            length: u32::try_from(len).expect("a length"),
            lkey: self.mr.lkey(),
        }
    }

    /// All of it.
    #[must_use]
    pub fn all(&self) -> ibv_sge {
        self.sge(0, self.memory.len())
    }

    /// As the target of one-sided verbs.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote {
            addr: self.memory.addr(),
            rkey: self.mr.rkey(),
        }
    }

    /// `len` bytes from `offset`, cut into SGEs of the given lengths; the last takes the rest.
    #[must_use]
    #[track_caller]
    pub fn split(&self, mut offset: u64, len: usize, cuts: &[usize]) -> Vec<ibv_sge> {
        let mut left = len;
        let mut sges = Vec::new();
        for &cut in cuts {
            assert!(cut <= left);
            sges.push(self.sge(offset, cut));
            offset += cut as u64;
            left -= cut;
        }
        sges.push(self.sge(offset, left));
        sges
    }
}

impl Channel {
    fn fd(&self) -> c_int {
        // SAFETY: live.
        unsafe { (*self.raw()).fd }
    }

    /// Whether an event is waiting, or comes within `wait`.
    #[must_use]
    pub fn readable(&self, wait: Duration) -> bool {
        readable(self.fd(), wait)
    }

    /// Sets or clears `O_NONBLOCK`.
    pub fn set_nonblocking(&self, on: bool) {
        set_nonblocking(self.fd(), on);
    }

    /// `ibv_get_cq_event`: the raw CQ and its `cq_context`; not acknowledged yet.
    ///
    /// # Errors
    /// Its errno.
    pub fn event(&self) -> Result<(*mut ibv_cq, usize), i32> {
        let mut cq = std::ptr::null_mut();
        let mut cq_context = std::ptr::null_mut();
        set_errno(0);
        // SAFETY: a live channel, writable results.
        let result = unsafe {
            (self.0.symbols.ibv_get_cq_event)(self.raw(), &raw mut cq, &raw mut cq_context)
        };
        if result == 0 {
            Ok((cq, cq_context.addr()))
        } else {
            Err(last_errno())
        }
    }

    /// Waits for an event of `cq` and acknowledges it.
    #[track_caller]
    pub fn expect_event(&self, cq: &Cq) {
        self.set_nonblocking(true);
        note("waiting for a CQ event");
        assert!(self.readable(patience()), "no CQ event came");
        note("");
        let (raw, _) = must("ibv_get_cq_event", self.event());
        assert_eq!(raw, cq.raw(), "the event is another CQ's");
        cq.ack(1);
    }

    /// Panics if an event is waiting or comes within a moment.
    #[track_caller]
    pub fn expect_no_event(&self) {
        assert!(!self.readable(MOMENT), "a CQ event came");
        self.set_nonblocking(true);
        assert_eq!(self.event(), Err(libc::EAGAIN));
    }
}

/// How long tests wait to see that something does *not* happen.
pub const MOMENT: Duration = Duration::from_millis(20);

impl Cq {
    /// Its capacity.
    #[must_use]
    pub fn cqe(&self) -> usize {
        // SAFETY: live.
        usize::try_from(unsafe { (*self.raw()).cqe }).expect("a capacity is not negative")
    }

    /// `ibv_poll_cq` for up to `max` completions.
    #[must_use]
    #[track_caller]
    pub fn poll(&self, max: usize) -> Vec<Wc> {
        let mut wcs = vec![ibv_wc::zeroed(); max];
        for wc in &mut wcs {
            // SAFETY: completions are plain numbers. A field that is left unwritten shows by this value.
            unsafe { std::ptr::from_mut(wc).write_bytes(0xa5, 1) };
        }
        let count = c_int::try_from(max).expect("few");
        // SAFETY: a live CQ, room for `max` completions.
        let got = unsafe { ibv_poll_cq(self.raw(), count, wcs.as_mut_ptr()) };
        assert!(
            (0..=count).contains(&got),
            "ibv_poll_cq({count}) returned {got}"
        );
        wcs.truncate(usize::try_from(got).expect("not negative"));
        wcs.into_iter().map(Wc).collect()
    }

    /// What `ibv_poll_cq` returns for any count, with room for one completion.
    #[must_use]
    pub fn poll_count(&self, count: c_int) -> c_int {
        assert!(count <= 1);
        let mut wc = ibv_wc::zeroed();
        // SAFETY: a live CQ, room for one completion.
        unsafe { ibv_poll_cq(self.raw(), count, &raw mut wc) }
    }

    /// Waits for `n` completions.
    #[must_use]
    #[track_caller]
    pub fn take(&self, n: usize) -> Vec<Wc> {
        let deadline = Instant::now() + patience();
        let mut wcs: Vec<Wc> = Vec::with_capacity(n);
        note(&format!("waiting for {n} completions"));
        let mut idle = 0u32;
        while wcs.len() < n {
            let more = self.poll((n - wcs.len()).min(64));
            if more.is_empty() {
                idle += 1;
                // A NIC may need this core to bring the completion about.
                if idle.is_multiple_of(64) {
                    std::thread::sleep(Duration::from_micros(50));
                } else {
                    std::thread::yield_now();
                }
                if idle.is_multiple_of(1024) {
                    assert!(
                        Instant::now() < deadline,
                        "{} of {n} completions came: {wcs:?}",
                        wcs.len()
                    );
                }
            } else {
                idle = 0;
                wcs.extend(more);
            }
        }
        note("");
        wcs
    }

    /// Waits for one completion.
    #[must_use]
    #[track_caller]
    pub fn next(&self) -> Wc {
        self.take(1)[0]
    }

    /// Polls for a moment; whatever comes.
    #[must_use]
    #[track_caller]
    pub fn drain(&self) -> Vec<Wc> {
        let end = Instant::now() + MOMENT;
        let mut wcs = Vec::new();
        loop {
            wcs.extend(self.poll(64));
            if Instant::now() > end {
                return wcs;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Panics if a completion is there or comes within a moment.
    #[track_caller]
    pub fn expect_empty(&self) {
        let wcs = self.drain();
        assert!(wcs.is_empty(), "completions that should not be: {wcs:?}");
    }

    /// `ibv_req_notify_cq`.
    #[track_caller]
    pub fn arm(&self, solicited_only: bool) {
        // SAFETY: a live CQ.
        let errno = unsafe { ibv_req_notify_cq(self.raw(), solicited_only.into()) };
        assert_eq!(errno, 0, "ibv_req_notify_cq");
    }

    /// `ibv_ack_cq_events`.
    pub fn ack(&self, events: u32) {
        // SAFETY: a live CQ.
        unsafe { (self.0.symbols.ibv_ack_cq_events)(self.raw(), events) };
    }
}

impl Srq {
    /// `ibv_post_srq_recv` of a postlist.
    ///
    /// # Errors
    /// What it returned and where it stopped.
    pub fn try_post(&self, mut wrs: Vec<RecvWr>) -> Result<(), Refused> {
        let head = link_recv(&mut wrs);
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live SRQ; the list lives until the call returns and is well-formed.
        let errno = unsafe { ibv_post_srq_recv(self.raw(), head, &raw mut bad) };
        refused(
            errno,
            wrs.iter()
                .position(|wr| std::ptr::eq(&raw const wr.raw, bad)),
        )
    }

    /// Posts one WR.
    #[track_caller]
    pub fn recv(&self, wr_id: u64, sges: impl IntoIterator<Item = ibv_sge>) {
        self.try_post(vec![crate::wr::recv(wr_id, sges)])
            .expect("ibv_post_srq_recv");
    }

    /// `ibv_modify_srq`.
    ///
    /// # Errors
    /// Its errno.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), i32> {
        let mut attr = ibv_srq_attr::zeroed();
        let mut mask = 0;
        if let Some(max_wr) = max_wr {
            attr.max_wr = max_wr;
            mask |= IBV_SRQ_MAX_WR;
        }
        if let Some(limit) = limit {
            attr.srq_limit = limit;
            mask |= IBV_SRQ_LIMIT;
        }
        // SAFETY: a live SRQ, readable attributes.
        match unsafe { (self.0.symbols.ibv_modify_srq)(self.raw(), &raw mut attr, mask) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// `ibv_query_srq`.
    #[must_use]
    #[track_caller]
    pub fn query(&self) -> ibv_srq_attr {
        let mut attr = ibv_srq_attr::zeroed();
        // SAFETY: a live SRQ, a writable result.
        let errno = unsafe { (self.0.symbols.ibv_query_srq)(self.raw(), &raw mut attr) };
        assert_eq!(errno, 0, "ibv_query_srq");
        attr
    }
}

/// How a QP is created.
#[derive(Clone)]
pub struct QpInit {
    /// Transport.
    pub qp_type: ibv_qp_type,
    /// Send CQ.
    pub send_cq: Cq,
    /// Receive CQ.
    pub recv_cq: Cq,
    /// SRQ, if it uses one.
    pub srq: Option<Srq>,
    /// Sizes: asked for, and once created what it has.
    pub cap: ibv_qp_cap,
    /// `sq_sig_all`.
    pub sig_all: bool,
}

impl QpInit {
    /// A QP of 16 WRs with 4 SGEs in each queue, nothing inline.
    #[must_use]
    pub fn new(qp_type: ibv_qp_type, send_cq: &Cq, recv_cq: &Cq) -> Self {
        Self {
            qp_type,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: None,
            cap: ibv_qp_cap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 0,
            },
            sig_all: false,
        }
    }

    fn attr(&self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: std::ptr::without_provenance_mut(0x9_9),
            send_cq: self.send_cq.raw(),
            recv_cq: self.recv_cq.raw(),
            srq: self.srq.as_ref().map_or(std::ptr::null_mut(), Srq::raw),
            cap: self.cap,
            qp_type: self.qp_type,
            sq_sig_all: self.sig_all.into(),
        }
    }
}

fn refused(errno: i32, bad: Option<usize>) -> Result<(), Refused> {
    if errno == 0 {
        Ok(())
    } else {
        Err(Refused { errno, bad })
    }
}

impl Srq {
    /// Takes over what another call of the provider than `ibv_create_srq` has made.
    pub(crate) fn adopt(raw: *mut ibv_srq, pd: &Pd) -> Result<Self, i32> {
        Self::wrap(pd.symbols(), raw, pd.clone())
    }
}

impl Qp {
    /// Takes over what another call of the provider than `ibv_create_qp` has made.
    pub(crate) fn adopt(raw: *mut ibv_qp, pd: &Pd, cq: &Cq) -> Result<Self, i32> {
        Self::wrap(
            pd.symbols(),
            raw,
            pd.clone(),
            [cq.clone(), cq.clone()],
            None,
        )
    }

    /// `ibv_attach_mcast`; what it returned.
    #[must_use]
    pub fn attach_mcast(&self, gid: [u8; 16]) -> i32 {
        let gid = ibv_gid { raw: gid };
        // SAFETY: a live QP, a readable GID.
        unsafe { (self.0.symbols.ibv_attach_mcast)(self.raw(), &raw const gid, 0xc000) }
    }

    /// `ibv_detach_mcast`; what it returned.
    #[must_use]
    pub fn detach_mcast(&self, gid: [u8; 16]) -> i32 {
        let gid = ibv_gid { raw: gid };
        // SAFETY: a live QP, a readable GID.
        unsafe { (self.0.symbols.ibv_detach_mcast)(self.raw(), &raw const gid, 0xc000) }
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        // SAFETY: live.
        unsafe { (*self.raw()).qp_num }
    }

    /// Its transport.
    #[must_use]
    pub fn qp_type(&self) -> ibv_qp_type {
        // SAFETY: live.
        unsafe { (*self.raw()).qp_type }
    }

    /// `qp->state`: what the library believes.
    #[must_use]
    pub fn believed_state(&self) -> ibv_qp_state {
        // SAFETY: live; a plain number that a racing write cannot make invalid.
        unsafe { (&raw const (*self.raw()).state).read_volatile() }
    }

    /// Panics unless the fields of `struct ibv_qp` are those that it was created with.
    #[track_caller]
    pub fn check_fields(&self, pd: &Pd, init: &QpInit) {
        // SAFETY: live; these fields never change.
        unsafe {
            let qp = self.raw();
            assert_eq!((*qp).context, pd.ctx().raw());
            assert_eq!((*qp).pd, pd.raw());
            assert_eq!((*qp).send_cq, init.send_cq.raw());
            assert_eq!((*qp).recv_cq, init.recv_cq.raw());
            assert_eq!(
                (*qp).srq,
                init.srq.as_ref().map_or(std::ptr::null_mut(), Srq::raw)
            );
            assert_eq!((*qp).qp_type, init.qp_type);
            assert_eq!((*qp).qp_context.addr(), 0x99);
        }
        assert_eq!(self.believed_state(), IBV_QPS_RESET);
    }

    /// `ibv_modify_qp`.
    ///
    /// # Errors
    /// Its errno.
    pub fn modify(&self, attr: &ibv_qp_attr, mask: c_int) -> Result<(), i32> {
        let mut attr = *attr;
        // SAFETY: a live QP, readable attributes.
        match unsafe { (self.0.symbols.ibv_modify_qp)(self.raw(), &raw mut attr, mask) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Goes to a state that takes no attributes.
    #[track_caller]
    pub fn to_state(&self, state: ibv_qp_state) {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = state;
        must("ibv_modify_qp", self.modify(&attr, IBV_QP_STATE));
    }

    /// `ibv_query_qp` of everything.
    #[must_use]
    #[track_caller]
    pub fn query(&self) -> (ibv_qp_attr, ibv_qp_init_attr) {
        let mut attr = ibv_qp_attr::zeroed();
        let mut init = ibv_qp_init_attr::zeroed();
        let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_CAP;
        // SAFETY: a live QP, writable results.
        let errno = unsafe {
            (self.0.symbols.ibv_query_qp)(self.raw(), &raw mut attr, mask, &raw mut init)
        };
        assert_eq!(errno, 0, "ibv_query_qp");
        (attr, init)
    }

    /// The state that `ibv_query_qp` gives.
    #[must_use]
    #[track_caller]
    pub fn state(&self) -> ibv_qp_state {
        self.query().0.qp_state
    }

    /// Waits until the QP is in `state` by itself.
    #[track_caller]
    pub fn await_state(&self, state: ibv_qp_state) {
        let deadline = Instant::now() + patience();
        note(&format!("waiting for QP state {state}"));
        loop {
            let now = self.state();
            if now == state {
                note("");
                return;
            }
            assert!(
                Instant::now() < deadline,
                "the QP stays in {now} and never gets to {state}"
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// `ibv_post_send` of a postlist.
    ///
    /// # Errors
    /// What it returned and where it stopped.
    pub fn try_post(&self, mut wrs: Vec<SendWr>) -> Result<(), Refused> {
        let head = link_send(&mut wrs);
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live QP; the list lives until the call returns and is well-formed. Buffers that are
        // registered stay so until the test has seen the completion or destroyed the QP.
        let errno = unsafe { ibv_post_send(self.raw(), head, &raw mut bad) };
        refused(
            errno,
            wrs.iter()
                .position(|wr| std::ptr::eq(&raw const wr.raw, bad)),
        )
    }

    /// Posts one send WR whose `num_sge` says something else than its list.
    ///
    /// # Errors
    /// What the call returned.
    pub fn try_post_with_num_sge(&self, mut wr: SendWr, num_sge: c_int) -> Result<(), i32> {
        link_send(std::slice::from_mut(&mut wr));
        assert!(num_sge < 0, "more than there are would be read");
        wr.raw.num_sge = num_sge;
        let mut bad = std::ptr::null_mut();
        // SAFETY: as in `try_post`; a negative count is refused or reads nothing.
        match unsafe { ibv_post_send(self.raw(), &raw mut wr.raw, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Posts one send WR.
    #[track_caller]
    pub fn post(&self, wr: SendWr) {
        self.post_list(vec![wr]);
    }

    /// Posts a postlist.
    #[track_caller]
    pub fn post_list(&self, wrs: Vec<SendWr>) {
        if let Err(refused) = self.try_post(wrs) {
            panic!("ibv_post_send: {refused:?}");
        }
    }

    /// `ibv_post_recv` of a postlist.
    ///
    /// # Errors
    /// What it returned and where it stopped.
    pub fn try_recv(&self, mut wrs: Vec<RecvWr>) -> Result<(), Refused> {
        let head = link_recv(&mut wrs);
        let mut bad = std::ptr::null_mut();
        // SAFETY: as in `try_post`.
        let errno = unsafe { ibv_post_recv(self.raw(), head, &raw mut bad) };
        refused(
            errno,
            wrs.iter()
                .position(|wr| std::ptr::eq(&raw const wr.raw, bad)),
        )
    }

    /// Posts one receive WR.
    #[track_caller]
    pub fn recv(&self, wr_id: u64, sges: impl IntoIterator<Item = ibv_sge>) {
        if let Err(refused) = self.try_recv(vec![crate::wr::recv(wr_id, sges)]) {
            panic!("ibv_post_recv: {refused:?}");
        }
    }
}
