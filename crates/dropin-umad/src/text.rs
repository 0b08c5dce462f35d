//! Names of management classes, methods, attributes and statuses.

use std::ffi::CStr;

/// Returns the name of a management class.
pub(crate) fn class(class: u8) -> &'static CStr {
    match class {
        0x01 => c"SMP LID",
        0x81 => c"SMP DR",
        0x03 => c"SA",
        0x04 => c"Perf",
        0x05 => c"BM",
        0x06 => c"DevMgt",
        0x07 => c"ComMgt",
        0x08 => c"SNMP",
        0x10 => c"DevAdm",
        0x11 => c"BootMgt",
        0x12 => c"BIS",
        0x21 => c"CongestionMgt",
        0x09..=0x0f | 0x30..=0x4f => c"Vendor",
        _ => c"<unknown>",
    }
}

/// Returns the name of a method.
pub(crate) fn method(method: u8) -> &'static CStr {
    match method {
        0x01 => c"Get",
        0x02 => c"Set",
        0x03 => c"Send",
        0x05 => c"Trap",
        0x06 => c"Report",
        0x07 => c"TrapRepress",
        0x12 => c"GetTable",
        0x13 => c"GetTraceTable",
        0x14 => c"GetMulti",
        0x15 => c"Delete",
        0x81 => c"GetResp",
        0x86 => c"ReportResp",
        0x92 => c"GetTableResp",
        0x94 => c"GetMultiResp",
        0x95 => c"DeleteResp",
        _ => c"<unknown>",
    }
}

/// Returns the name of an attribute of a class.
pub(crate) fn attribute(class: u8, attribute: u16) -> &'static CStr {
    match (class, attribute) {
        (_, 0x01) => c"ClassPortInfo",
        (_, 0x02) => c"Notice",
        (0x01 | 0x81, 0x10) => c"NodeDescription",
        (0x01 | 0x81, 0x11) => c"NodeInfo",
        (0x01 | 0x81, 0x12) => c"SwitchInfo",
        (0x01 | 0x81, 0x14) => c"GUIDInfo",
        (0x01 | 0x81, 0x15) => c"PortInfo",
        (0x01 | 0x81, 0x16) => c"P_KeyTable",
        (0x01 | 0x81, 0x19) => c"LinearForwardingTable",
        (0x01 | 0x81, 0x20) => c"SMInfo",
        (0x03, 0x11) => c"NodeRecord",
        (0x03, 0x12) => c"PortInfoRecord",
        (0x03, 0x18) => c"SMInfoRecord",
        (0x03, 0x20) => c"LinkRecord",
        (0x03, 0x35) => c"PathRecord",
        (0x03, 0x38) => c"MCMemberRecord",
        (0x04, 0x12) => c"PortCounters",
        (0x04, 0x1d) => c"PortCountersExtended",
        _ => c"<unknown>",
    }
}

/// Returns the meaning of the status that all classes have in common (IBTA 13.4.7).
pub(crate) fn status(status: u16) -> &'static CStr {
    match status & 0x1c {
        _ if status & 1 != 0 => c"Busy",
        _ if status & 2 != 0 => c"Redirection required",
        0x04 => c"Bad version",
        0x08 => c"Method not supported",
        0x0c => c"Method/attribute combination not supported",
        0x1c => c"Invalid attribute/modifier value",
        _ => c"Success",
    }
}

/// Returns the meaning of a status of the subnet administration (IBTA 15.2.1).
pub(crate) fn sa_status(status: u16) -> &'static CStr {
    match status >> 8 {
        0 => c"Success",
        1 => c"No resources",
        2 => c"Request invalid",
        3 => c"No records",
        4 => c"Too many records",
        5 => c"Request invalid GID",
        6 => c"Request insufficient components",
        7 => c"Request denied",
        _ => c"<unknown>",
    }
}
