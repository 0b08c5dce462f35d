//! TCP keepalive: the kernel ends connections whose peer's host is gone, although no program sends anything.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};

/// Number of probes without an answer after which a connection ends.
const MAX_UNANSWERED_PROBES: u32 = 3;

/// Enables keepalive on a TCP socket. After `idle` without a packet from the peer, the kernel sends three probes, a
/// third of `idle` apart, as Redis configures its sockets. Without an answer, calls on the socket fail with `ETIMEDOUT`
/// after twice `idle`.
///
/// `idle` is rounded down to whole seconds, and is 3 s at least.
///
/// # Errors
/// If the descriptor is no TCP socket.
pub fn enable_keepalive(tcp: impl AsFd, idle: Duration) -> io::Result<()> {
    let idle = idle.max(Duration::from_secs(MAX_UNANSWERED_PROBES.into()));
    set_tcp_keepidle(&tcp, idle)?;
    set_tcp_keepintvl(&tcp, idle / MAX_UNANSWERED_PROBES)?;
    set_tcp_keepcnt(&tcp, MAX_UNANSWERED_PROBES)?;
    Ok(set_socket_keepalive(&tcp, true)?)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use rustix::net::sockopt::{socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl};

    use super::*;

    #[test]
    fn the_kernel_has_the_settings() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        for (idle, expected_idle, expected_interval) in [(300, 300, 100), (1, 3, 1)] {
            enable_keepalive(&tcp, Duration::from_secs(idle)).unwrap();
            assert!(socket_keepalive(&tcp).unwrap());
            assert_eq!(tcp_keepidle(&tcp).unwrap().as_secs(), expected_idle);
            assert_eq!(tcp_keepintvl(&tcp).unwrap().as_secs(), expected_interval);
            assert_eq!(tcp_keepcnt(&tcp).unwrap(), 3);
        }
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        enable_keepalive(&udp, Duration::from_secs(300)).unwrap_err();
    }
}
