//! A client of `libibumad.so.3` under `verbatim run`.

use crate::common;
use crate::program::Program;

/// The kernel sends a copy of a datagram, in which it replaces the upper half of the transaction identifier
/// (`ib_umad_write` in `linux:drivers/infiniband/core/user_mad.c`). ibacm looks for its request by the identifier that
/// it has set.
#[test]
fn the_functions_of_libibumad_do_what_its_clients_expect() {
    let program = Program::of_the_tests("umad");
    let start = common::verbatim(&["run", "--link-layer", "ib"]);
    let ran = program.finish(start, &[], &[]);
    ran.printed(&[
        "pairs: 1, softnic0 0, softnic0 0",
        "no room: 0, softnic0 0, softnic0 0",
        "the first: 0, softnic0 1, softnic0 1",
        "port 1: 0, softnic0 1, softnic0 1",
        // ENODEV.
        "port 2: -19",
        "no device: -19",
        "no name: -19",
        // EINVAL.
        "opened 1, no device -22",
        // ENOENT, ENODEV and EIO.
        "NULL: guids 2, without room 0, CA 0, ports 0 0 0 -5",
        ": guids -1, without room -1, CA -2, ports -5 -19 -5 -5",
        "softnic0: guids 2, without room 0, CA 0, ports -5 0 0 -5",
        "to the subnet administration: sent 0, datagram unchanged, agent the sender, status 0, low half unchanged, \
         upper half changed",
        // ETIMEDOUT; the datagram returns as it was sent.
        "to nobody: sent 0, datagram unchanged, agent the sender, status 110, low half unchanged, upper half unchanged",
        "Subn, SubnAdm, DevAdm, CongestionManagment",
        "GetTable, <unknown>, Get",
        "ConnectRequest, ServiceRecord, VLArbitrationTable, <unknown>",
        "Method/Attribute combo not supported, No Records",
    ]);
    assert_eq!(ran.code, Some(0));
}

/// As libibumad of rdma-core 56 in the same view.
#[test]
fn the_functions_of_libibumad_find_ethernet_ports_by_their_names() {
    let program = Program::of_the_tests("umad");
    let ran = program.finish(common::verbatim(&["run"]), &[], &[]);
    ran.printed(&[
        "pairs: 1, softnic0 0, softnic0 0",
        "no room: 0, softnic0 0, softnic0 0",
        "the first: 0, softnic0 1, softnic0 1",
        "port 1: 0, softnic0 1, softnic0 1",
        "port 2: -19",
        "no device: -19",
        "no name: -19",
        // There is no subnet.
        "opened 0, no device -22",
        "NULL: guids 2, without room 0, CA 0, ports 0 0 -5 -5",
        ": guids -1, without room -1, CA -2, ports -5 -19 -5 -5",
        "softnic0: guids 2, without room 0, CA 0, ports -5 0 0 -5",
        "no InfiniBand port: -19",
    ]);
    assert_eq!(ran.code, Some(0));
}
