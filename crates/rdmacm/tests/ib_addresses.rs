//! Tests of `AF_IB` addresses: connections and look-ups by GID between two processes, and refused calls.

#![allow(
    clippy::macro_metavars_in_unsafe,
    reason = "calls of C functions are what the macros are for"
)]

#[macro_use]
mod common;

use std::ffi::CString;
use std::net::Ipv6Addr;
use std::ptr;

use common::*;
use rdmacm::abi::*;
use verbs_abi::*;

const PARTS: &Parts = &[
    ("talk/server", talk_server),
    ("talk/client", talk_client),
    ("lookup/server", lookup_server),
    ("lookup/client", lookup_client),
    ("endpoint/server", endpoint_server),
    ("endpoint/client", endpoint_client),
    ("refused", refused),
    ("roce", roce),
    ("texts", texts),
];

#[test]
fn child_main() {
    common::child_main(PARTS);
}

/// Returns the GID of the port.
fn own_gid() -> [u8; 16] {
    // SAFETY: libibverbs' functions, called as their man pages require.
    unsafe {
        let mut count = 0;
        let list = rdma_get_devices(&raw mut count);
        assert_eq!(count, 1);
        let mut gid = ibv_gid::zeroed();
        ok!((softnic::symbols().ibv_query_gid)(
            *list,
            1,
            0,
            &raw mut gid
        ));
        rdma_free_devices(list);
        gid.raw
    }
}

fn gid(text: &str) -> [u8; 16] {
    text.parse::<Ipv6Addr>().expect("a GID").octets()
}

/// Makes an address with the service id of one port.
fn at(gid: [u8; 16], port_space: u32, port: u16) -> sockaddr_ib {
    let mut addr = sockaddr_ib::zeroed();
    addr.sib_family = IB;
    addr.sib_pkey = 0xffff;
    addr.sib_addr.ib_u = gid;
    addr.sib_sid = ((u64::from(port_space) << 16) | u64::from(port)).to_be();
    addr.sib_sid_mask = u64::MAX.to_be();
    addr
}

/// Makes an address whose port is a wildcard.
fn any_port(gid: [u8; 16], port_space: u32) -> sockaddr_ib {
    sockaddr_ib {
        sib_sid_mask: (!0xffff_u64).to_be(),
        ..at(gid, port_space, 0)
    }
}

fn c(addr: &mut sockaddr_ib) -> *mut libc::sockaddr {
    ptr::from_mut(addr).cast()
}

/// Returns the local and the peer's address of an id.
fn names(id: *mut rdma_cm_id) -> [sockaddr_ib; 2] {
    // SAFETY: a live id, whose fields have room for an address of any family.
    unsafe {
        let addr = &raw const (*id).route.addr;
        let read = |at: *const sockaddr_ib| at.read_unaligned();
        [
            read((&raw const (*addr).src).cast()),
            read((&raw const (*addr).dst).cast()),
        ]
    }
}

/// Returns family, GID, P_Key, service id and mask of an address, in host byte order.
fn told(addr: &sockaddr_ib) -> (u16, [u8; 16], u16, u64, u64) {
    (
        addr.sib_family,
        addr.sib_addr.ib_u,
        u16::from_be(addr.sib_pkey),
        u64::from_be(addr.sib_sid),
        u64::from_be(addr.sib_sid_mask),
    )
}

/// Returns the results of `rdma_get_src_port` and `rdma_get_dst_port`, in host byte order.
fn ports(id: *mut rdma_cm_id) -> [u16; 2] {
    // SAFETY: a live id.
    unsafe { [rdma_get_src_port(id), rdma_get_dst_port(id)].map(u16::from_be) }
}

fn sgid_and_pkey(id: *mut rdma_cm_id) -> ([u8; 16], u16) {
    // SAFETY: a live id; all bytes of the union are initialized.
    unsafe {
        let ib = (*id).route.addr.addr.ibaddr;
        (ib.sgid.raw, u16::from_be(ib.pkey))
    }
}

const IB: u16 = 27;

/// Runs a scene on an InfiniBand port: in each round, the port that the server reports is passed to the client.
fn play(server: &str, client: &str, rounds: usize) {
    let scene = Scene::new("ib");
    let mut server = scene.start(server);
    let mut client = scene.start(client);
    for _ in 0..rounds {
        client.say(&server.hear());
    }
    client.done();
    server.done();
    assert_eq!(scene.ports(), [""; 0], "ports are left behind");
}

fn port() -> u16 {
    Stage.hear().parse().expect("a port")
}

#[test]
fn two_processes_connect_by_gid() {
    play("talk/server", "talk/client", MEETINGS);
}

const MEETINGS: usize = 5;

/// Returns port spaces, each with the address that the server binds and the one to which the client connects.
fn meetings(gid: [u8; 16]) -> [(u32, [u8; 16], [u8; 16]); MEETINGS] {
    let any = [0; 16];
    [
        (RDMA_PS_TCP, any, gid),
        (RDMA_PS_TCP, gid, gid),
        (RDMA_PS_IB, gid, gid),
        // The loopback address and the unspecified one both mean the port's own address.
        (RDMA_PS_TCP, any, self::gid("::1")),
        (RDMA_PS_TCP, gid, any),
    ]
}

fn talk_server(stage: &mut Stage) {
    let own = own_gid();
    for (ps, bound, _) in meetings(own) {
        let channel = Channel::new();
        let listener = channel.id(ps);
        ok!(rdma_bind_addr(listener, c(&mut any_port(bound, ps))));
        let [port, _] = ports(listener);
        let service = (u64::from(ps) << 16) | u64::from(port);
        assert_ne!(port, 0);
        assert_eq!(
            told(&names(listener)[0]),
            (IB, bound, 0xffff, service, u64::MAX)
        );
        // SAFETY: a live id.
        assert_eq!(unsafe { (*listener).verbs.is_null() }, bound == [0; 16]);
        ok!(rdma_listen(listener, 0));
        stage.say(&port.to_string());

        let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        // Without IP addresses, the whole capacity is available.
        begins_with(&request.private_data, 92, &[7; 92]);
        let id = request.id;
        let [src, dst] = names(id);
        assert_eq!(told(&src), (IB, own, 0xffff, service, u64::MAX));
        assert_eq!(
            told(&dst),
            (IB, own, 0xffff, 0, 0),
            "a requester has no service"
        );
        assert_eq!(ports(id), [port, 0]);
        assert_eq!(sgid_and_pkey(id), (own, 0xffff));
        // SAFETY: a live id.
        assert_eq!(unsafe { (*id).ps }, ps);
        create_qp(id);
        let mut answer = param(b"");
        ok!(rdma_accept(id, &raw mut answer));
        channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        // SAFETY: a live id with a queue pair.
        unsafe {
            let buffer = Buffer::new((*id).pd);
            buffer.post_send((*id).qp, 5, None);
            assert_eq!(completion((*id).send_cq).status, IBV_WC_SUCCESS);
            buffer.free();
        }
        channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        destroy(id);
        ok!(rdma_destroy_id(listener));
        channel.destroy();
    }
}

fn talk_client(_: &mut Stage) {
    let own = own_gid();
    for (ps, _, to) in meetings(own) {
        let port = port();
        let channel = Channel::new();
        let id = channel.id(ps);
        let mut dst = at(to, ps, port);
        ok!(rdma_resolve_addr(id, ptr::null_mut(), c(&mut dst), 2000));
        channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        let [src, dst] = names(id);
        let service = |port| (u64::from(ps) << 16) | u64::from(port);
        let [own_port, dst_port] = ports(id);
        let from = if to == own { own } else { gid("::1") };
        assert_eq!(told(&src), (IB, from, 0xffff, service(own_port), u64::MAX));
        assert_eq!(told(&dst), (IB, to, 0xffff, service(port), u64::MAX));
        assert_eq!(dst_port, port);
        assert_eq!(sgid_and_pkey(id), (own, 0xffff));
        ok!(rdma_resolve_route(id, 2000));
        channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
        // SAFETY: a live id with a path; all bytes of the unions are initialized.
        unsafe {
            let path = *(*id).route.path_rec;
            assert_eq!(
                (path.sgid.raw, path.dgid.raw, path.pkey),
                (own, own, 0xffff)
            );
        }
        create_qp(id);
        // SAFETY: a live id with a queue pair.
        let buffer = unsafe { Buffer::new((*id).pd) };
        // SAFETY: as above.
        buffer.post_recv(unsafe { (*id).qp });
        fails!(libc::EINVAL, rdma_connect(id, &mut param(&[7; 93])));
        ok!(rdma_connect(id, &mut param(&[7; 92])));
        channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        // SAFETY: as above.
        assert_eq!(completion(unsafe { (*id).recv_cq }).status, IBV_WC_SUCCESS);
        ok!(rdma_disconnect(id));
        channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        buffer.free();
        destroy(id);
        channel.destroy();
    }
}

/// Makes an id and resolves address and route of a service at `to`.
fn resolved_to(channel: &Channel, ps: u32, to: &mut sockaddr_ib) -> *mut rdma_cm_id {
    let id = channel.id(ps);
    ok!(rdma_resolve_addr(id, ptr::null_mut(), c(to), 2000));
    channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    ok!(rdma_resolve_route(id, 2000));
    channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    id
}

#[test]
fn a_datagram_service_is_looked_up_by_gid() {
    play("lookup/server", "lookup/client", 2);
}

fn lookup_server(stage: &mut Stage) {
    let own = own_gid();
    for bound in [[0; 16], own] {
        let channel = Channel::new();
        let listener = channel.id(RDMA_PS_UDP);
        ok!(rdma_bind_addr(
            listener,
            c(&mut any_port(bound, RDMA_PS_UDP))
        ));
        ok!(rdma_listen(listener, 0));
        stage.say(&ports(listener)[0].to_string());
        let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        begins_with(&request.private_data, 216, &[7; 216]);
        assert_eq!(sgid_and_pkey(request.id), (own, 0xffff));
        create_qp(request.id);
        // SAFETY: a live id with a queue pair.
        unsafe {
            let id = &*request.id;
            let buffer = Buffer::new(id.pd);
            buffer.post_recv(id.qp);
            ok!(rdma_accept(request.id, &mut param(b"")));
            assert_eq!(completion(id.recv_cq).byte_len, 45);
            buffer.free();
        }
        destroy(request.id);
        // A request for a connection is rejected.
        let client = Channel::new();
        let mut to = at(own, RDMA_PS_UDP, ports(listener)[0]);
        let id = resolved_to(&client, RDMA_PS_IB, &mut to);
        create_qp(id);
        ok!(rdma_connect(id, &mut param(b"")));
        assert_eq!(client.expect(RDMA_CM_EVENT_REJECTED).status, 28);
        destroy(id);
        client.destroy();
        ok!(rdma_destroy_id(listener));
        channel.destroy();
    }
}

fn lookup_client(_: &mut Stage) {
    let own = own_gid();
    for _ in 0..2 {
        let channel = Channel::new();
        let id = resolved_to(&channel, RDMA_PS_UDP, &mut at(own, RDMA_PS_UDP, port()));
        create_qp(id);
        ok!(rdma_connect(id, &mut param(&[7; 216])));
        let mut found = channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        // SAFETY: a live id with a queue pair.
        unsafe {
            let buffer = Buffer::new((*id).pd);
            send_datagram(id, &mut found, &buffer);
            buffer.free();
        }
        destroy(id);
        channel.destroy();
    }
}

/// Calls `rdma_getaddrinfo` for a text, with the hints of rdma-core's programs for `-f gid`.
fn addrinfo(node: Option<&str>, service: &str, ps: u32, flags: i32) -> *mut rdma_addrinfo {
    let mut hints = rdma_addrinfo::zeroed();
    hints.ai_flags = RAI_NUMERICHOST | RAI_FAMILY | flags;
    hints.ai_family = AF_IB;
    hints.ai_port_space = ps.cast_signed();
    let node = node.map(|node| CString::new(node).expect("no zero in it"));
    let service = CString::new(service).expect("no zero in it");
    let mut res = ptr::null_mut();
    ok!(rdma_getaddrinfo(
        node.as_ref().map_or(ptr::null(), |n| n.as_ptr()),
        service.as_ptr(),
        &raw const hints,
        &raw mut res
    ));
    res
}

fn text_of(gid: [u8; 16]) -> String {
    Ipv6Addr::from(gid).to_string()
}

#[test]
fn endpoints_are_made_from_texts_of_gids() {
    play("endpoint/server", "endpoint/client", 1);
}

fn endpoint_server(stage: &mut Stage) {
    let own = text_of(own_gid());
    let res = addrinfo(Some(&own), "0", RDMA_PS_IB, RAI_PASSIVE);
    let mut attr = qp_init_attr(IBV_QPT_RC);
    let mut listener = ptr::null_mut();
    ok!(rdma_create_ep(
        &raw mut listener,
        res,
        ptr::null_mut(),
        &raw mut attr
    ));
    // SAFETY: the result came from `rdma_getaddrinfo` above.
    unsafe { rdma_freeaddrinfo(res) };
    ok!(rdma_listen(listener, 0));
    stage.say(&ports(listener)[0].to_string());
    let mut id = ptr::null_mut();
    ok!(rdma_get_request(listener, &raw mut id));
    ok!(rdma_accept(id, ptr::null_mut()));
    ok!(rdma_disconnect(id));
    // SAFETY: live ids, destroyed once.
    unsafe {
        rdma_destroy_ep(id);
        rdma_destroy_ep(listener);
    }
}

fn endpoint_client(_: &mut Stage) {
    let own = text_of(own_gid());
    let res = addrinfo(Some(&own), &port().to_string(), RDMA_PS_IB, 0);
    let mut attr = qp_init_attr(IBV_QPT_RC);
    let mut id = ptr::null_mut();
    ok!(rdma_create_ep(
        &raw mut id,
        res,
        ptr::null_mut(),
        &raw mut attr
    ));
    ok!(rdma_connect(id, ptr::null_mut()));
    ok!(rdma_disconnect(id));
    // SAFETY: the objects were made above and are destroyed once.
    unsafe {
        rdma_freeaddrinfo(res);
        rdma_destroy_ep(id);
    }
}

/// Runs a scene of one process.
fn alone(link_layer: &str, part: &str) {
    let scene = Scene::new(link_layer);
    scene.start(part).done();
    assert_eq!(scene.ports(), [""; 0], "ports are left behind");
}

#[test]
fn texts_of_gids_are_resolved_and_others_are_not() {
    alone("ib", "texts");
}

fn texts(_: &mut Stage) {
    let read = |res: *mut rdma_addrinfo| {
        // SAFETY: the result came from `addrinfo` and contains an address of `AF_IB`.
        unsafe {
            let rai = &*res;
            let passive = rai.ai_flags & RAI_PASSIVE != 0;
            let (addr, len, other) = if passive {
                (rai.ai_src_addr, rai.ai_src_len, rai.ai_dst_len)
            } else {
                (rai.ai_dst_addr, rai.ai_dst_len, rai.ai_src_len)
            };
            assert_eq!((rai.ai_family, len, other), (AF_IB, 48, 0));
            assert_eq!(rai.ai_qp_type.cast_unsigned(), IBV_QPT_RC);
            let told = told(&addr.cast::<sockaddr_ib>().read_unaligned());
            rdma_freeaddrinfo(res);
            told
        }
    };
    let tcp = u64::from(RDMA_PS_TCP) << 16;
    let all = u64::MAX;
    assert_eq!(
        read(addrinfo(Some("fe80::1:2"), "7471", RDMA_PS_TCP, 0)),
        (IB, gid("fe80::1:2"), 0xffff, tcp | 7471, all)
    );
    assert_eq!(
        read(addrinfo(Some("fe80::1:2"), "0", RDMA_PS_IB, RAI_PASSIVE)),
        (
            IB,
            gid("fe80::1:2"),
            0xffff,
            u64::from(RDMA_PS_IB) << 16,
            !0xffff
        )
    );
    assert_eq!(
        read(addrinfo(None, "7471", RDMA_PS_TCP, RAI_PASSIVE)),
        (IB, [0; 16], 0xffff, tcp | 7471, all),
        "any"
    );
    // These texts are not GIDs.
    let mut hints = rdma_addrinfo::zeroed();
    hints.ai_flags = RAI_NUMERICHOST | RAI_FAMILY;
    hints.ai_family = AF_IB;
    let mut res = ptr::null_mut();
    for text in [c"127.0.0.1", c"localhost", c"fe80::x"] {
        // SAFETY: texts that end with NUL, and a place for the result.
        let failed =
            unsafe { rdma_getaddrinfo(text.as_ptr(), ptr::null(), &raw const hints, &raw mut res) };
        assert_eq!(failed, -1, "{text:?}");
    }
    // Without both flags the family is ignored, and the node is resolved as usual.
    hints.ai_flags = RAI_FAMILY;
    ok!(rdma_getaddrinfo(
        c"127.0.0.1".as_ptr(),
        ptr::null(),
        &raw const hints,
        &raw mut res
    ));
    // SAFETY: the result came from `rdma_getaddrinfo` above.
    unsafe {
        assert_eq!((*res).ai_family, libc::AF_INET);
        rdma_freeaddrinfo(res);
    }
}

#[test]
fn what_an_infiniband_port_does_not_have_is_refused() {
    alone("ib", "refused");
}

fn refused(_: &mut Stage) {
    let own = own_gid();
    let channel = Channel::new();
    // An unknown GID, and a port space that the id cannot have.
    let id = channel.id(RDMA_PS_TCP);
    fails!(
        libc::ENODEV,
        rdma_bind_addr(id, c(&mut any_port(gid("fe80::7"), RDMA_PS_TCP)))
    );
    fails!(
        libc::EPROTONOSUPPORT,
        rdma_bind_addr(id, c(&mut any_port(own, RDMA_PS_UDP)))
    );
    // The failed calls have not changed the id.
    ok!(rdma_bind_addr(id, c(&mut any_port(own, RDMA_PS_TCP))));
    // No other id can have the port, at this address or at the wildcard.
    let port = ports(id)[0];
    let other = channel.id(RDMA_PS_TCP);
    fails!(
        libc::EADDRINUSE,
        rdma_bind_addr(other, c(&mut at(own, RDMA_PS_TCP, port)))
    );
    fails!(
        libc::EADDRNOTAVAIL,
        rdma_bind_addr(other, c(&mut at([0; 16], RDMA_PS_TCP, port)))
    );
    let mut ip = sockaddr(&format!("0.0.0.0:{port}"));
    fails!(
        libc::EADDRNOTAVAIL,
        rdma_bind_addr(other, as_sockaddr(&mut ip))
    );
    // An id of RDMA_PS_IB conflicts if it binds the same service.
    let ib = channel.id(RDMA_PS_IB);
    fails!(
        libc::EADDRINUSE,
        rdma_bind_addr(ib, c(&mut at(own, RDMA_PS_TCP, port)))
    );
    ok!(rdma_bind_addr(ib, c(&mut at(own, RDMA_PS_IB, port))));
    ok!(rdma_destroy_id(ib));
    // Addresses of different families cannot be combined.
    let mut ip = sockaddr("127.0.0.1:7");
    let resolve = |id, src: *mut libc::sockaddr, dst: *mut libc::sockaddr| {
        // SAFETY: a live id, and addresses or NULL.
        unsafe { rdma_resolve_addr(id, src, dst, 2000) }
    };
    fails!(
        libc::EINVAL,
        resolve(id, ptr::null_mut(), as_sockaddr(&mut ip))
    );
    fails!(
        libc::EINVAL,
        resolve(
            other,
            c(&mut any_port(own, RDMA_PS_TCP)),
            as_sockaddr(&mut ip)
        )
    );
    ok!(rdma_destroy_id(id));
    ok!(rdma_destroy_id(other));

    // A partition without the port, and another subnet.
    let mut partition = at(own, RDMA_PS_TCP, 7);
    partition.sib_pkey = 0x8001_u16.to_be();
    for mut to in [partition, at(gid("fec0::1"), RDMA_PS_TCP, 7)] {
        let id = channel.id(RDMA_PS_TCP);
        fails!(libc::ENODEV, resolve(id, ptr::null_mut(), c(&mut to)));
        ok!(rdma_destroy_id(id));
    }
    let id = channel.id(RDMA_PS_TCP);
    let mut own_partition = any_port(own, RDMA_PS_TCP);
    own_partition.sib_pkey = partition.sib_pkey;
    ok!(rdma_bind_addr(id, c(&mut own_partition)));
    let mut attr = qp_init_attr(IBV_QPT_RC);
    fails!(
        libc::ENOENT,
        rdma_create_qp(id, ptr::null_mut(), &raw mut attr)
    );
    ok!(rdma_destroy_id(id));

    // The port is a full member of the partition; the address names the limited membership.
    let mut limited = at(own, RDMA_PS_TCP, 7);
    limited.sib_pkey = 0x7fff_u16.to_be();
    let id = resolved_to(&channel, RDMA_PS_TCP, &mut limited);
    create_qp(id);
    // No process listens there.
    ok!(rdma_connect(id, &mut param(b"")));
    assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).status, 8);
    destroy(id);

    // A service id without a port space has no listener.
    let mut strange = at(own, RDMA_PS_TCP, 7);
    strange.sib_sid = 0x1000_0000_0000_0001_u64.to_be();
    let id = resolved_to(&channel, RDMA_PS_TCP, &mut strange);
    create_qp(id);
    ok!(rdma_connect(id, &mut param(b"")));
    assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).status, 8);
    destroy(id);

    // The route to an unknown GID in the same subnet cannot be resolved.
    let id = channel.id(RDMA_PS_TCP);
    let mut neighbour = own;
    neighbour[15] ^= 1;
    ok!(resolve(
        id,
        ptr::null_mut(),
        c(&mut at(neighbour, RDMA_PS_TCP, 7))
    ));
    channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    ok!(rdma_resolve_route(id, 2000));
    assert_eq!(
        channel.expect(RDMA_CM_EVENT_ROUTE_ERROR).status,
        -libc::EINVAL
    );
    ok!(rdma_destroy_id(id));
    channel.destroy();
}

#[test]
fn a_roce_port_has_no_addresses_of_infiniband() {
    alone("roce", "roce");
}

/// Checks that RoCE behaves like Soft-RoCE: wildcards can be bound, and routes cannot be resolved.
fn roce(_: &mut Stage) {
    let own = own_gid();
    let channel = Channel::new();
    let listener = channel.id(RDMA_PS_TCP);
    fails!(
        libc::ENODEV,
        rdma_bind_addr(listener, c(&mut any_port(own, RDMA_PS_TCP)))
    );
    ok!(rdma_bind_addr(
        listener,
        c(&mut any_port([0; 16], RDMA_PS_TCP))
    ));
    ok!(rdma_listen(listener, 0));
    let port = ports(listener)[0];
    for to in [own, gid("::1")] {
        let id = channel.id(RDMA_PS_TCP);
        let mut to = at(to, RDMA_PS_TCP, port);
        ok!(rdma_resolve_addr(id, ptr::null_mut(), c(&mut to), 2000));
        channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        fails!(libc::ENODEV, rdma_resolve_route(id, 2000));
        ok!(rdma_destroy_id(id));
    }
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}
