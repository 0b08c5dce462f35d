//! A network of management datagrams for the processes of a scene. It delivers each datagram to its process, as a NIC
//! does, and loses or duplicates some.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use roce::cm::CmMessage;
use roce::mad_delivery::{DeliveredMad, MAD_SOCKET_NAME_PREFIX, MadRecipient, mad_socket_name};
use verbs_abi::{Gsi, ibv_gid};

/// Environment variable with the slot of the process.
pub const SLOT: &str = "RDMACM_TEST_SLOT";
/// Environment variable with the percentage of lost datagrams, and of duplicated ones. If it is set, connections are
/// made by packets.
pub const LOSS: &str = "RDMACM_TEST_LOSS";

static GSI: Gsi = Gsi { route, open, send };

/// Returns the network, if the scene has one.
pub fn gsi() -> Option<&'static Gsi> {
    number(LOSS).map(|_| &GSI)
}

/// Returns an address of this host. If connections are made by packets, the address has a GID, which the queue pairs
/// use.
pub fn own_address() -> Ipv4Addr {
    if gsi().is_none() {
        return Ipv4Addr::LOCALHOST;
    }
    let device = rdmacm::default_device_port().expect("a device");
    let gids = (0..16).map(|index| {
        let mut gid = ibv_gid::zeroed();
        // SAFETY: the device is open, and `gid` has room for a GID.
        let failed =
            unsafe { (device.verbs.ibv_query_gid)(device.context, 1, index, &raw mut gid) };
        (failed == 0).then(|| gid.bytes())
    });
    gids.flatten()
        .find_map(|gid| Ipv6Addr::from(gid).to_ipv4_mapped())
        .unwrap_or(Ipv4Addr::LOCALHOST)
}

fn number(name: &str) -> Option<u64> {
    Some(
        std::env::var(name)
            .ok()?
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

unsafe extern "C" fn route(_: *mut u8) -> c_int {
    1
}

extern "C" fn open() -> c_int {
    c_int::try_from(number(SLOT).expect("a slot")).expect("ten bits")
}

unsafe extern "C" fn send(sgid: *const u8, dgid: *const u8, mad: *const u8) -> c_int {
    // SAFETY: the caller passes 16, 16 and 256 bytes.
    let delivery = unsafe {
        DeliveredMad {
            source_gid: *sgid.cast(),
            destination_gid: *dgid.cast(),
            mad: *mad.cast(),
        }
    };
    let loss = number(LOSS).unwrap_or(0);
    let copies = match dice() % 100 {
        n if n < loss => 0,
        n if n < 2 * loss => 2,
        _ => 1,
    };
    for _ in 0..copies {
        deliver(&delivery);
    }
    0
}

/// Returns a pseudo-random number (SplitMix64), seeded by the process's slot.
fn dice() -> u64 {
    static CALLS: AtomicU64 = AtomicU64::new(1);
    let calls = CALLS.fetch_add(1, Ordering::Relaxed);
    let seed = number(SLOT).unwrap_or(0) << 32;
    let z = (seed + calls).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn deliver(delivery: &DeliveredMad) {
    let folder = softnic::fabric_dir().expect("a fabric").join("rdma_cm");
    let (_, message) = CmMessage::parse(&delivery.mad).expect("a message");
    let sockets: Vec<PathBuf> = match message.recipient() {
        MadRecipient::ProcessInSlot(slot) => vec![folder.join(mad_socket_name(slot))],
        recipient => {
            let mut names: Vec<PathBuf> = std::fs::read_dir(&folder)
                .expect("a folder")
                .map(|entry| entry.expect("an entry").path())
                .filter(|path| {
                    path.file_name().is_some_and(|name| {
                        name.to_str()
                            .is_some_and(|name| name.starts_with(MAD_SOCKET_NAME_PREFIX))
                    })
                })
                .collect();
            names.sort();
            // Every process must be able to find the listener, so the network selects the last name in alphabetical order.
            if recipient == MadRecipient::Listener {
                names.drain(..names.len().saturating_sub(1));
            }
            names
        }
    };
    let socket = UnixDatagram::unbound().expect("a socket");
    for to in sockets {
        // The send fails if the process has ended.
        let _ = socket.send_to(&delivery.emit(), to);
    }
}
