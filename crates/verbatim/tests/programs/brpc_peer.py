"""The other end of a stream by brpc's RDMA protocol, as client and as server, written from the description of the protocol alone
over rdma-core's pyverbs. It shares no code with the program that it speaks to.

usage: brpc_peer.py HOST PORT SCENARIO
"""
import ipaddress
import select
import socket
import struct
import sys
import time

import pyverbs.device as d
import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

DEADLINE = 60
RESERVED = 3
ACK = 1 << 32


class Closed(Exception):
    """The connection is over."""


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def fields_of(message):
    """The fields of a Protocol Buffers message, by their numbers."""
    fields, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(message):
        tag = number()
        value = number()
        if tag & 7 == 2:
            value, at = message[at:at + value], at + value
        fields[tag >> 3] = value
    return fields


def read_exactly(tcp, size):
    data = b""
    while len(data) < size:
        part = tcp.recv(size - len(data))
        if not part:
            raise Closed("in the handshake")
        data += part
    return data


def read_hello(tcp, magic):
    """block_size, sq_size, rq_size, lid, gid, qpn; nothing when the peer declines."""
    if magic == b"RDMA":
        (size,) = struct.unpack(">H", read_exactly(tcp, 2))
        assert 40 <= size <= 4096, size
        rest = read_exactly(tcp, size - 6)
        hello_ver, impl_ver = struct.unpack(">HH", rest[:4])
        return struct.unpack(">IHHH16sI", rest[4:34]) if (hello_ver, impl_ver) == (2, 1) else None
    assert magic == b"RDM3", magic
    (size,) = struct.unpack(">I", read_exactly(tcp, 4))
    fields = fields_of(read_exactly(tcp, size))
    assert len(fields[5]) == 16
    return tuple(fields[i] for i in range(1, 7)) if fields[6] else None


def hello_bytes(version, block, sq, rq, lid, gid, qpn):
    if version == 2:
        versions = (2, 1) if qpn else (0, 0)
        return b"RDMA" + struct.pack(">HHHIHHH16sI", 40, *versions, block, sq, rq, lid, gid, qpn)
    message = b"".join(varint(tag << 3) + varint(value) for tag, value in ((1, block), (2, sq), (3, rq), (4, lid)))
    message += varint(5 << 3 | 2) + varint(16) + gid + varint(6 << 3) + varint(qpn)
    return b"RDM3" + struct.pack(">I", len(message)) + message


class End:
    """A queue pair with its blocks and windows."""

    def __init__(self, block=8192, sq=64, rq=32):
        self.context = d.Context(name=d.get_device_list()[0].name.decode())
        self.pd = PD(self.context)
        self.block, self.sq, self.rq = block, sq, rq
        self.cq = CQ(self.context, sq + rq, None, None, 0)
        cap = QPCap(max_send_wr=sq, max_recv_wr=rq, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0))
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_LOCAL_WRITE
        self.qp.to_init(attr)
        self.inbox = MR(self.pd, block * rq, e.IBV_ACCESS_LOCAL_WRITE)
        self.outbox = MR(self.pd, block * sq, e.IBV_ACCESS_LOCAL_WRITE)
        # Receives are used in their order.
        self.next_slot = 0
        for slot in range(rq):
            self.post_recv(slot)
        # Both ends need a GID of the same family: an IPv4 address, mapped.
        count = self.context.query_port(1).gid_tbl_len
        gids = [ipaddress.ip_address(str(self.context.query_gid(1, index)).strip()) for index in range(count)]
        self.gid_index = next(index for index, gid in enumerate(gids) if gid.ipv4_mapped)
        self.gid = gids[self.gid_index].packed
        self.data, self.received = bytearray(), 0

    def hello(self, version):
        return hello_bytes(version, self.block, self.sq, self.rq, 0, self.gid, self.qp.qp_num)

    def post_recv(self, slot):
        place = SGE(self.inbox.buf + slot * self.block, self.block, self.inbox.lkey)
        self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[place]))

    def connect(self, hello):
        self.peer_block, peer_sq, peer_rq, _, gid, qpn = hello
        attr = QPAttr(port_num=1)
        attr.dest_qp_num, attr.path_mtu, attr.rq_psn = qpn, e.IBV_MTU_1024, 0
        attr.max_dest_rd_atomic, attr.min_rnr_timer = 0, 0
        route = GlobalRoute(dgid=GID(val=str(ipaddress.IPv6Address(gid).exploded)), sgid_index=self.gid_index, hop_limit=16)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.sq_psn, attr.max_rd_atomic = 14, 7, 0, 0, 0
        self.qp.to_rts(attr)
        self.local = self.credits = min(self.sq, peer_rq) - RESERVED
        self.remote = min(self.rq, peer_sq) - RESERVED
        self.slots, self.acks, self.owed, self.sent = self.local, RESERVED, 0, 0

    def post(self, size, wr_id):
        """One message with the credits that are owed."""
        imm, self.owed = self.owed, 0
        at = self.sent % self.sq * self.block
        # pyverbs takes no WR without an SGE; one of no bytes makes the same message.
        sge = SGE(self.outbox.buf + at, size, self.outbox.lkey)
        wr = SendWR(opcode=e.IBV_WR_SEND_WITH_IMM, num_sge=1, sg=[sge], imm_data=socket.htonl(imm))
        wr.wr_id, wr.send_flags = wr_id, e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED
        self.qp.post_send(wr)

    def send(self, data):
        """Sends what there is room for; the rest."""
        limit = min(self.block, self.peer_block)
        while data and self.slots and self.credits:
            part, data = data[:limit], data[limit:]
            self.outbox.write(part, len(part), self.sent % self.sq * self.block)
            self.slots, self.credits = self.slots - 1, self.credits - 1
            self.post(len(part), 1)
            self.sent += 1
        return data

    def poll(self):
        count, wcs = self.cq.poll(16)
        for wc in wcs[:count]:
            if wc.status != e.IBV_WC_SUCCESS:
                raise Closed(f"status {wc.status}")
            if not wc.opcode & e.IBV_WC_RECV:
                if wc.wr_id == ACK:
                    self.acks += 1
                else:
                    self.slots += 1
                continue
            assert wc.wc_flags & e.IBV_WC_WITH_IMM, "a message without an immediate"
            self.credits += socket.ntohl(wc.imm_data)
            assert self.credits <= self.local, "more credits than messages"
            assert wc.byte_len <= self.block
            slot = wc.wr_id
            if wc.byte_len:
                self.data += self.inbox.read(wc.byte_len, slot * self.block)
                self.owed += 1
                assert self.owed <= self.remote, "more messages than credits"
            self.post_recv(slot)
        if self.owed > self.remote // 2 and self.acks:
            self.acks -= 1
            self.post(0, ACK)
        return count


def client(host, port, version=2, **sizes):
    """A connected end, and its TCP connection."""
    end = End(**sizes)
    tcp = socket.create_connection((host, int(port)), DEADLINE)
    tcp.sendall(end.hello(version))
    hello = read_hello(tcp, read_exactly(tcp, 4))
    assert hello, "the server declines"
    end.connect(hello)
    tcp.sendall(struct.pack(">I", 1))
    return end, tcp


def noise(size, seed):
    out = bytearray()
    while len(out) < size:
        seed = seed * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        out += seed.to_bytes(8, "big")
    return bytes(out[:size])


def exchange(end, data):
    """Sends data to an echo server, and compares what comes back."""
    left, deadline = data, time.monotonic() + DEADLINE
    while len(end.data) < len(data):
        left = end.send(left)
        if end.poll() == 0 and time.monotonic() > deadline:
            raise TimeoutError(f"{len(end.data)} of {len(data)} bytes came back")
    assert bytes(end.data) == data, "other bytes came back"
    end.data.clear()


def is_closed(tcp):
    """The server ends the connection, and says nothing more than a hello."""
    tcp.settimeout(DEADLINE)
    try:
        while tcp.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def basics(host, port):
    for version in (2, 3):
        end, tcp = client(host, port, version)
        for size in (1, 255, 256, 257, 8192, 8193, 200_000):
            exchange(end, noise(size, size))
        tcp.close()


def windows(host, port):
    """The least queues, and queues of different lengths."""
    for sq, rq in ((16, 16), (16, 300), (300, 16)):
        end, tcp = client(host, port, 2, sq=sq, rq=rq)
        exchange(end, noise(1_000_000, sq))
        tcp.close()


def garbage(host, port):
    """Handshakes that are none: each ends its own connection, and no other."""
    good, _tcp = client(host, port)
    own = good.hello(2)
    for data in (
        own[:4] + b"\0\x27" + own[6:],
        own[:4] + b"\xff\xff" + own[6:],
        own[:10] + b"\0\0\0\0" + own[14:],
        own[:14] + b"\0\x01" + own[16:],
        own[:36] + b"\xff" * 4,
        b"RDM3" + b"\xff" * 4,
        b"RDM3\0\0\0\0",
        b"RDM3\0\0\0\x04" + b"\xff" * 4,
        b"RDM3\0\0\0\x02\x08\x01",
    ):
        tcp = socket.create_connection((host, int(port)), DEADLINE)
        tcp.sendall(data)
        assert is_closed(tcp)
    # Half a hello, and then the end.
    for size in (1, 4, 5, 20, 39):
        tcp = socket.create_connection((host, int(port)), DEADLINE)
        tcp.sendall(own[:size])
        tcp.close()
    # Another version is declined, and RDMA after that is an error.
    tcp = socket.create_connection((host, int(port)), DEADLINE)
    tcp.sendall(own[:6] + b"\0\x09" + own[8:])
    assert read_exactly(tcp, 40) == b"RDMA\0\x28" + b"\0" * 34
    tcp.sendall(struct.pack(">I", 1))
    assert is_closed(tcp)
    # Declined by the client: TCP from here on.
    tcp = socket.create_connection((host, int(port)), DEADLINE)
    tcp.sendall(own)
    read_exactly(tcp, 40)
    tcp.sendall(struct.pack(">I", 0) + b"by TCP")
    assert read_exactly(tcp, 6) == b"by TCP"
    exchange(good, noise(10_000, 1))


def noisy(host, port):
    """Bytes on the TCP connection, which is silent, and messages that break the protocol."""
    good, _tcp = client(host, port)
    end, tcp = client(host, port)
    exchange(end, b"fine")
    tcp.sendall(b"x")
    assert is_closed(tcp)
    for breaks in ("credits", "immediate"):
        end, tcp = client(host, port)
        if breaks == "credits":
            end.owed = 7
            end.post(0, ACK)
        else:
            sge = SGE(end.outbox.buf, 4, end.outbox.lkey)
            wr = SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge])
            wr.send_flags = e.IBV_SEND_SOLICITED
            end.qp.post_send(wr)
        assert is_closed(tcp)
    exchange(good, noise(10_000, 2))


def serve(tcp, version):
    end = End(sq=40, rq=24)
    magic = read_exactly(tcp, 4)
    assert magic == (b"RDMA" if version == 2 else b"RDM3"), magic
    end.connect(read_hello(tcp, magic))
    tcp.sendall(end.hello(version))
    assert read_exactly(tcp, 4) == struct.pack(">I", 1)
    while True:
        end.poll()
        left = end.send(bytes(end.data))
        end.data[:] = left
        if select.select([tcp], [], [], 0)[0]:
            assert tcp.recv(1) == b"", "the client speaks on TCP"
            return


def server(host, port):
    """An echo server: once by each version, and once it declines."""
    listener = socket.create_server((host, int(port)))
    listener.settimeout(DEADLINE)
    print(listener.getsockname()[1], flush=True)
    for version in (2, 3):
        tcp, _ = listener.accept()
        serve(tcp, version)
        tcp.close()
    tcp, _ = listener.accept()
    assert read_hello(tcp, read_exactly(tcp, 4))
    tcp.sendall(hello_bytes(2, 0, 0, 0, 0, b"\0" * 16, 0))
    assert read_exactly(tcp, 4) == struct.pack(">I", 0)
    while data := tcp.recv(65536):
        tcp.sendall(data)


if __name__ == "__main__":
    globals()[sys.argv[3]](sys.argv[1], sys.argv[2])
    print(sys.argv[3], "passed")
