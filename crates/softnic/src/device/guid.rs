//! The GUID of node and port, and the GID made of it.

use std::sync::OnceLock;
use std::{fs, io};

use shm::errno::exhaustion_errno;

/// Prefix of link-local GIDs, fe80::/64: the default of IBTA vol. 1, 4.1.1 and of RFC 4291, 2.5.6.
pub(super) const LINK_LOCAL_PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

/// Returns the GUID of node and port: an EUI-64 in network order, the same for every process of the host and at every
/// start.
///
/// 62 bits come from a hash of `/etc/machine-id` (`machine-id(5)` asks programs not to show the id
/// itself; 66 of its bits are lost here). The other two say "locally administered" and "individual",
/// since no registered vendor prefix stands behind it (IEEE, "Guidelines for use of EUI"). A host
/// without the file is identified by its boot, then by its name.
///
/// # Errors
/// The host's id cannot be read now, for want of descriptors or memory.
pub(super) fn read_node_guid() -> io::Result<[u8; 8]> {
    static GUID: OnceLock<[u8; 8]> = OnceLock::new();
    if let Some(guid) = GUID.get() {
        return Ok(*guid);
    }
    let files = [
        "/etc/machine-id",
        "/var/lib/dbus/machine-id",
        "/proc/sys/kernel/random/boot_id",
        "/proc/sys/kernel/hostname",
    ];
    let mut id = String::new();
    for file in files {
        match fs::read_to_string(file) {
            // While a system image is set up, the file is empty or says so: machine-id(5).
            Ok(text) if !matches!(text.trim(), "" | "uninitialized") => {
                id = text;
                break;
            }
            Err(e) if exhaustion_errno(&e).is_some() => return Err(e),
            _ => {}
        }
    }
    Ok(*GUID.get_or_init(|| guid_from_host_id(id.trim())))
}

/// Hashes a host's id into an EUI-64.
pub(super) fn guid_from_host_id(host_id: &str) -> [u8; 8] {
    // FNV-1a, 64 bits (RFC 9923), with its offset basis and prime; std's hashers may change with the
    // compiler, and the GUID must not.
    let mut hash = b"verbatim softnic guid "
        .iter()
        .chain(host_id.as_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    // The finalizer of MurmurHash3: FNV leaves the last bytes out of the high bits.
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    let mut guid = (hash ^ (hash >> 33)).to_be_bytes();
    guid[0] = guid[0] & !0x03 | 0x02;
    guid
}

/// Returns the GUID of a port that `VERBATIM_ADDRESS` gives the addresses `list`; it differs from that of the host.
pub(super) fn guid_of_address_list(host: [u8; 8], list: &str) -> [u8; 8] {
    guid_from_host_id(&format!("{host:02x?} {list}"))
}

/// The GUID of another device or port of the same host.
pub(super) fn guid_of_device_or_port(host: [u8; 8], place: &str) -> [u8; 8] {
    guid_from_host_id(&format!("{host:02x?} {place}"))
}

/// Returns the GUID of a port at an interface with this MAC address, or `None` if the interface has no address.
///
/// The GUID is the address's modified EUI-64 (RFC 4291, appendix A). The kernel makes a RoCE port's first GID from it
/// (`make_default_gid` in `roce_gid_mgmt.c`).
pub(super) fn guid_of_mac(mac: [u8; 6]) -> Option<[u8; 8]> {
    let [a, b, c, d, e, f] = mac;
    // The bit says "locally administered" in a MAC address, and the opposite here.
    (mac != [0; 6]).then_some([a ^ 0x02, b, c, 0xff, 0xfe, d, e, f])
}

/// Returns the link-local GID of a GUID: IBTA vol. 1, 4.1.1.
pub(super) fn link_local_gid(guid: [u8; 8]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&LINK_LOCAL_PREFIX);
    gid[8..].copy_from_slice(&guid);
    gid
}
