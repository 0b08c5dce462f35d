//! Tests of port numbers, each in a folder of its own.

use std::net::Ipv6Addr;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat, symlinkat};
use rustix::net::accept;

use super::link_names::{AddressFamily, wildcard_of_all_families};
use super::{IdBinding, PortFolder, UnreachedReason};
use crate::addr::IdAddress;

const TCP: u32 = 0x0106;
const UDP: u32 = 0x0111;

fn ip(addr: &str) -> IdAddress {
    IdAddress::Ip(addr.parse().unwrap())
}

fn binding(addr: &str) -> IdBinding {
    IdBinding {
        addr: ip(addr),
        afonly: false,
        reuse_address: false,
    }
}

fn ports() -> (tempfile::TempDir, PortFolder) {
    let dir = tempfile::tempdir().unwrap();
    let ports = PortFolder::open(dir.path()).unwrap();
    (dir, ports)
}

#[test]
fn who_listens_is_reached_and_who_is_only_bound_is_not() {
    let (_dir, ports) = ports();
    let to = ip("127.0.0.1:7471");
    assert_eq!(
        ports.connect(TCP, to).unwrap_err(),
        UnreachedReason::NoListener
    );
    assert!(!ports.may_listen_soon(TCP, to));
    let mut claim = ports.claim(TCP, binding("0.0.0.0:7471")).unwrap();
    assert_eq!(
        ports.connect(TCP, to).unwrap_err(),
        UnreachedReason::NoListener
    );
    assert!(ports.may_listen_soon(TCP, to), "it was bound a moment ago");
    assert!(!ports.may_listen_soon(UDP, to));
    let listener = ports.listen(&mut claim).unwrap();
    let _client = ports.connect(TCP, to).unwrap();
    accept(&listener).unwrap();
    let v6 = ip("[::1]:7471");
    assert_eq!(
        ports.connect(TCP, v6).unwrap_err(),
        UnreachedReason::NoListener
    );
    assert_eq!(
        ports.connect(UDP, to).unwrap_err(),
        UnreachedReason::NoListener
    );
    ports.record_listener_closing(&claim);
    ports.release(&claim);
    assert_eq!(
        ports.connect(TCP, to).unwrap_err(),
        UnreachedReason::NoListener
    );
    assert!(ports.may_listen_soon(TCP, to));
    assert!(!ports.may_listen_soon(TCP, ip("127.0.0.1:7472")));
    ports.claim(TCP, binding("0.0.0.0:7471")).unwrap();
}

#[test]
fn the_closest_listener_gets_the_request() {
    let (_dir, ports) = ports();
    let mut any = ports.claim(TCP, binding("[::]:99")).unwrap();
    let any = ports.listen(&mut any).unwrap();
    let _client = ports.connect(TCP, ip("10.0.0.1:99")).unwrap();
    accept(&any).unwrap();
    let (_dir, ports) = self::ports();
    let mut one = ports.claim(TCP, binding("10.0.0.1:99")).unwrap();
    let mut two = ports.claim(TCP, binding("10.0.0.2:99")).unwrap();
    let one = ports.listen(&mut one).unwrap();
    let two = ports.listen(&mut two).unwrap();
    let _client = ports.connect(TCP, ip("10.0.0.2:99")).unwrap();
    accept(&two).unwrap();
    assert!(accept(&one).is_err());
}

#[test]
fn conflicts_are_those_of_linux() {
    let refused = |first: IdBinding, second: IdBinding| {
        let (_dir, ports) = ports();
        let _first = ports.claim(TCP, first).unwrap();
        ports.claim(TCP, second).err().map(|e| e.0)
    };
    let one = binding("10.0.0.1:5");
    let two = binding("10.0.0.2:5");
    let any4 = binding("0.0.0.0:5");
    let any6 = binding("[::]:5");
    let only = |b: IdBinding| IdBinding { afonly: true, ..b };
    let reuse = |b: IdBinding| IdBinding {
        reuse_address: true,
        ..b
    };
    assert_eq!(refused(one, two), None);
    assert_eq!(refused(one, one), Some(libc::EADDRINUSE));
    assert_eq!(refused(one, any4), Some(libc::EADDRNOTAVAIL));
    assert_eq!(refused(any4, one), Some(libc::EADDRNOTAVAIL));
    assert_eq!(refused(any4, any4), Some(libc::EADDRNOTAVAIL));
    assert_eq!(refused(any4, any6), Some(libc::EADDRNOTAVAIL));
    assert_eq!(refused(only(any4), only(any6)), None);
    assert_eq!(refused(only(any4), any6), Some(libc::EADDRNOTAVAIL));
    assert_eq!(refused(reuse(one), reuse(one)), None);
    assert_eq!(refused(reuse(one), one), Some(libc::EADDRINUSE));
    let (_dir, ports) = ports();
    let _tcp = ports.claim(TCP, one).unwrap();
    assert!(ports.claim(UDP, one).is_ok(), "port spaces are apart");
}

#[test]
fn gids_and_addresses_of_ip_are_apart_but_for_wildcards() {
    use crate::ib_addr::IbAddr;
    let (_dir, ports) = ports();
    let at = |gid: &str| {
        let gid = gid.parse::<Ipv6Addr>().unwrap().octets();
        IdAddress::Ib(IbAddr::new(gid, 0xffff).with_service(TCP, 99))
    };
    let bound = |addr| IdBinding {
        addr,
        ..binding("0.0.0.0:99")
    };
    let only = |addr| IdBinding {
        afonly: true,
        ..bound(addr)
    };
    let claim = |b| ports.claim(TCP, b).map_err(|e| e.0);
    let mut gid = claim(bound(at("fe80::1"))).unwrap();
    assert_eq!(claim(bound(at("fe80::1"))).err(), Some(libc::EADDRINUSE));
    assert_eq!(claim(bound(at("::"))).err(), Some(libc::EADDRNOTAVAIL));
    let mut ip = claim(bound(ip("[fe80::1]:99"))).unwrap();
    let gid_listener = ports.listen(&mut gid).unwrap();
    let ip_listener = ports.listen(&mut ip).unwrap();
    let _client = ports.connect(TCP, at("fe80::1")).unwrap();
    accept(&gid_listener).unwrap();
    assert!(accept(&ip_listener).is_err());
    // The service id of an `AF_IB` address contains the port space.
    let _client = ports.connect(UDP, at("fe80::1")).unwrap();
    accept(&gid_listener).unwrap();
    assert_eq!(
        ports.connect(TCP, at("fe80::2")).unwrap_err(),
        UnreachedReason::NoListener
    );
    ports.release(&gid);
    ports.release(&ip);
    // The loopback address of `AF_IB` counts as a wildcard.
    let mut any_gid = claim(only(at("::1"))).unwrap();
    assert!(claim(only(self::ip("0.0.0.0:99"))).is_ok());
    assert_eq!(
        claim(only(at("::"))).err(),
        Some(libc::EADDRNOTAVAIL),
        "the same family"
    );
    let listener = ports.listen(&mut any_gid).unwrap();
    let _client = ports.connect(TCP, at("fe80::2")).unwrap();
    accept(&listener).unwrap();
}

#[test]
fn links_that_lead_elsewhere_delete_nothing_there() {
    let (dir, ports) = ports();
    let keep = dir.path().join("keep");
    std::fs::write(&keep, "").unwrap();
    std::fs::write(dir.path().join("rdma_cm/4294967295-1-keep"), "").unwrap();
    for (n, target) in ["../keep", "4294967295-1-keep", keep.to_str().unwrap()]
        .into_iter()
        .enumerate()
    {
        let link = wildcard_of_all_families(AddressFamily::V4).link_name(TCP, 7471 + n as u16);
        symlinkat(target, &ports.folder, &link).unwrap();
        let taken = binding(&format!("10.0.0.1:{}", 7471 + n));
        ports.claim(TCP, taken).unwrap();
    }
    drop(PortFolder::open(dir.path()).unwrap());
    assert!(keep.exists());
    assert!(dir.path().join("rdma_cm/4294967295-1-keep").exists());
}

#[test]
fn of_those_who_share_a_port_none_listens_until_it_is_alone() {
    let (_dir, ports) = ports();
    let shared = IdBinding {
        reuse_address: true,
        ..binding("10.0.0.1:5")
    };
    let mut first = ports.claim(TCP, shared).unwrap();
    let second = ports.claim(TCP, shared).unwrap();
    assert_eq!(ports.listen(&mut first).unwrap_err().0, libc::EADDRINUSE);
    ports.release(&second);
    let listener = ports.listen(&mut first).unwrap();
    let _client = ports.connect(TCP, ip("10.0.0.1:5")).unwrap();
    accept(&listener).unwrap();
    assert_eq!(ports.claim(TCP, shared).unwrap_err().0, libc::EADDRINUSE);
}

#[test]
fn free_ports_differ_and_are_not_those_of_wildcards() {
    let (_dir, ports) = ports();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..50 {
        let claim = ports.claim(TCP, binding("127.0.0.1:0")).unwrap();
        let port = claim.binding.addr.port();
        assert!(port >= 1024 && seen.insert(port));
    }
}

/// A child that another thread has forked meanwhile inherits the descriptor of the lock.
#[test]
#[allow(unsafe_code)]
fn a_forked_child_does_not_keep_the_folder_locked() {
    let (_dir, ports) = ports();
    let held = ports.lock_folder().unwrap();
    // SAFETY: the child only calls async-signal-safe functions.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::sleep(60);
            libc::_exit(0);
        }
    }
    drop(held);
    let lock = openat(&ports.folder, "lock", OFlags::RDWR, Mode::empty()).unwrap();
    let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive);
    // SAFETY: the child of this test, which no one else waits for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!(locked, Ok(()));
}

#[test]
fn ports_of_the_dead_are_taken_over() {
    let (dir, ports) = ports();
    let dead = "4294967295-1-0";
    let link = wildcard_of_all_families(AddressFamily::V4).link_name(TCP, 7471);
    symlinkat(dead, &ports.folder, &link).unwrap();
    std::fs::write(dir.path().join("rdma_cm").join(dead), "").unwrap();
    let claim = ports.claim(TCP, binding("10.0.0.1:7471")).unwrap();
    let mut names = ports.names().unwrap();
    names.sort();
    let mut expected = ["lock".to_owned(), claim.link_name.clone()];
    expected.sort();
    assert_eq!(names, expected);
    // A process that opens the folder removes stale names.
    symlinkat(
        dead,
        &ports.folder,
        wildcard_of_all_families(AddressFamily::V4).link_name(TCP, 1),
    )
    .unwrap();
    drop(PortFolder::open(dir.path()).unwrap());
    assert_eq!(ports.names().unwrap().len(), 2);
}
