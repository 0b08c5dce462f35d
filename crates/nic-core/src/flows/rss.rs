//! Receive side scaling: selects the work queue for a packet.

use super::headers::{FrameHeaders, field, layer};

/// Bytes of the Toeplitz key, as on all devices. The function is defined in "Verifying the RSS Hash Calculation"
/// (Windows drivers' documentation).
pub const TOEPLITZ_KEY_BYTES: usize = 40;

/// Header fields that the hash may use: bits of `enum ibv_rx_hash_fields`.
pub mod hash_field {
    /// `IBV_RX_HASH_SRC_IPV4`.
    pub const SRC_IPV4: u64 = 1 << 0;
    /// `IBV_RX_HASH_DST_IPV4`.
    pub const DST_IPV4: u64 = 1 << 1;
    /// `IBV_RX_HASH_SRC_IPV6`.
    pub const SRC_IPV6: u64 = 1 << 2;
    /// `IBV_RX_HASH_DST_IPV6`.
    pub const DST_IPV6: u64 = 1 << 3;
    /// `IBV_RX_HASH_SRC_PORT_TCP`.
    pub const SRC_PORT_TCP: u64 = 1 << 4;
    /// `IBV_RX_HASH_DST_PORT_TCP`.
    pub const DST_PORT_TCP: u64 = 1 << 5;
    /// `IBV_RX_HASH_SRC_PORT_UDP`.
    pub const SRC_PORT_UDP: u64 = 1 << 6;
    /// `IBV_RX_HASH_DST_PORT_UDP`.
    pub const DST_PORT_UDP: u64 = 1 << 7;
    /// All fields.
    pub const ALL: u64 = (1 << 8) - 1;
}

/// The RSS configuration of a queue pair: distributes packets over work queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssConfig {
    /// Hashed fields: bits of [`hash_field`].
    pub hashed_fields: u64,
    /// Toeplitz key.
    pub toeplitz_key: [u8; TOEPLITZ_KEY_BYTES],
    /// Indirection table: indices of the queue pairs that represent the work queues; its length is a power of two.
    pub indirection_table: Vec<usize>,
}

impl RssConfig {
    /// Returns the index of the queue pair that represents the packet's work queue.
    #[must_use]
    pub fn select_qp_index(&self, headers: &FrameHeaders) -> Option<usize> {
        let hash = toeplitz(&self.toeplitz_key, &self.hash_input(headers));
        self.indirection_table
            .get(hash as usize & self.indirection_table.len().wrapping_sub(1))
            .copied()
    }

    /// Returns the bytes to hash: addresses, then ports, source first.
    fn hash_input(&self, headers: &FrameHeaders) -> Vec<u8> {
        let parts = [
            (hash_field::SRC_IPV4, layer::IPV4, field::SRC_IP, 4),
            (hash_field::SRC_IPV6, layer::IPV6, field::SRC_IP, 16),
            (hash_field::DST_IPV4, layer::IPV4, field::DST_IP, 4),
            (hash_field::DST_IPV6, layer::IPV6, field::DST_IP, 16),
            (hash_field::SRC_PORT_TCP, layer::TCP, field::SRC_PORT, 2),
            (hash_field::SRC_PORT_UDP, layer::UDP, field::SRC_PORT, 2),
            (hash_field::DST_PORT_TCP, layer::TCP, field::DST_PORT, 2),
            (hash_field::DST_PORT_UDP, layer::UDP, field::DST_PORT, 2),
        ];
        let mut bytes = Vec::new();
        for (wanted, layer, at, len) in parts {
            if self.hashed_fields & wanted != 0 && headers.has_any_layer_of(layer) {
                bytes.extend_from_slice(&headers.field(at)[..len]);
            }
        }
        bytes
    }
}

/// Computes the Toeplitz hash: for each set bit of the input, XORs the 32 bits of the key that begin at its position.
fn toeplitz(key: &[u8; TOEPLITZ_KEY_BYTES], input: &[u8]) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Key of "Verifying the RSS Hash Calculation" (Windows drivers' documentation), whose results the test checks.
    const KEY: [u8; TOEPLITZ_KEY_BYTES] = [
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
