//! Removes page files of processes that have ended.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::connection_page::{ConnectionPage, page_file_name, stage};
use crate::ended_connection_totals;

/// Number of closes of shared connections after which the files are looked at.
const CLOSES_PER_REMOVAL: u32 = 64;

/// Removes the files of connections whose processes have all ended.
pub(crate) fn remove_pages_of_ended_connections(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    let mut held = None;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("c-") {
            continue;
        }
        if let Ok(page) = ConnectionPage::open(&entry.path(), false)
            && is_page_unused(&page)
            && !held
                .get_or_insert_with(page_names_of_held_connections)
                .contains(&*name)
        {
            ended_connection_totals::remove_page_and_add_to_totals(&page);
        }
    }
}

/// Does so after some calls. Called when a process closes a connection that others may still use.
pub(crate) fn remove_pages_sometimes(dir: &Path) {
    static CLOSES: AtomicU32 = AtomicU32::new(0);
    if CLOSES.fetch_add(1, Ordering::Relaxed) % CLOSES_PER_REMOVAL == CLOSES_PER_REMOVAL - 1 {
        remove_pages_of_ended_connections(dir);
    }
}

/// Returns true if no process uses a page any more. A process that has not found it yet can still use it.
pub(crate) fn is_page_unused(page: &ConnectionPage) -> bool {
    use std::sync::atomic::Ordering::Acquire;
    [0, 1].into_iter().all(|side| {
        let side = page.side_words(side);
        side.pid.load(Acquire) == 0
            || side.setup_stage.load(Acquire) == stage::TCP_OR_CLOSED
            || side.is_dead()
    })
}

/// Returns the names that pages have for the TCP connections of this network namespace that processes hold.
fn page_names_of_held_connections() -> HashSet<String> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let tables = tables.map(|path| fs::read_to_string(path).unwrap_or_default());
    tables
        .iter()
        .flat_map(|table| table.lines())
        .filter_map(parse_proc_net_tcp_line)
        .flat_map(|(own, peer)| [true, false].map(|remote| page_file_name(own, peer, remote)))
        .flatten()
        .collect()
}

/// Returns the addresses in a line of `/proc/net/tcp` (`proc_net_tcp.txt` of the kernel), if a process has the socket.
fn parse_proc_net_tcp_line(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut fields = line.split_whitespace().skip(1);
    let (own, peer) = (
        parse_proc_net_address(fields.next()?)?,
        parse_proc_net_address(fields.next()?)?,
    );
    let inode = fields.nth(6)?;
    (inode != "0").then_some((own, peer))
}

/// Reads an address such as `0100007F:1F90`: words of 32 bits in the byte order of this machine.
fn parse_proc_net_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok();
    let ip = if ip.len() == 8 {
        IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes()))
    } else {
        let mut bytes = [0; 16];
        for (i, four) in bytes.chunks_mut(4).enumerate() {
            four.copy_from_slice(&word(i * 8)?.to_ne_bytes());
        }
        IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_the_kernel_are_named_as_pages() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.local_addr().expect("an address");
        let client = std::net::TcpStream::connect(own).expect("a connection");
        let peer = client.local_addr().expect("an address");
        let (accepted, _) = listener.accept().expect("a connection");
        let has = |own, peer| {
            page_names_of_held_connections()
                .contains(&page_file_name(own, peer, true).expect("a name"))
        };
        assert!(has(own, peer) && has(peer, own));
        drop(accepted);
        assert!(!has(own, peer) && has(peer, own), "no process has that end");
    }

    #[test]
    fn addresses_of_both_families_are_read() {
        let expected = if cfg!(target_endian = "little") {
            ("0100007F:1F90", "0000000000000000FFFF00000100007F:0050")
        } else {
            ("7F000001:1F90", "00000000000000000000FFFF7F000001:0050")
        };
        let read = |text| parse_proc_net_address(text).map(|address| address.to_string());
        assert_eq!(read(expected.0).as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(read(expected.1).as_deref(), Some("127.0.0.1:80"));
        for wrong in [
            "",
            ":",
            "01:02",
            "0100007F",
            "é100007F:1F90",
            "0100007F:12345",
        ] {
            assert_eq!(parse_proc_net_address(wrong), None);
        }
    }
}
