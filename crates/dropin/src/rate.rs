//! Static rates: codes of IBTA vol. 1, 9.11 (`IPD`) and the units that programs use.

use std::ffi::c_int;

/// Codes of static rates, as in `ibv_rate_to_mult(3)` and `ibv_rate_to_mbps(3)`. Each row has the
/// code, the rate in multiples of 2.5 Gbit/s (0 if no multiple is exact), and the rate in Mbit/s.
const STATIC_RATE_TABLE: [(u32, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// `IBV_RATE_MAX`: the code of every rate that has no code of its own.
const IBV_RATE_MAX_CODE: u32 = 0;

fn find_static_rate(is: impl Fn(&(u32, c_int, c_int)) -> bool) -> Option<(u32, c_int, c_int)> {
    STATIC_RATE_TABLE.into_iter().find(is)
}

/// Returns the rate of a code in multiples of 2.5 Gbit/s; -1 if the code has no multiple.
pub(crate) extern "C" fn ibv_rate_to_mult(rate: u32) -> c_int {
    find_static_rate(|r| r.0 == rate && r.1 != 0).map_or(-1, |r| r.1)
}

/// Returns the code of a rate in multiples of 2.5 Gbit/s; `IBV_RATE_MAX` if the rate has no code.
pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> u32 {
    find_static_rate(|r| r.1 == mult && mult != 0).map_or(IBV_RATE_MAX_CODE, |r| r.0)
}

/// Returns the rate of a code in Mbit/s; -1 if the code is unknown.
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: u32) -> c_int {
    find_static_rate(|r| r.0 == rate).map_or(-1, |r| r.2)
}

/// Returns the code of a rate in Mbit/s; `IBV_RATE_MAX` if the rate has no code.
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> u32 {
    find_static_rate(|r| r.2 == mbps).map_or(IBV_RATE_MAX_CODE, |r| r.0)
}
