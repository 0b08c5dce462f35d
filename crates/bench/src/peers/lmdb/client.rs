//! A client connection to the server, with a window of outstanding requests.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::idle_wait::IdlePeriod;
use super::serve_job::EntrySizes;
use super::wire::max_answer_bytes;

/// Time without an answer after which the client gives up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Source of requests, and check of their answers.
pub(super) trait LmdbRequests {
    /// Data of a request that the check of its answer needs.
    type AnswerExpectation;

    /// Appends the next request to `into`, or returns `None` at the end.
    fn encode_next(&mut self, into: &mut Vec<u8>) -> Option<Self::AnswerExpectation>;

    /// Checks the answer at the start of `bytes`. Returns its length, or `None` while it is
    /// incomplete.
    fn check_answer_and_len(
        &mut self,
        sent: &Self::AnswerExpectation,
        bytes: &[u8],
    ) -> Result<Option<usize>>;
}

/// Number of answered requests, and the time that they took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LmdbMeasurement {
    /// Requests that were answered correctly.
    pub operations: u64,
    /// Seconds from the first request to the last answer.
    pub elapsed_seconds: f64,
}

impl LmdbMeasurement {
    /// Returns the requests per second.
    #[must_use]
    pub fn requests_per_s(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        let operations = self.operations as f64;
        operations / self.elapsed_seconds.max(1e-9)
    }
}

#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    encoded_requests: Vec<u8>,
    input_buffer: Box<[u8]>,
    /// Bytes of the input that were received and not checked yet.
    unchecked_input_bytes: usize,
}

impl Client {
    pub(super) fn connect(to: SocketAddr, sizes: EntrySizes) -> Result<Self> {
        let stream = TcpStream::connect(to).context("cannot reach the LMDB server")?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            encoded_requests: Vec::new(),
            input_buffer: vec![0; 4 * max_answer_bytes(sizes)].into(),
            unchecked_input_bytes: 0,
        })
    }

    /// Sends requests with up to `window` outstanding, until the requests or the time run out.
    /// Checks all answers.
    pub(super) fn run_requests<R: LmdbRequests>(
        &mut self,
        requests: &mut R,
        window: usize,
        until: Option<Instant>,
    ) -> Result<LmdbMeasurement> {
        let begun = Instant::now();
        let mut outstanding = VecDeque::with_capacity(window);
        let (mut operations, mut over) = (0, false);
        loop {
            over |= until.is_some_and(|until| Instant::now() >= until);
            while !over && outstanding.len() < window {
                let Some(sent) = requests.encode_next(&mut self.encoded_requests) else {
                    over = true;
                    break;
                };
                outstanding.push_back(sent);
            }
            if outstanding.is_empty() {
                return Ok(LmdbMeasurement {
                    operations,
                    elapsed_seconds: begun.elapsed().as_secs_f64(),
                });
            }
            self.send_encoded_requests()?;
            self.wait_and_receive()?;
            let mut at = 0;
            while let Some(sent) = outstanding.front()
                && let Some(length) = requests.check_answer_and_len(
                    sent,
                    &self.input_buffer[at..self.unchecked_input_bytes],
                )?
            {
                outstanding.pop_front();
                operations += 1;
                at += length;
            }
            self.input_buffer
                .copy_within(at..self.unchecked_input_bytes, 0);
            self.unchecked_input_bytes -= at;
            if outstanding.is_empty() && self.unchecked_input_bytes > 0 {
                bail!("the LMDB server answers more than was asked");
            }
        }
    }

    /// Sends the encoded requests. The server keeps reading, because its answers fit the sockets'
    /// buffers.
    fn send_encoded_requests(&mut self) -> Result<()> {
        let (mut sent, mut idle) = (0, IdlePeriod::default());
        while sent < self.encoded_requests.len() {
            match self.stream.write(&self.encoded_requests[sent..]) {
                Ok(bytes) => sent += bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.spin_or_sleep_or_time_out(&mut idle, "takes no requests")?;
                }
                Err(e) => return Err(e).context("the LMDB server is gone"),
            }
        }
        self.encoded_requests.clear();
        Ok(())
    }

    /// Waits until data arrive, and receives them.
    fn wait_and_receive(&mut self) -> Result<()> {
        let mut idle = IdlePeriod::default();
        loop {
            match self
                .stream
                .read(&mut self.input_buffer[self.unchecked_input_bytes..])
            {
                Ok(0) => bail!("the LMDB server is gone, or refuses a request"),
                Ok(bytes) => {
                    self.unchecked_input_bytes += bytes;
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.spin_or_sleep_or_time_out(&mut idle, "does not answer")?;
                }
                Err(e) => return Err(e).context("the LMDB server is gone"),
            }
        }
    }

    fn spin_or_sleep_or_time_out(&self, idle: &mut IdlePeriod, what: &str) -> Result<()> {
        let socket = std::iter::once(self.stream.as_fd());
        let waited = idle.spin_or_sleep_and_idle_time(socket, Duration::from_millis(20))?;
        if waited > ANSWER_TIMEOUT {
            bail!("the LMDB server {what} for {} s", ANSWER_TIMEOUT.as_secs());
        }
        Ok(())
    }
}
