//! Receive side scaling: which work queue a packet goes to.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use verbs_abi::*;

use super::headers::{Headers, field, layer};
use super::places::Places;
use crate::lock::lock;
use shm::fabric::layout::*;
use shm::fabric::{Fabric, Peer};

/// Bytes of the key of the Toeplitz function: as all devices have it ("Verifying the RSS Hash Calculation", Windows
/// drivers' documentation, which defines the function).
pub(crate) const KEY_BYTES: usize = 40;

/// The header fields that packets can be spread by.
pub(crate) const HASH_FIELDS: u64 = IBV_RX_HASH_SRC_IPV4
    | IBV_RX_HASH_DST_IPV4
    | IBV_RX_HASH_SRC_IPV6
    | IBV_RX_HASH_DST_IPV6
    | IBV_RX_HASH_SRC_PORT_TCP
    | IBV_RX_HASH_DST_PORT_TCP
    | IBV_RX_HASH_SRC_PORT_UDP
    | IBV_RX_HASH_DST_PORT_UDP;

/// How a queue pair spreads packets over work queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    /// Bits of `ibv_rx_hash_fields`.
    pub(crate) fields: u64,
    pub(crate) key: [u8; KEY_BYTES],
    /// Indices of the queue pairs that stand for the work queues: a power of two.
    pub(crate) table: Vec<usize>,
}

impl Spread {
    /// The queue pair that gets a packet.
    pub(crate) fn queue_of(&self, headers: &Headers) -> Option<usize> {
        let hash = toeplitz(&self.key, &self.hashed(headers));
        self.table
            .get(hash as usize & self.table.len().wrapping_sub(1))
            .copied()
    }

    /// The bytes that are hashed: addresses, then ports, the source's first.
    fn hashed(&self, headers: &Headers) -> Vec<u8> {
        let parts = [
            (IBV_RX_HASH_SRC_IPV4, layer::IPV4, field::SRC_IP, 4),
            (IBV_RX_HASH_SRC_IPV6, layer::IPV6, field::SRC_IP, 16),
            (IBV_RX_HASH_DST_IPV4, layer::IPV4, field::DST_IP, 4),
            (IBV_RX_HASH_DST_IPV6, layer::IPV6, field::DST_IP, 16),
            (IBV_RX_HASH_SRC_PORT_TCP, layer::TCP, field::SRC_PORT, 2),
            (IBV_RX_HASH_SRC_PORT_UDP, layer::UDP, field::SRC_PORT, 2),
            (IBV_RX_HASH_DST_PORT_TCP, layer::TCP, field::DST_PORT, 2),
            (IBV_RX_HASH_DST_PORT_UDP, layer::UDP, field::DST_PORT, 2),
        ];
        let mut bytes = Vec::new();
        for (wanted, layer, at, len) in parts {
            if self.fields & wanted != 0 && headers.has(layer) {
                bytes.extend_from_slice(&headers.field(at)[..len]);
            }
        }
        bytes
    }

    /// What a process says at a place, if that can be.
    pub(super) fn read(peer: &Peer, place: usize) -> Option<Self> {
        let shared = peer.segment.find_spread(place)?;
        let size = shared.size.load(Ordering::Acquire) as usize;
        if !size.is_power_of_two() || size > MAX_IND_TBL {
            return None;
        }
        let mut key = [0; KEY_BYTES];
        for (bytes, word) in key.chunks_exact_mut(8).zip(&shared.key) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        let table = shared.table[..size]
            .iter()
            .map(|index| index.load(Ordering::Relaxed) as usize)
            .collect();
        Some(Self {
            fields: shared.fields.load(Ordering::Relaxed),
            key,
            table,
        })
    }
}

/// The Toeplitz function: for each bit of the input that is set, the 32 bits of the key that begin where it stands.
fn toeplitz(key: &[u8; KEY_BYTES], input: &[u8]) -> u32 {
    let mut bits = key
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |i| byte >> i & 1));
    let mut window = bits
        .by_ref()
        .take(32)
        .fold(0, |w, bit| w << 1 | u32::from(bit));
    let mut hash = 0;
    for byte in input {
        for i in (0..8).rev() {
            if byte >> i & 1 != 0 {
                hash ^= window;
            }
            window = window << 1 | u32::from(bits.next().unwrap_or(0));
        }
    }
    hash
}

/// The places of the own table.
#[derive(Default)]
pub(crate) struct Spreads(Mutex<Places>);

impl Spreads {
    /// Shows peers how a queue pair spreads packets; the place.
    ///
    /// # Errors
    /// `ENOMEM` where the table or shared memory is full.
    pub(crate) fn add(&self, fabric: &Fabric, spread: &Spread) -> Result<usize, i32> {
        let place = lock(&self.0).take(MAX_SPREADS).ok_or(libc::ENOMEM)?;
        fill_in(fabric, place, spread).inspect_err(|_| self.remove(fabric, place))?;
        Ok(place)
    }

    /// Gives a place back; no flow leads to it any more.
    pub(crate) fn remove(&self, fabric: &Fabric, place: usize) {
        // It may have got no memory.
        if let Some(shared) = fabric.me.segment.find_spread(place) {
            shared.size.store(0, Ordering::Release);
        }
        lock(&self.0).give_back(place);
    }
}

fn fill_in(fabric: &Fabric, place: usize, spread: &Spread) -> Result<(), i32> {
    let at = SPREADS_AT + place * size_of::<SpreadShared>();
    fabric
        .reserve(at, size_of::<SpreadShared>())
        .map_err(|_| libc::ENOMEM)?;
    let shared = fabric.me.segment.spread(place).ok_or(libc::ENOMEM)?;
    shared.fields.store(spread.fields, Ordering::Relaxed);
    for (word, bytes) in shared.key.iter().zip(spread.key.as_chunks::<8>().0) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    for (index, &queue) in shared.table.iter().zip(&spread.table) {
        let queue = u32::try_from(queue).map_err(|_| libc::EINVAL)?;
        index.store(queue, Ordering::Relaxed);
    }
    let size = u32::try_from(spread.table.len()).map_err(|_| libc::EINVAL)?;
    shared.size.store(size, Ordering::Release);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the results of "Verifying the RSS Hash Calculation" (Windows drivers' documentation).
    const KEY: [u8; KEY_BYTES] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn the_published_hashes() {
        let hash = |source: ([u8; 4], u16), destination: ([u8; 4], u16)| {
            let addresses = [source.0, destination.0].concat();
            let ports = [source.1.to_be_bytes(), destination.1.to_be_bytes()].concat();
            (
                toeplitz(&KEY, &addresses),
                toeplitz(&KEY, &[addresses, ports].concat()),
            )
        };
        let cases = [
            (
                ([66, 9, 149, 187], 2794),
                ([161, 142, 100, 80], 1766),
                (0x323e_8fc2, 0x51cc_c178),
            ),
            (
                ([199, 92, 111, 2], 14230),
                ([65, 69, 140, 83], 4739),
                (0xd718_262a, 0xc626_b0ea),
            ),
            (
                ([24, 19, 198, 95], 12898),
                ([12, 22, 207, 184], 38024),
                (0xd2d0_a5de, 0x5c2b_394a),
            ),
        ];
        for (source, destination, published) in cases {
            assert_eq!(hash(source, destination), published);
        }
    }
}
