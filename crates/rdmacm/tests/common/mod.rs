//! Scenes of two processes: the test binary runs itself again, once for each part.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test binary uses some of it"
)]

pub mod network;

use std::ffi::{c_int, c_void};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rdmacm::abi::*;
use rdmacm::{DEFAULT_ANSWER_TIMEOUT, Provider};
use verbs_abi::*;

const PART: &str = "RDMACM_TEST_PART";
const MARK: &str = "@@";
/// Limit of a scene's duration in seconds, even on a loaded machine.
const WATCHDOG_S: u32 = 120;

/// The function of one process of a scene.
pub type Part = fn(&mut Stage);

/// The parts of a test binary, by name.
pub type Parts = [(&'static str, Part)];

/// Runs a part in a child process. Every test binary has a test of this name that calls this function.
pub fn child_main(parts: &Parts) {
    let Ok(name) = std::env::var(PART) else {
        return;
    };
    rdmacm::set_provider_finder(provider);
    // SAFETY: the default action of the signal ends the process, as a watchdog must.
    unsafe { libc::alarm(WATCHDOG_S) };
    let part = parts.iter().find(|(n, _)| *n == name).expect("a part").1;
    part(&mut Stage);
    say("done");
}

/// Returns the provider. `VERBATIM_TEST_ANSWER_MS` shortens the wait of scenes in which a peer does not answer.
fn provider() -> Result<Provider, c_int> {
    let millis = std::env::var("VERBATIM_TEST_ANSWER_MS").ok();
    Ok(Provider {
        verbs: softnic::symbols(),
        gsi: network::gsi(),
        fabric_dir: softnic::fabric_dir().map_err(|_| libc::EINVAL)?,
        answer_timeout: millis.map_or(DEFAULT_ANSWER_TIMEOUT, |ms| {
            Duration::from_millis(ms.parse().expect("a number"))
        }),
    })
}

fn say(text: &str) {
    // The test harness prints on the same stream, so the line needs a mark.
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{text}")
        .and_then(|()| out.flush())
        .expect("the parent listens");
}

/// The connection of a part to the test that directs the scene.
pub struct Stage;

impl Stage {
    /// Sends a line to the test.
    pub fn say(&self, text: &str) {
        say(text);
    }

    /// Waits for a line from the test.
    pub fn hear(&self) -> String {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("reads");
        line.trim_end().to_owned()
    }
}

/// Returns a slot that no process has had.
fn next_slot() -> u16 {
    static NEXT_SLOT: AtomicU16 = AtomicU16::new(1);
    NEXT_SLOT.fetch_add(1, Ordering::Relaxed)
}

/// A process that runs a part; it is killed on drop.
pub struct Player {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A fabric for the processes of one scene.
pub struct Scene {
    dir: tempfile::TempDir,
    env: Vec<(&'static str, String)>,
}

impl Scene {
    pub fn new(link_layer: &str) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").expect("shared memory");
        Self {
            env: vec![
                (
                    "VERBATIM_FABRIC_DIR",
                    dir.path().join("fabric").display().to_string(),
                ),
                ("VERBATIM_LINK_LAYER", link_layer.to_owned()),
            ],
            dir,
        }
    }

    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.env.push((name, value.to_owned()));
        self
    }

    pub fn start(&self, part: &str) -> Player {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "child_main", "--nocapture"])
            .env(PART, part)
            .env(network::SLOT, next_slot().to_string())
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        Player {
            input: child.stdin.take().expect("piped"),
            output: BufReader::new(child.stdout.take().expect("piped")),
            child,
        }
    }

    /// Returns the names in the folder of ports that stand for a port or a listener.
    pub fn ports(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.dir.path().join("fabric/rdma_cm")) else {
            return Vec::new();
        };
        entries
            .map(|e| {
                e.expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .filter(|name| name != "lock" && !name.ends_with(".closed"))
            // Sockets for MADs exist as long as their processes.
            .filter(|name| !name.starts_with("mads-") && !name.ends_with("-0"))
            .collect()
    }
}

impl Player {
    /// Returns the next line that the process sends.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("a pipe") > 0 {
            if let Some(text) = line.trim_end().strip_prefix(MARK) {
                return text.to_owned();
            }
            line.clear();
        }
        panic!("the process has ended: {:?}", self.child.wait());
    }

    pub fn say(&mut self, text: &str) {
        writeln!(self.input, "{text}").expect("the process lives");
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it dies");
    }

    pub fn done(mut self) {
        assert_eq!(self.hear(), "done");
        assert!(self.child.wait().expect("it ends").success());
    }
}

/// Returns errno after a failed call.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Makes a call that must succeed.
macro_rules! ok {
    ($call:expr) => {{
        #[allow(unused_unsafe, reason = "so that calls can be nested")]
        // SAFETY: the tests call the C functions as their man pages require: with live handles, or with arguments that
        // these functions must refuse.
        let returned = unsafe { $call };
        assert_eq!(returned, 0, "{}: errno {}", stringify!($call), $crate::common::errno());
    }};
}

/// Makes a call that must fail with an errno.
macro_rules! fails {
    ($errno:expr, $call:expr) => {{
        #[allow(unused_unsafe, reason = "so that calls can be nested")]
        // SAFETY: as for `ok`.
        let returned = unsafe { $call };
        assert_eq!(returned, -1, "{} did not fail", stringify!($call));
        assert_eq!($crate::common::errno(), $errno, "{}", stringify!($call));
    }};
}

/// Returns an IPv4 address as a C structure.
pub fn sockaddr(text: &str) -> libc::sockaddr_in {
    let SocketAddr::V4(addr) = text.parse().expect("an address") else {
        panic!("IPv4 only");
    };
    libc::sockaddr_in {
        sin_family: 2,
        sin_port: addr.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(addr.ip().octets()),
        },
        sin_zero: [0; 8],
    }
}

pub fn as_sockaddr(addr: &mut libc::sockaddr_in) -> *mut libc::sockaddr {
    ptr::from_mut(addr).cast()
}

/// An event channel, with functions for tests.
pub struct Channel(pub *mut rdma_event_channel);

/// The contents of an event.
pub struct Seen {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub status: i32,
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    pub private_data: Vec<u8>,
}

impl Channel {
    pub fn new() -> Self {
        // SAFETY: no arguments.
        let channel = unsafe { rdma_create_event_channel() };
        assert!(!channel.is_null(), "errno {}", errno());
        Self(channel)
    }

    pub fn id(&self, ps: rdma_port_space) -> *mut rdma_cm_id {
        let mut id = ptr::null_mut();
        ok!(rdma_create_id(self.0, &raw mut id, ptr::null_mut(), ps));
        id
    }

    /// Waits for the next event, which must be of this kind, and acknowledges it.
    pub fn expect(&self, kind: rdma_cm_event_type) -> Seen {
        let mut event = ptr::null_mut();
        ok!(rdma_get_cm_event(self.0, &raw mut event));
        // SAFETY: the event is live until it is acknowledged; `Seen` has copies of its contents.
        unsafe {
            let name = |kind| std::ffi::CStr::from_ptr(rdma_event_str(kind));
            assert_eq!(
                (*event).event,
                kind,
                "{:?} with status {} instead of {:?}",
                name((*event).event),
                (*event).status,
                name(kind)
            );
            let is_datagram = (*(*event).id).qp_type == IBV_QPT_UD;
            let (data, len) = if is_datagram {
                let ud = (*event).param.ud;
                (ud.private_data, ud.private_data_len)
            } else {
                let conn = (*event).param.conn;
                (conn.private_data, conn.private_data_len)
            };
            let private_data = if kind == RDMA_CM_EVENT_MULTICAST_JOIN || len == 0 {
                Vec::new()
            } else {
                std::slice::from_raw_parts(data.cast::<u8>(), usize::from(len)).to_vec()
            };
            let seen = Seen {
                id: (*event).id,
                listen_id: (*event).listen_id,
                status: (*event).status,
                conn: (*event).param.conn,
                ud: (*event).param.ud,
                private_data,
            };
            ok!(rdma_ack_cm_event(event));
            seen
        }
    }

    pub fn set_nonblocking(&self) {
        // SAFETY: the descriptor of a live channel.
        unsafe {
            let flags = libc::fcntl((*self.0).fd, libc::F_GETFL);
            libc::fcntl((*self.0).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        }
    }

    pub fn is_readable(&self) -> bool {
        let mut fd = libc::pollfd {
            // SAFETY: a live channel.
            fd: unsafe { (*self.0).fd },
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut fd, 1, 0) == 1 }
    }

    pub fn destroy(self) {
        // SAFETY: a live channel, destroyed once.
        unsafe { rdma_destroy_event_channel(self.0) };
    }
}

/// Makes a listener on a free port at the wildcard address; returns the id and the port in host byte order.
pub fn listener(channel: &Channel, ps: rdma_port_space, backlog: c_int) -> (*mut rdma_cm_id, u16) {
    let id = channel.id(ps);
    let mut addr = sockaddr("0.0.0.0:0");
    ok!(rdma_bind_addr(id, as_sockaddr(&mut addr)));
    ok!(rdma_listen(id, backlog));
    // SAFETY: a live id.
    let port = u16::from_be(unsafe { rdma_get_src_port(id) });
    assert_ne!(port, 0);
    (id, port)
}

/// Makes an id and resolves address and route of a port of this host.
pub fn resolved(channel: &Channel, ps: rdma_port_space, port: &str) -> *mut rdma_cm_id {
    let id = channel.id(ps);
    let mut to = sockaddr(&format!("{}:{port}", network::own_address()));
    ok!(rdma_resolve_addr(
        id,
        ptr::null_mut(),
        as_sockaddr(&mut to),
        2000
    ));
    channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    // SAFETY: a live id.
    unsafe {
        assert!(!(*id).verbs.is_null() && (*id).port_num == 1 && !(*id).pd.is_null());
        assert_ne!(rdma_get_src_port(id), 0);
        assert_eq!(u16::from_be(rdma_get_dst_port(id)).to_string(), port);
    }
    ok!(rdma_resolve_route(id, 2000));
    channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    // SAFETY: a live id.
    unsafe {
        assert_eq!((*id).route.num_paths, 1);
        assert_eq!((*(*id).route.path_rec).pkey, 0xffff);
    }
    id
}

pub fn qp_init_attr(qp_type: ibv_qp_type) -> ibv_qp_init_attr {
    let mut attr = ibv_qp_init_attr::zeroed();
    attr.qp_type = qp_type;
    attr.cap.max_send_wr = 8;
    attr.cap.max_recv_wr = 8;
    attr.cap.max_send_sge = 1;
    attr.cap.max_recv_sge = 1;
    attr
}

/// Makes the id's queue pair with its own completion queues.
pub fn create_qp(id: *mut rdma_cm_id) {
    // SAFETY: a live id.
    let qp_type = unsafe { (*id).qp_type };
    let mut attr = qp_init_attr(qp_type);
    ok!(rdma_create_qp(id, ptr::null_mut(), &raw mut attr));
    // SAFETY: a live id.
    unsafe {
        assert!(!(*id).qp.is_null() && !(*id).send_cq.is_null() && !(*id).recv_cq.is_null());
    }
}

pub fn param(private_data: &[u8]) -> rdma_conn_param {
    let mut param = rdma_conn_param::zeroed();
    param.private_data = private_data.as_ptr().cast();
    param.private_data_len = u8::try_from(private_data.len()).expect("fits");
    param.responder_resources = 1;
    param.initiator_depth = 1;
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    param
}

pub fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: a live id, destroyed once.
    unsafe { rdma_destroy_qp(id) };
    ok!(rdma_destroy_id(id));
}

/// Checks that private data begins with `start` and is padded with zeros to `len` bytes.
pub fn begins_with(data: &[u8], len: usize, start: &[u8]) {
    assert_eq!(data.len(), len);
    assert!(data.starts_with(start), "{data:?}");
    assert!(data[start.len()..].iter().all(|&b| b == 0), "{data:?}");
}

/// Registered memory of 64 bytes.
pub struct Buffer {
    pub memory: Box<[u8; 64]>,
    pub mr: *mut ibv_mr,
}

impl Buffer {
    pub fn new(pd: *mut ibv_pd) -> Self {
        let mut memory = Box::new([0; 64]);
        let access = IBV_ACCESS_LOCAL_WRITE;
        // SAFETY: the memory lives as long as the registration.
        let mr = unsafe {
            (softnic::symbols().ibv_reg_mr)(pd, memory.as_mut_ptr().cast::<c_void>(), 64, access)
        };
        assert!(!mr.is_null());
        Self { memory, mr }
    }

    fn sge(&self) -> ibv_sge {
        ibv_sge {
            addr: self.memory.as_ptr().addr() as u64,
            length: 64,
            // SAFETY: the memory region is live.
            lkey: unsafe { (*self.mr).lkey },
        }
    }

    pub fn post_recv(&self, qp: *mut ibv_qp) {
        let mut sge = self.sge();
        let mut wr = ibv_recv_wr::zeroed();
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        let mut bad = ptr::null_mut();
        ok!(ibv_post_recv(qp, &raw mut wr, &raw mut bad));
    }

    pub fn post_send(&self, qp: *mut ibv_qp, len: u32, ud: Option<ibv_send_wr_wr_ud>) {
        let mut sge = self.sge();
        sge.length = len;
        let mut wr = ibv_send_wr::zeroed();
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED;
        if let Some(ud) = ud {
            wr.wr.ud = ud;
        }
        let mut bad = ptr::null_mut();
        ok!(ibv_post_send(qp, &raw mut wr, &raw mut bad));
    }

    pub fn free(self) {
        ok!((softnic::symbols().ibv_dereg_mr)(self.mr));
    }
}

/// Sends five bytes of a buffer as a datagram to the peer of an established id of `RDMA_PS_UDP`.
///
/// # Safety
/// `id` is live and has a queue pair.
pub unsafe fn send_datagram(id: *mut rdma_cm_id, established: &mut Seen, buffer: &Buffer) {
    // SAFETY: the caller's contract.
    unsafe {
        let verbs = softnic::symbols();
        let ah = (verbs.ibv_create_ah)((*id).pd, &raw mut established.ud.ah_attr);
        assert!(!ah.is_null());
        let to = ibv_send_wr_wr_ud {
            ah,
            remote_qpn: established.ud.qp_num,
            remote_qkey: established.ud.qkey,
        };
        buffer.post_send((*id).qp, 5, Some(to));
        assert_eq!(completion((*id).send_cq).status, IBV_WC_SUCCESS);
        ok!((verbs.ibv_destroy_ah)(ah));
    }
}

/// Polls a completion queue until a completion arrives, and returns it.
pub fn completion(cq: *mut ibv_cq) -> ibv_wc {
    let mut wc = ibv_wc::zeroed();
    loop {
        // SAFETY: a live CQ, and room for one completion.
        match unsafe { ibv_poll_cq(cq, 1, &raw mut wc) } {
            0 => std::thread::yield_now(),
            n => {
                assert_eq!(n, 1);
                return wc;
            }
        }
    }
}
