//! Performance management: the counters of a port (IBTA 16.1.3).

use crate::mad::{DATA_OFFSET, MadFields, method, put, request_copy_as_response, status};
use crate::topology::Port;

const CLASS_PORT_INFO: u16 = 0x01;
const PORT_COUNTERS: u16 = 0x12;
const PORT_COUNTERS_EXTENDED: u16 = 0x1d;

/// Bits of `CapabilityMask` in `ClassPortInfo`: extended counters, also those of unicast and multicast packets.
const EXTENDED_COUNTERS_CAPABILITY_BIT: u64 = 1 << 9;

/// Answers a request for the counters of `port`.
pub(crate) fn answer(request: &[u8], port: &Port) -> Vec<u8> {
    let mad = MadFields(request);
    if mad.method() != method::GET {
        return request_copy_as_response(request, status::UNSUPPORTED_METHOD);
    }
    let mut answer = request_copy_as_response(request, 0);
    let data = answer.get_mut(DATA_OFFSET..).unwrap_or_default();
    data.fill(0);
    let asked = request.get(DATA_OFFSET + 1).copied().unwrap_or(0);
    let traffic = &port.traffic;
    match mad.attribute() {
        CLASS_PORT_INFO => {
            data[0] = 1;
            data[1] = 1;
            put(data, 2, 2, EXTENDED_COUNTERS_CAPABILITY_BIT);
        }
        // The port in the request is this one, or 255 for all.
        _ if asked != port.number && asked != u8::MAX => {
            return request_copy_as_response(request, status::INVALID_FIELD);
        }
        PORT_COUNTERS => {
            data[1] = asked;
            for (at, value) in [
                (24, traffic.xmit_words_of_4_octets),
                (28, traffic.rcv_words_of_4_octets),
                (32, traffic.xmit_packets),
                (36, traffic.rcv_packets),
            ] {
                // These counters stop at their largest value.
                put(data, at, 4, value.min(u32::MAX.into()));
            }
        }
        PORT_COUNTERS_EXTENDED => {
            data[1] = asked;
            for (at, value) in [
                (8, traffic.xmit_words_of_4_octets),
                (16, traffic.rcv_words_of_4_octets),
                (24, traffic.xmit_packets),
                (32, traffic.rcv_packets),
                // Unicast packets; multicast packets are not counted apart.
                (40, traffic.xmit_packets),
                (48, traffic.rcv_packets),
            ] {
                put(data, at, 8, value);
            }
        }
        _ => return request_copy_as_response(request, status::UNSUPPORTED_ATTRIBUTE),
    }
    answer
}
