//! Other processes of tests. One role executes orders, one opens the device and reports the result, and one
//! stays idle.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, ExitCode, Stdio};

use anyhow::{Context as _, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::objects::{Buf, Context, DeviceList};
use crate::pair::{QpAddress, QpSide, QpSpec};
use crate::provider::ProviderKind;
use crate::role::role_command;
use crate::test_env::{Settings, TestEnv};
use crate::wr::{RemoteAddress, Verb};

/// An order to a [`PeerProcess`].
#[derive(Debug, Serialize, Deserialize)]
pub enum PeerCommand {
    /// Make a queue pair, and one buffer of the given length in bytes for all orders.
    Make(Box<QpSpec>, usize),
    /// Connect the queue pair to the queue pair with this address.
    Connect(QpAddress),
    /// Post a receive into a part of the buffer.
    Recv {
        /// `wr_id` of the receive.
        id: u64,
        /// Offset in the buffer.
        offset: u64,
        /// Length in bytes.
        len: usize,
    },
    /// Add a tagged receive into a part of the buffer.
    AddTag {
        /// `wr_id` of the receive, and of the operation that adds it.
        id: u64,
        /// The tag.
        tag: u64,
        /// Offset in the buffer.
        offset: u64,
        /// Length in bytes.
        len: usize,
    },
    /// Write the bytes to the buffer, at the given offset.
    Write(usize, Vec<u8>),
    /// Read bytes of the buffer: offset and length.
    Read(usize, usize),
    /// Wait for a completion of the receive queue.
    Received,
    /// Wait for an event on the channel of the receive CQ, then for a completion.
    ReceivedByEvent,
    /// Fill a part of the buffer (offset, length) with the pattern of a seed.
    Fill(usize, usize, u64),
    /// Check that a part of the buffer (offset, length) holds the pattern of a seed.
    Check(usize, usize, u64),
    /// Read 8 bytes at an offset.
    Load(usize),
    /// Send a part of the buffer (offset, length) and wait for the completion.
    Send(usize, usize),
    /// Execute a fetch-and-add of 1 on the remote word, the given number of times. Check that the old values
    /// increase.
    FetchAdd(RemoteAddress, u64),
    /// Report the CPU time that the process has used.
    CpuTime,
    /// Destroy all objects and exit.
    End,
}

/// The answer of a [`PeerProcess`] to an order.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum PeerAnswer {
    /// The order was executed.
    Done,
    /// Address of the new queue pair, and of the buffer.
    Made(QpAddress, RemoteAddress),
    /// The number for which the order asked.
    Word(u64),
    /// Bytes of the buffer.
    Bytes(Vec<u8>),
    /// A completion.
    Completion {
        /// `wr_id`.
        id: u64,
        /// `status`.
        status: u32,
        /// `opcode`, if the status is success.
        opcode: u32,
        /// `byte_len`, if the status is success.
        byte_len: u32,
        /// The immediate, if the status is success and the message has one.
        imm: Option<u32>,
    },
}

/// Another process with the queue pair at the other end of a connection; killed when dropped.
pub struct PeerProcess {
    child: Child,
    command_input: ChildStdin,
    answer_reader: BufReader<ChildStdout>,
}

fn send_json(mut to: impl Write, what: &impl Serialize) -> anyhow::Result<()> {
    writeln!(to, "{}", serde_json::to_string(what)?)?;
    to.flush()?;
    Ok(())
}

fn receive_json<T: DeserializeOwned>(mut from: impl BufRead) -> anyhow::Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

impl PeerProcess {
    /// Starts a peer process.
    #[must_use]
    #[track_caller]
    pub fn start(env: &TestEnv) -> Self {
        let mut child = role_command("peer", "", &env.settings)
            .expect("a peer's command")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a peer");
        let orders = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            command_input: orders,
            answer_reader: answers,
        }
    }

    /// Starts a peer, and connects it with a new side of this process. Also returns the remote address of the
    /// peer's buffer.
    #[must_use]
    #[track_caller]
    pub fn start_with_new_side(
        env: &TestEnv,
        spec: &QpSpec,
        buf_len: usize,
    ) -> (Self, QpSide, RemoteAddress) {
        let mut side = spec.create_qp_side(env);
        let (peer, remote) = Self::start_connected_to(env, &mut side, buf_len);
        (peer, side, remote)
    }

    /// Starts a peer, and connects it with the given side of this process. Also returns the remote address of
    /// the peer's buffer.
    #[must_use]
    #[track_caller]
    pub fn start_connected_to(
        env: &TestEnv,
        side: &mut QpSide,
        buf_len: usize,
    ) -> (Self, RemoteAddress) {
        let mut peer = Self::start(env);
        let make = PeerCommand::Make(Box::new(side.spec.clone()), buf_len);
        let PeerAnswer::Made(address, remote) = peer.send_command_and_await_answer(&make) else {
            panic!("the peer made nothing");
        };
        peer.send_command_and_await_answer(&PeerCommand::Connect(side.address()));
        side.connect(&address);
        (peer, remote)
    }

    /// Gives an order and waits for the answer.
    #[track_caller]
    pub fn send_command_and_await_answer(&mut self, order: &PeerCommand) -> PeerAnswer {
        crate::progress_notes::record_awaited_event(&format!("the peer does {order:?}"));
        send_json(&mut self.command_input, order).expect("the peer is there");
        let answer = receive_json(&mut self.answer_reader).expect("the peer answers in words");
        crate::progress_notes::record_awaited_event("");
        answer.unwrap_or_else(|| panic!("the peer failed at {order:?}"))
    }

    /// Gives an order without waiting for the answer.
    #[track_caller]
    pub fn send_command(&mut self, order: &PeerCommand) {
        send_json(&mut self.command_input, order).expect("the peer is there");
    }

    /// Waits for the answer to an [`send_command`](Self::send_command).
    #[must_use]
    #[track_caller]
    pub fn await_answer(&mut self) -> PeerAnswer {
        receive_json(&mut self.answer_reader)
            .expect("the peer answers in words")
            .expect("the peer failed")
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_raw(self.child.id().cast_signed()).expect("not 0")
    }

    /// Orders the process to exit, and checks that it succeeds.
    #[track_caller]
    pub fn exit_and_check(mut self) {
        assert_eq!(
            self.send_command_and_await_answer(&PeerCommand::End),
            PeerAnswer::Done
        );
        assert!(
            self.child.wait().expect("the peer ends").success(),
            "the peer failed in the end"
        );
    }

    /// Kills the process.
    pub fn kill(mut self) {
        self.child.kill().expect("kill the peer");
        self.child.wait().expect("the peer is dead");
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays the role `peer`: executes orders from standard input.
///
/// # Errors
/// Returns an error if an order is invalid. Failures of verbs panic.
pub fn execute_commands_from_stdin(env: &TestEnv) -> anyhow::Result<ExitCode> {
    let mut made: Option<(QpSide, Buf)> = None;
    let mut orders = std::io::stdin().lock();
    while let Some(order) = receive_json::<PeerCommand>(&mut orders)? {
        let end = matches!(order, PeerCommand::End);
        let answer = execute_received_command(env, &mut made, order)?;
        send_json(std::io::stdout(), &answer)?;
        if end {
            return Ok(ExitCode::SUCCESS);
        }
    }
    bail!("the test is gone")
}

fn execute_received_command(
    env: &TestEnv,
    made: &mut Option<(QpSide, Buf)>,
    order: PeerCommand,
) -> anyhow::Result<PeerAnswer> {
    if let PeerCommand::Make(spec, buf_len) = order {
        let side = spec.create_qp_side(env);
        let buf = side.alloc_buf(buf_len);
        let answer = PeerAnswer::Made(side.address(), buf.remote_address());
        *made = Some((side, buf));
        return Ok(answer);
    }
    if matches!(order, PeerCommand::End) {
        *made = None;
        return Ok(PeerAnswer::Done);
    }
    let (side, buf) = made.as_mut().context("nothing made yet")?;
    match order {
        PeerCommand::Connect(address) => side.connect(&address),
        PeerCommand::Recv { id, offset, len } => side.post_recv(id, [buf.sge(offset, len)]),
        PeerCommand::AddTag {
            id,
            tag,
            offset,
            len,
        } => {
            let tags = side.tag_srq.as_ref().context("no queue for tags")?;
            let to = [buf.sge(offset, len)];
            tags.post_tag_add(id, (tag, u64::MAX), &to)
                .expect("ibv_post_srq_ops");
            side.await_recv_completion()
                .expect_success(id, verbs_abi::IBV_WC_TM_ADD);
        }
        PeerCommand::Write(offset, bytes) => buf.memory.write(offset, &bytes),
        PeerCommand::Read(offset, len) => {
            return Ok(PeerAnswer::Bytes(buf.memory.read(offset, len)));
        }
        PeerCommand::Received | PeerCommand::ReceivedByEvent => {
            if matches!(order, PeerCommand::ReceivedByEvent) {
                let channel = side.rchannel.as_ref().context("no channel")?;
                side.rcq.arm(false);
                let already = side.rcq.poll(1);
                if let Some(wc) = already.first() {
                    return Ok(answer_from_completion(wc));
                }
                channel.await_and_ack_event(&side.rcq);
            }
            return Ok(answer_from_completion(&side.await_recv_completion()));
        }
        PeerCommand::Fill(offset, len, seed) => buf.memory.fill_pattern_at(offset, len, seed),
        PeerCommand::Check(offset, len, seed) => buf.memory.assert_pattern_at(offset, len, seed),
        PeerCommand::Load(offset) => return Ok(PeerAnswer::Word(buf.memory.load(offset))),
        PeerCommand::Send(offset, len) => {
            side.post(crate::wr::send([buf.sge(offset as u64, len)]).with_id(1));
            side.await_send_completion().expect_sent(1, Verb::Send);
        }
        PeerCommand::FetchAdd(word, times) => {
            let result = side.alloc_buf(8);
            let mut last = None;
            for i in 0..times {
                side.post(crate::wr::fetch_add(result.whole_sge(), word, 1).with_id(i));
                side.await_send_completion()
                    .expect_sent(i, Verb::AtomicFetchAndAdd);
                let old = result.memory.load(0);
                assert!(last < Some(old), "{old} after {last:?}");
                last = Some(old);
            }
        }
        PeerCommand::CpuTime => return Ok(PeerAnswer::Word(cpu_time_us())),
        PeerCommand::Make(..) | PeerCommand::End => unreachable!("handled above"),
    }
    Ok(PeerAnswer::Done)
}

fn answer_from_completion(wc: &crate::wr::Wc) -> PeerAnswer {
    let success = wc.status() == verbs_abi::IBV_WC_SUCCESS;
    PeerAnswer::Completion {
        id: wc.id(),
        status: wc.status(),
        opcode: if success { wc.raw().opcode } else { 0 },
        byte_len: if success { wc.raw().byte_len } else { 0 },
        imm: if success { wc.imm() } else { None },
    }
}

/// Returns the CPU time of this process so far, in microseconds.
#[must_use]
pub fn cpu_time_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0) / 1000
}

/// Result of a process's attempt to open the device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceOpenResult {
    /// Number of devices, or the errno of `ibv_get_device_list`.
    #[serde(rename = "list")]
    pub device_count_or_errno: Result<usize, i32>,
    /// The errno of `ibv_open_device`, 0 on success; `None` if the process did not call it.
    #[serde(rename = "open")]
    pub open_errno: Option<i32>,
}

impl DeviceOpenResult {
    /// Returns true if the process has opened a device.
    #[must_use]
    pub fn has_opened_device(&self) -> bool {
        self.open_errno == Some(0)
    }

    /// Returns the errno of the call that failed.
    #[must_use]
    pub fn errno_of_failed_call(&self) -> Option<i32> {
        self.device_count_or_errno
            .err()
            .or(self.open_errno)
            .filter(|errno| *errno != 0)
    }
}

/// Plays the role `open`: opens the first device and reports the result. After the end of input, it closes
/// the device.
pub(crate) fn open_device_and_report(settings: &Settings) -> anyhow::Result<ExitCode> {
    let env = TestEnv::new(settings.clone())?;
    let mut opening = DeviceOpenResult {
        device_count_or_errno: Ok(0),
        open_errno: None,
    };
    let mut context: Option<Context> = None;
    match DeviceList::new(env.symbols) {
        Err(errno) => opening.device_count_or_errno = Err(errno),
        Ok(list) => {
            opening.device_count_or_errno = Ok(list.devices().count());
            if let Some(device) = list.devices().next() {
                match list.open(&env, device) {
                    Err(errno) => opening.open_errno = Some(errno),
                    Ok(opened) => {
                        // Allocating a PD proves that the NIC works.
                        drop(opened.alloc_pd());
                        opening.open_errno = Some(0);
                        context = Some(opened);
                    }
                }
            }
        }
    }
    send_json(std::io::stdout(), &opening)?;
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line)? > 0 {}
    drop(context);
    Ok(ExitCode::SUCCESS)
}

/// Report of the role `idle`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct IdleReport {
    /// CPU time used while idle, in microseconds.
    pub cpu_us: u64,
    /// Duration of the idle phase, in microseconds.
    pub wall_us: u64,
    /// Resident memory without file-backed and shared pages, in KiB.
    pub resident_kib: u64,
    /// Resident memory before the process opened the device, in KiB.
    #[serde(rename = "before_kib")]
    pub resident_before_open_kib: u64,
}

/// Plays the role `idle`: connects `arg` pairs within the process, and then sleeps for a second.
pub(crate) fn play_idle_role(env: &TestEnv, arg: &str) -> anyhow::Result<ExitCode> {
    let pairs: usize = arg.parse()?;
    let before_kib = resident_kib();
    let spec = QpSpec::rc();
    let first = spec.create_qp_side(env);
    let mut sides = Vec::new();
    for _ in 0..pairs {
        let (mut a, mut b) = (
            first.create_side_on_same_pd_and_cqs(),
            first.create_side_on_same_pd_and_cqs(),
        );
        let (to_a, to_b) = (a.address(), b.address());
        a.connect(&to_b);
        b.connect(&to_a);
        sides.push((a, b));
    }
    let begin = std::time::Instant::now();
    let cpu = cpu_time_us();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let idle = IdleReport {
        cpu_us: cpu_time_us() - cpu,
        wall_us: u64::try_from(begin.elapsed().as_micros())?,
        resident_kib: resident_kib(),
        resident_before_open_kib: before_kib,
    };
    send_json(std::io::stdout(), &idle)?;
    Ok(ExitCode::SUCCESS)
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.parse().ok())
        .unwrap_or(0)
}

/// Returns default settings for the software NIC.
#[must_use]
pub fn softnic_settings() -> Settings {
    Settings::new(ProviderKind::Softnic)
}
