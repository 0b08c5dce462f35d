//! Names of management classes, methods, attributes and statuses, word for word as libibumad of rdma-core 44 prints
//! them. Only for unknown methods, libibumad's text lacks the bracket at its end.

use std::ffi::CStr;

/// The text for an unknown code.
const UNKNOWN: &CStr = c"<unknown>";

/// Returns the name of a management class.
pub(crate) fn class_name(class: u8) -> &'static CStr {
    match class {
        0x01 | 0x81 => c"Subn",
        0x03 => c"SubnAdm",
        0x04 => c"Perf",
        0x05 => c"BM",
        0x06 => c"DevMgt",
        0x07 => c"ComMgt",
        0x08 => c"SNMP",
        0x10 => c"DevAdm",
        0x11 => c"BootMgt",
        0x12 => c"BIS",
        // As libibumad spells it.
        0x21 => c"CongestionManagment",
        0x09..=0x0f | 0x30..=0x4f => c"Vendor",
        0x13..=0x2f => c"Application",
        _ => UNKNOWN,
    }
}

/// Returns the name of a method of a class.
pub(crate) fn method_name(class: u8, method: u8) -> &'static CStr {
    match (class, method) {
        (_, 0x01) => c"Get",
        (_, 0x02) => c"Set",
        (_, 0x03) => c"Send",
        (_, 0x05) => c"Trap",
        (_, 0x06) => c"Report",
        (_, 0x07) => c"TrapRepress",
        (_, 0x81) => c"GetResp",
        (_, 0x86) => c"ReportResp",
        (0x03, 0x12) => c"GetTable",
        (0x03, 0x13) => c"GetTraceTable",
        (0x03, 0x14) => c"GetMulti",
        (0x03, 0x15) => c"Delete",
        (0x03, 0x92) => c"GetTableResp",
        (0x03, 0x94) => c"GetMultiResp",
        (0x03, 0x95) => c"DeleteResp",
        _ => UNKNOWN,
    }
}

/// Returns the name of an attribute of a class.
pub(crate) fn attribute_name(class: u8, attribute: u16) -> &'static CStr {
    match (class, attribute) {
        (_, 0x01) => c"Class Port Info",
        (_, 0x02) => c"Notice",
        (_, 0x03) => c"Inform Info",
        (0x01 | 0x81, _) => subnet_management_attribute_name(attribute),
        (0x03, _) => subnet_administration_attribute_name(attribute),
        (0x07, _) => communication_management_attribute_name(attribute),
        _ => UNKNOWN,
    }
}

fn subnet_management_attribute_name(attribute: u16) -> &'static CStr {
    match attribute {
        0x10 => c"NodeDescription",
        0x11 => c"NodeInfo",
        0x12 => c"SwitchInfo",
        0x14 => c"GUIDInfo",
        0x15 => c"PortInfo",
        0x16 => c"P_KeyTable",
        0x17 => c"SLtoVLMappingTable",
        0x18 => c"VLArbitrationTable",
        0x19 => c"LinearForwardingTable",
        0x1a => c"RandomForwardingTable",
        0x1b => c"MulticastForwardingTable",
        0x1c => c"LinkSpeedWidthPairsTable",
        0x1d => c"VendorSpecificMadsTable",
        0x1e => c"HierarchyInfo",
        0x20 => c"SMInfo",
        0x30 => c"VendorDiag",
        0x31 => c"LedInfo",
        0x32 => c"CableInfo",
        0x33 => c"PortInfoExtended",
        _ => UNKNOWN,
    }
}

fn subnet_administration_attribute_name(attribute: u16) -> &'static CStr {
    match attribute {
        0x11 => c"NodeRecord",
        0x12 => c"PortInfoRecord",
        0x13 => c"SLtoVLMappingTableRecord",
        0x14 => c"SwitchInfoRecord",
        0x15 => c"LinearForwardingTableRecord",
        0x16 => c"RandomForwardingTableRecord",
        0x17 => c"MulticastForwardingTableRecord",
        0x18 => c"SMInfoRecord",
        0x19 => c"LinkSpeedWidthPairsTableRecord",
        0x20 => c"LinkRecord",
        0x30 => c"GuidInfoRecord",
        0x31 => c"ServiceRecord",
        0x33 => c"P_KeyTableRecord",
        0x35 => c"PathRecord",
        0x36 => c"VLArbitrationTableRecord",
        0x38 => c"MCMemberRecord",
        0x39 => c"TraceRecord",
        0x3a => c"MultiPathRecord",
        0x3b => c"ServiceAssociationRecord",
        0x3c => c"HierarchyInfoRecord",
        0x3d => c"CableInfoRecord",
        0x3e => c"PortInfoExtendedRecord",
        0xf3 => c"InformInfoRecord",
        _ => UNKNOWN,
    }
}

fn communication_management_attribute_name(attribute: u16) -> &'static CStr {
    match attribute {
        0x10 => c"ConnectRequest",
        0x11 => c"MsgRcptAck",
        0x12 => c"ConnectReject",
        0x13 => c"ConnectReply",
        0x14 => c"ReadyToUse",
        0x15 => c"DisconnectRequest",
        0x16 => c"DisconnectReply",
        0x17 => c"ServiceIDResReq",
        0x18 => c"ServiceIDResReqResp",
        0x19 => c"LoadAlternatePath",
        0x1a => c"AlternatePathResponse",
        0x1b => c"SuggestAlternatePath",
        0x1c => c"SuggestPathResponse",
        _ => UNKNOWN,
    }
}

/// Returns the meaning of the status that all classes have in common (IBTA 13.4.7).
pub(crate) fn status_text(status: u16) -> &'static CStr {
    match status & 0x1c {
        _ if status & 1 != 0 => c"Busy",
        _ if status & 2 != 0 => c"Redirection required",
        0x04 => c"Bad Version",
        0x08 => c"Method not supported",
        0x0c => c"Method/Attribute combo not supported",
        0x1c => c"Invalid attribute/modifier field",
        _ => c"Success",
    }
}

/// Returns the meaning of a status of the subnet administration (IBTA 15.2.1).
pub(crate) fn sa_status_text(status: u16) -> &'static CStr {
    match status >> 8 {
        0 => c"Success",
        1 => c"No Resources",
        2 => c"Request Invalid",
        3 => c"No Records",
        4 => c"Too Many Records",
        5 => c"Invalid GID",
        6 => c"Insufficient Components",
        7 => c"Request Denied",
        8 => c"Priority Suggested",
        _ => c"Undefined Error",
    }
}
