//! The traffic counters of the ports: the files of `counters` in a port's folder of sysfs
//! (`linux:Documentation/ABI/stable/sysfs-class-infiniband`), such as `port_xmit_data`.
//!
//! The processes of a fabric add to sums in shared memory, and a process that adds writes the text of the new sum. Sums
//! and texts are files of the fabric's folder that every process maps. Programs keep a file open and read it again, so
//! a file is never replaced. Adding costs no system call. A process that is killed before it adds a sum loses this sum;
//! the sums of other processes stay.
//!
//! A file grows with its number. A program may read a file by several calls, and the number may gain several digits
//! between them. The program then gets the last digits of the longer number after the shorter one. Padding would
//! prevent this, but programs such as `rdmamap` trim only newlines, and `cat` would print blank lines.
//!
//! A message between two ports of this host counts at both ports: the sender also adds to the receiver's port. A READ
//! or an atomic adds its response in the other direction. Acknowledgements are not counted, because shared memory has
//! none.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{FallocateFlags, fallocate};
use shm::fabric::segment::AtomicPage;

use crate::device::configured_address_list;
use crate::lock::lock;

/// The folder of all ports, in the fabric's folder.
const TRAFFIC_FOLDER_NAME: &str = "traffic";

/// Octets and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OctetAndPacketCounts {
    /// Octets of whole packets, from the first header to the ICRC.
    pub(crate) octets: u64,
    pub(crate) packets: u64,
    /// Those of the packets that were sent to a multicast group.
    pub(crate) multicast_packets: u64,
}

impl OctetAndPacketCounts {
    pub(crate) fn is_zero(&self) -> bool {
        self.packets == 0
    }

    /// The amount beyond `earlier`, an earlier value of the same counts.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            octets: self.octets.wrapping_sub(earlier.octets),
            packets: self.packets.wrapping_sub(earlier.packets),
            multicast_packets: self
                .multicast_packets
                .wrapping_sub(earlier.multicast_packets),
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.octets = self.octets.wrapping_add(other.octets);
        self.packets = self.packets.wrapping_add(other.packets);
        self.multicast_packets = self.multicast_packets.wrapping_add(other.multicast_packets);
    }
}

/// Octets of the headers of Ethernet, IP and UDP (IBTA vol. 1, A17.3).
pub(crate) const fn ethernet_ip_udp_header_octets(is_ipv4: bool) -> u64 {
    14 + if is_ipv4 { 20 } else { 40 } + 8
}

/// The direction of packets at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Transmitted,
    Received,
}

/// Names of the files of a direction: data, packets, unicast packets, multicast packets.
const TRANSMITTED_COUNTER_FILE_NAMES: [&str; 4] = [
    "port_xmit_data",
    "port_xmit_packets",
    "unicast_xmit_packets",
    "multicast_xmit_packets",
];
const RECEIVED_COUNTER_FILE_NAMES: [&str; 4] = [
    "port_rcv_data",
    "port_rcv_packets",
    "unicast_rcv_packets",
    "multicast_rcv_packets",
];

/// Octets of the unit of `port_xmit_data` and `port_rcv_data`: "divided by 4 (counting in double words, 32 bits)".
const OCTETS_PER_DATA_UNIT: u64 = 4;

/// The number of this process's ports, by which peers find their files. 0: there is none, since `/proc` is not mounted.
///
/// Processes of one network namespace that were given the same addresses share their ports.
pub(crate) fn own_port_counters_key() -> u64 {
    let Ok(namespace) = std::fs::metadata("/proc/self/ns/net") else {
        return 0;
    };
    let addresses = configured_address_list().unwrap_or_default();
    let bytes = namespace.ino().to_le_bytes().into_iter();
    // FNV-1a, which all builds of all versions compute alike.
    let hash = bytes
        .chain(addresses.bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    hash.max(1)
}

/// A port of the host: the number of its process's ports ([`own_port_counters_key`]), and its number among them
/// ([`PortPlace::host_wide_number`]).
///
/// [`PortPlace::host_wide_number`]: crate::device::PortPlace::host_wide_number
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostPortId {
    pub(crate) process_ports_key: u64,
    pub(crate) host_wide_number: u32,
}

/// The folder with the counters of a port in the fabric `fabric`.
fn counter_folder(fabric: &Path, name: HostPortId) -> PathBuf {
    fabric.join(TRAFFIC_FOLDER_NAME).join(format!(
        "{:016x}-{}",
        name.process_ports_key, name.host_wide_number
    ))
}

/// Makes the files of a port, if they are missing, and returns their folder.
///
/// # Errors
/// Those of the file system.
pub(crate) fn create_counter_folder(fabric: &Path, name: HostPortId) -> io::Result<PathBuf> {
    PortTrafficCounters::open(fabric, name)?;
    Ok(counter_folder(fabric, name))
}

/// The counters of a port.
pub(crate) struct PortTrafficCounters {
    /// Words 0 to 2: octets, packets and multicast packets that were transmitted; 3 to 5: received.
    sums_page: AtomicPage,
    transmitted_files: [DecimalFile; 4],
    received_files: [DecimalFile; 4],
}

impl PortTrafficCounters {
    #[cold]
    #[inline(never)]
    fn open(fabric: &Path, name: HostPortId) -> io::Result<Box<Self>> {
        let folder = counter_folder(fabric, name);
        let parent = fabric.join(TRAFFIC_FOLDER_NAME);
        for folder in [&parent, &folder] {
            match DirBuilder::new().mode(0o700).create(folder) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        let sums = open_or_create_file(&folder.with_extension("sums"))?;
        fallocate(&sums, FallocateFlags::empty(), 0, AtomicPage::BYTES as u64)?;
        let text = |name: &str| DecimalFile::open(&folder.join(name));
        let texts = |names: [&str; 4]| -> io::Result<[DecimalFile; 4]> {
            let [data, packets, unicast, multicast] = names;
            Ok([
                text(data)?,
                text(packets)?,
                text(unicast)?,
                text(multicast)?,
            ])
        };
        Ok(Box::new(Self {
            sums_page: AtomicPage::new(&sums)?,
            transmitted_files: texts(TRANSMITTED_COUNTER_FILE_NAMES)?,
            received_files: texts(RECEIVED_COUNTER_FILE_NAMES)?,
        }))
    }

    /// Adds packets.
    pub(crate) fn add(&self, direction: Direction, amount: OctetAndPacketCounts) {
        if amount.is_zero() {
            return;
        }
        let (first, [data, packets, unicast, multicast]) = match direction {
            Direction::Transmitted => (0, &self.transmitted_files),
            Direction::Received => (3, &self.received_files),
        };
        let [octet_sum, packet_sum, multicast_sum] =
            [0, 1, 2].map(|at| self.sums_page.atomic_word(first + at));
        octet_sum.fetch_add(amount.octets, Ordering::Relaxed);
        multicast_sum.fetch_add(amount.multicast_packets, Ordering::Relaxed);
        packet_sum.fetch_add(amount.packets, Ordering::AcqRel);
        // Another process may write an older sum over this one. It looks again after it has written.
        let read = || {
            let packets = packet_sum.load(Ordering::Acquire);
            let multicast = multicast_sum.load(Ordering::Relaxed);
            (octet_sum.load(Ordering::Relaxed), packets, multicast)
        };
        std::sync::atomic::fence(Ordering::SeqCst);
        let mut sums = read();
        for _ in 0..MAX_WRITE_ATTEMPTS {
            data.write_number(sums.0 / OCTETS_PER_DATA_UNIT);
            packets.write_number(sums.1);
            unicast.write_number(sums.1.saturating_sub(sums.2));
            if sums.2 != 0 {
                multicast.write_number(sums.2);
            }
            std::sync::atomic::fence(Ordering::SeqCst);
            let now = read();
            if now == sums {
                break;
            }
            sums = now;
        }
    }
}

/// Number of times that a process writes texts before it leaves the newest sum to the process that adds all the time.
const MAX_WRITE_ATTEMPTS: u32 = 100;

/// Opens a file of this user for reading and writing, and makes it if it is missing.
fn open_or_create_file(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
}

/// The file with a number in decimal. It is not kept open: a program may need its descriptors.
struct DecimalFile {
    path: PathBuf,
    page: AtomicPage,
    /// The length of the file, in bytes: it has had at least this length.
    known_min_bytes: AtomicU64,
}

/// Bytes of the longest number with its newline, in whole words.
const MAX_DECIMAL_BYTES: usize = 24;

impl DecimalFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = open_or_create_file(path)?;
        let len = file.metadata()?.len();
        if len == 0 {
            // Two processes that do this at the same time write the same.
            file.write_all_at(b"0\n", 0)?;
        }
        Ok(Self {
            page: AtomicPage::new(&file)?,
            known_min_bytes: AtomicU64::new(len.max(2)),
            path: path.to_owned(),
        })
    }

    /// Writes the number.
    fn write_number(&self, number: u64) {
        let (text, len) = to_decimal_line(number);
        let store = || {
            for (at, word) in text.chunks_exact(8).enumerate() {
                let word = word.try_into().map_or(0, u64::from_ne_bytes);
                let place = self.page.atomic_word(at);
                if place.load(Ordering::Relaxed) != word {
                    place.store(word, Ordering::Relaxed);
                }
            }
        };
        store();
        if len > self.known_min_bytes.load(Ordering::Relaxed) {
            // Without a descriptor, the next call tries again.
            if extend_file(&self.path, len).is_ok() {
                self.known_min_bytes.store(len, Ordering::Relaxed);
            }
            store();
        }
    }
}

/// Makes a file at least so long. Unlike ftruncate(2), this never shortens a file that another process has extended.
#[cold]
fn extend_file(path: &Path, len: u64) -> io::Result<()> {
    let _hold_off = cancellation::HoldOff::new();
    fallocate(&open_or_create_file(path)?, FallocateFlags::empty(), 0, len)?;
    Ok(())
}

/// The number with a newline, and the length of both.
fn to_decimal_line(mut number: u64) -> ([u8; MAX_DECIMAL_BYTES], u64) {
    let mut digits = [0; MAX_DECIMAL_BYTES];
    let mut at = MAX_DECIMAL_BYTES;
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    let mut text = [0; MAX_DECIMAL_BYTES];
    let len = MAX_DECIMAL_BYTES - at;
    text[..len].copy_from_slice(&digits[at..]);
    text[len] = b'\n';
    (text, len as u64 + 1)
}

/// The ports to whose counters this process adds.
#[derive(Default)]
pub(crate) struct TrafficCountersByPort {
    traffic_counters_by_port: Mutex<Vec<(HostPortId, Option<Arc<PortTrafficCounters>>)>>,
}

impl TrafficCountersByPort {
    /// Returns the counters of a port; `None` if its files cannot be made: then nothing is counted.
    #[cold]
    #[inline(never)]
    pub(crate) fn open_traffic_counters_of_port(
        &self,
        fabric: &Path,
        name: HostPortId,
    ) -> Option<Arc<PortTrafficCounters>> {
        if name.process_ports_key == 0 || name.host_wide_number == 0 {
            return None;
        }
        let _hold_off = cancellation::HoldOff::new();
        let mut known = lock(&self.traffic_counters_by_port);
        if let Some((_, port)) = known.iter().find(|(known, _)| *known == name) {
            return port.clone();
        }
        let port = PortTrafficCounters::open(fabric, name)
            .inspect_err(|e| {
                tracing::warn!(
                    "the traffic of port {} is not counted: {e}",
                    name.host_wide_number
                )
            })
            .ok()
            .map(Arc::from);
        known.push((name, port.clone()));
        port
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const NAME: HostPortId = HostPortId {
        process_ports_key: 7,
        host_wide_number: 1,
    };

    fn text(fabric: &Path, name: &str) -> String {
        std::fs::read_to_string(counter_folder(fabric, NAME).join(name)).expect("a file")
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 9, 10, 12_345_678, 123_456_789, u64::MAX] {
            let (text, len) = to_decimal_line(number);
            let len = usize::try_from(len).expect("short");
            assert_eq!(text[..len], *format!("{number}\n").as_bytes());
        }
    }

    #[test]
    fn processes_add_up_in_files_that_stay_open() {
        let fabric = tempfile::tempdir().expect("a folder");
        create_counter_folder(fabric.path(), NAME).expect("made");
        for name in TRANSMITTED_COUNTER_FILE_NAMES
            .into_iter()
            .chain(RECEIVED_COUNTER_FILE_NAMES)
        {
            assert_eq!(text(fabric.path(), name), "0\n", "{name}");
        }
        let path = counter_folder(fabric.path(), NAME).join("port_xmit_packets");
        let mut open = File::open(path).expect("there");
        let amount = |packets, multicast| OctetAndPacketCounts {
            octets: 400 * packets,
            packets,
            multicast_packets: multicast,
        };
        let processes =
            [(); 2].map(|()| PortTrafficCounters::open(fabric.path(), NAME).expect("open"));
        processes[0].add(Direction::Transmitted, amount(5, 0));
        processes[1].add(Direction::Transmitted, amount(95, 1));
        processes[1].add(Direction::Received, amount(2, 0));
        let mut read = String::new();
        open.read_to_string(&mut read).expect("readable");
        assert_eq!(read, "100\n");
        assert_eq!(text(fabric.path(), "port_xmit_data"), "10000\n");
        assert_eq!(text(fabric.path(), "unicast_xmit_packets"), "99\n");
        assert_eq!(text(fabric.path(), "multicast_xmit_packets"), "1\n");
        assert_eq!(text(fabric.path(), "port_rcv_data"), "200\n");
    }

    #[test]
    fn concurrent_additions_leave_the_newest_sum() {
        let fabric = tempfile::tempdir().expect("a folder");
        let one = OctetAndPacketCounts {
            octets: 4,
            packets: 1,
            multicast_packets: 0,
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let port = PortTrafficCounters::open(fabric.path(), NAME).expect("open");
                    (0..1000).for_each(|_| port.add(Direction::Received, one));
                });
            }
        });
        assert_eq!(text(fabric.path(), "port_rcv_packets"), "4000\n");
        assert_eq!(text(fabric.path(), "port_rcv_data"), "4000\n");
    }

    #[test]
    fn ports_are_opened_once_and_those_without_a_name_are_not_counted() {
        let fabric = tempfile::tempdir().expect("a folder");
        let ports = TrafficCountersByPort::default();
        let [one, again] = [(); 2].map(|()| {
            ports
                .open_traffic_counters_of_port(fabric.path(), NAME)
                .expect("open")
        });
        assert!(Arc::ptr_eq(&one, &again));
        for name in [
            HostPortId {
                process_ports_key: 0,
                ..NAME
            },
            HostPortId {
                host_wide_number: 0,
                ..NAME
            },
        ] {
            assert!(
                ports
                    .open_traffic_counters_of_port(fabric.path(), name)
                    .is_none()
            );
        }
    }
}
