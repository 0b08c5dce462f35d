//! Datagrams between two addresses of this host without any NIC: the most that RoCEv2 over UDP can
//! reach.
//!
//! Both sides poll. A stream has no flow control: datagrams that find the receiver's buffer full
//! are lost. Only datagrams that arrive in order count.

#![allow(unsafe_code)]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

pub use super::datagram_parameters::DatagramExchange;
use super::datagram_parameters::DatagramParameters;
use crate::job::Job;
use crate::link::WorkerLink;

/// Addresses of the driver and of the worker.
const DRIVER_AND_WORKER_ADDRESSES: [&str; 2] = ["127.0.0.1:0", "127.0.0.2:0"];
/// The number of a datagram that ends an exchange.
const END_NUMBER: u64 = u64::MAX;
/// Number of times that the end is sent, a millisecond apart, because the receiver's buffer may be
/// full.
const END_DATAGRAM_REPEATS: usize = 100;
/// Time without a datagram after which the other side counts as gone.
const DATAGRAM_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of the receiver's buffer in bytes, as for the software NIC.
const RECEIVE_BUFFER_BYTES: i32 = 8 << 20;

/// Result of the worker.
#[derive(Debug, Serialize, Deserialize)]
struct WorkerDatagramResult {
    #[serde(rename = "datagrams")]
    received_datagrams: u64,
    in_order: bool,
    seconds: f64,
}

/// Exchanges `count` datagrams of `datagram_bytes` with the worker. Returns the datagrams per
/// second that arrive for a stream, and the nanoseconds of half a round trip for a ping-pong.
///
/// # Errors
/// A socket fails, the worker is gone, or a datagram arrives out of order.
pub fn run_driver_side_for_rate_or_ns(
    link: &mut WorkerLink,
    exchange: DatagramExchange,
    datagram_bytes: usize,
    count: u64,
) -> Result<f64> {
    ensure!(datagram_bytes >= 8, "a datagram has a number of 8 bytes");
    link.send(&Job::Datagrams(DatagramParameters {
        exchange,
        datagram_bytes,
    }))?;
    let to: SocketAddr = link.recv()?;
    let socket = open_udp_socket(DRIVER_AND_WORKER_ADDRESSES[0])?;
    let value = match exchange {
        DatagramExchange::Stream { segments } => {
            send_stream(&socket, to, datagram_bytes, segments, count)?;
            0.0
        }
        DatagramExchange::PingPong => mean_half_round_trip_ns(&socket, to, datagram_bytes, count)?,
    };
    let mut end = vec![0; datagram_bytes];
    end[..8].copy_from_slice(&END_NUMBER.to_le_bytes());
    set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0)?;
    for _ in 0..END_DATAGRAM_REPEATS {
        // The worker may have received the end already and closed its socket.
        let _ = socket.send_to(&end, to);
        std::thread::sleep(Duration::from_millis(1));
    }
    let counts: WorkerDatagramResult = link.recv()?;
    ensure!(counts.in_order, "datagrams arrived out of order");
    #[allow(clippy::cast_precision_loss)] // far below 2^52 datagrams
    match exchange {
        DatagramExchange::Stream { .. } => Ok(counts.received_datagrams as f64 / counts.seconds),
        DatagramExchange::PingPong => Ok(value),
    }
}

fn send_stream(
    socket: &UdpSocket,
    to: SocketAddr,
    datagram_bytes: usize,
    segments: usize,
    count: u64,
) -> Result<()> {
    ensure!(
        (1..=64).contains(&segments),
        "a system call takes 1 to 64 datagrams"
    );
    if segments > 1 {
        let size = i32::try_from(datagram_bytes)?;
        set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, size)?;
    }
    let mut burst = vec![0; datagram_bytes * segments];
    let mut next = 0;
    while next < count {
        for datagram in burst.chunks_exact_mut(datagram_bytes) {
            datagram[..8].copy_from_slice(&u64::to_le_bytes(next));
            next += 1;
        }
        while let Err(error) = socket.send_to(&burst, to) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error).context("cannot send a datagram");
            }
        }
    }
    Ok(())
}

fn mean_half_round_trip_ns(
    socket: &UdpSocket,
    to: SocketAddr,
    datagram_bytes: usize,
    count: u64,
) -> Result<f64> {
    let mut sent = vec![0; datagram_bytes];
    let mut answer = vec![0; 65_536];
    let begin = Instant::now();
    for number in 0..count {
        sent[..8].copy_from_slice(&number.to_le_bytes());
        socket
            .send_to(&sent, to)
            .context("cannot send a datagram")?;
        let (len, _) = poll_datagram(socket, &mut answer)?;
        ensure!(answer[..len] == sent, "the answer has other bytes");
    }
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    Ok(begin.elapsed().as_secs_f64() * 1e9 / 2.0 / count as f64)
}

/// Runs the worker: receives, or answers, until the end.
///
/// # Errors
/// A socket fails, or the driver is gone.
pub fn run_worker_side(link: &mut WorkerLink, request: DatagramParameters) -> Result<()> {
    let socket = open_udp_socket(DRIVER_AND_WORKER_ADDRESSES[1])?;
    link.send(&socket.local_addr()?)?;
    let mut buffer = vec![0; 65_536];
    let mut counts = WorkerDatagramResult {
        received_datagrams: 0,
        in_order: true,
        seconds: 0.0,
    };
    let mut begin = None;
    let mut next = 0;
    loop {
        let (len, from) = poll_datagram(&socket, &mut buffer)?;
        for datagram in buffer[..len].chunks(request.datagram_bytes) {
            let number = datagram.first_chunk().map(|n| u64::from_le_bytes(*n));
            let Some(number) = number else {
                bail!("a datagram without a number");
            };
            if number == END_NUMBER {
                return link.send(&counts);
            }
            counts.in_order &= number >= next;
            next = number + 1;
            counts.received_datagrams += 1;
        }
        if request.exchange == DatagramExchange::PingPong {
            socket
                .send_to(&buffer[..len], from)
                .context("cannot answer a datagram")?;
        } else {
            counts.seconds = begin
                .get_or_insert_with(Instant::now)
                .elapsed()
                .as_secs_f64();
        }
    }
}

/// Polls until a datagram arrives.
fn poll_datagram(socket: &UdpSocket, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
    let mut begin = None;
    loop {
        match socket.recv_from(buffer) {
            Ok(received) => return Ok(received),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e).context("cannot receive datagrams"),
        }
        if begin.get_or_insert_with(Instant::now).elapsed() > DATAGRAM_TIMEOUT {
            bail!("no datagram came for {} s", DATAGRAM_TIMEOUT.as_secs());
        }
    }
}

fn open_udp_socket(address: &str) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot bind {address}"))?;
    socket.set_nonblocking(true)?;
    set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    // With CAP_NET_ADMIN, the buffer may exceed net.core.rmem_max.
    set_option(
        &socket,
        libc::SOL_SOCKET,
        libc::SO_RCVBUFFORCE,
        RECEIVE_BUFFER_BYTES,
    )
    .or_else(|_| {
        set_option(
            &socket,
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            RECEIVE_BUFFER_BYTES,
        )
    })?;
    Ok(socket)
}

fn set_option(socket: &UdpSocket, level: i32, name: i32, value: i32) -> Result<()> {
    // SAFETY: the pointer and the length are those of `value`, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            libc::socklen_t::try_from(size_of::<i32>())?,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error()).context("cannot set an option of a UDP socket");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_and_ping_pong_run_tiny_and_are_verified() {
        let streams = [1, 2, 64].map(|segments| DatagramExchange::Stream { segments });
        for exchange in streams.into_iter().chain([DatagramExchange::PingPong]) {
            for bytes in [24, 1000] {
                let (mut left, mut right) = WorkerLink::pair().unwrap();
                let worker = std::thread::spawn(move || match right.recv().unwrap() {
                    Job::Datagrams(request) => run_worker_side(&mut right, request),
                    job => bail!("{job:?} is no exchange"),
                });
                assert!(
                    run_driver_side_for_rate_or_ns(&mut left, exchange, bytes, 640).unwrap() > 0.0
                );
                drop(left);
                worker.join().unwrap().unwrap();
            }
        }
    }

    #[test]
    fn what_has_no_number_or_too_many_segments_is_refused() {
        let (mut left, _right) = WorkerLink::pair().unwrap();
        assert!(
            run_driver_side_for_rate_or_ns(&mut left, DatagramExchange::PingPong, 7, 1).is_err()
        );
        let socket = open_udp_socket(DRIVER_AND_WORKER_ADDRESSES[0]).unwrap();
        let to = socket.local_addr().unwrap();
        assert!(send_stream(&socket, to, 24, 65, 1).is_err());
        assert!(send_stream(&socket, to, 24, 0, 1).is_err());
    }
}
