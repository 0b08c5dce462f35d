//! Records of paths (IBTA 15.2.5.16).

use crate::mad::{SA_DATA_OFFSET, read_number, store_low_bytes};
use crate::record_table::{RecordField, RecordTable};
use crate::topology::Subnet;

/// Selector "exactly" of an MTU, rate or lifetime, with MTU 4096.
pub(crate) const EXACTLY_MTU_4096: u8 = 2 << 6 | 5;
/// As above, for a rate of 100 Gbit/s (`rdma-core:libibverbs/verbs.h`).
pub(crate) const EXACTLY_RATE_100_GBIT_S: u8 = 2 << 6 | 16;
/// As above, for a packet lifetime of 4.096 µs · 2^14, which is common.
pub(crate) const EXACTLY_PACKET_LIFETIME: u8 = 2 << 6 | 14;
/// The default partition, full membership.
pub(crate) const DEFAULT_PKEY: u64 = 0xffff;

/// The fields of a path that a request can name. Flow label, hop limit, traffic class and QoS class select no path.
const PATH_RECORD_FIELDS: &[RecordField] = &[
    // Destination and source: GID, LID.
    RecordField::of_bytes(2, 8, 16),
    RecordField::of_bytes(3, 24, 16),
    RecordField::of_bytes(4, 40, 2),
    RecordField::of_bytes(5, 42, 2),
    // Partition, without the bit of the membership; service level.
    RecordField::of_bits(13, 50 * 8 + 1, 15),
    RecordField::of_bits(15, 52 * 8 + 12, 4),
    // MTU, rate, packet lifetime.
    RecordField::of_selector(17, 54, code_as_order),
    RecordField::of_selector(19, 55, rate_mbit_s),
    RecordField::of_selector(21, 56, code_as_order),
];

/// Codes of MTUs and lifetimes grow with them.
fn code_as_order(code: u8) -> u32 {
    code.into()
}

/// The rate of a code in Mbit/s, rounded, as `ibv_rate_to_mbps(3)`; 0 for an unknown code.
fn rate_mbit_s(code: u8) -> u32 {
    const RATES: [u32; 23] = [
        2_500, 10_000, 30_000, 5_000, 20_000, 40_000, 60_000, 80_000, 120_000, 14_062, 56_250,
        112_500, 168_750, 25_781, 103_125, 206_250, 309_375, 28_125, 53_125, 425_000, 637_500,
        850_000, 1_275_000,
    ];
    let at = usize::from(code).checked_sub(2);
    at.and_then(|at| RATES.get(at)).copied().unwrap_or(0)
}

/// Paths between all pairs of ports, also the management port of the switch. A port has a path to itself.
pub(crate) fn path_records(subnet: &Subnet, request: &[u8]) -> RecordTable {
    let ends = subnet.path_ends();
    let mut records = Vec::new();
    for from in &ends {
        for to in &ends {
            let mut record = vec![0; 64];
            // A service ID that the request names applies to all paths.
            store_low_bytes(&mut record, 0, 8, read_number(request, SA_DATA_OFFSET, 8));
            store_low_bytes(&mut record, 8, 8, to.gid_prefix);
            store_low_bytes(&mut record, 16, 8, to.guid);
            store_low_bytes(&mut record, 24, 8, from.gid_prefix);
            store_low_bytes(&mut record, 32, 8, from.guid);
            store_low_bytes(&mut record, 40, 2, to.lid.into());
            store_low_bytes(&mut record, 42, 2, from.lid.into());
            // Reversible.
            record[49] = 0x80;
            store_low_bytes(&mut record, 50, 2, DEFAULT_PKEY);
            record[54] = EXACTLY_MTU_4096;
            record[55] = EXACTLY_RATE_100_GBIT_S;
            record[56] = EXACTLY_PACKET_LIFETIME;
            records.push(record);
        }
    }
    RecordTable {
        record_bytes: 64,
        fields: PATH_RECORD_FIELDS,
        records,
    }
}
