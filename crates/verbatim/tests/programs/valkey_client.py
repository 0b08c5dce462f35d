"""A client of Valkey's RDMA transport, written from the description of the protocol alone (valkey-doc, topics/RDMA.md), over
rdma-core's pyverbs. It shares no code with the server that it asks.

usage: valkey_client.py HOST PORT SCENARIO
"""
import socket
import struct
import sys
import time
import zlib

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from pyverbs.cmid import CMID, AddrInfo, ConnParam
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

COMMAND = 32
RECEIVES = 1024
SENDS = 1024
DEADLINE = 180

GET_FEATURE, SET_FEATURE, KEEPALIVE, REGISTER = range(4)


class Closed(Exception):
    """The connection is over."""


class Client:
    """One connection."""

    def __init__(self, host, port, room=1 << 16):
        info = AddrInfo(src="", src_service="", dst=host, dst_service=port, port_space=ce.RDMA_PS_TCP, flags=0)
        self.id = CMID(creator=info)
        self.cq = CQ(self.id.context, SENDS + RECEIVES, None, None, 0)
        cap = QPCap(max_send_wr=SENDS, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0)
        self.qp = QP(self.id.pd, init, QPAttr())
        self.to_state(e.IBV_QPS_INIT)
        local, remote = e.IBV_ACCESS_LOCAL_WRITE, e.IBV_ACCESS_REMOTE_WRITE
        # Where the server writes.
        self.room = room
        self.inbox = MR(self.id.pd, room, local | remote)
        self.filled = self.read_at = 0
        # Control messages: a place for each receive, and one for what is sent.
        self.commands = MR(self.id.pd, (RECEIVES + 1) * COMMAND, local)
        # What is written, at the offset that it has in the server's buffer.
        self.outbox, self.peer, self.written = None, None, 0
        self.unsignaled = 0
        self.answers, self.keepalives, self.registrations = [], 0, 0
        # Seconds without a completion after which `until` sends a keep-alive; none is sent if it is None.
        self.keepalive_after = None
        for slot in range(RECEIVES):
            self.post_recv(slot)
        self.id.connect(ConnParam(resources=1, depth=1, retry=7, rnr_retry=7, qp_num=self.qp.qp_num))
        self.to_state(e.IBV_QPS_RTR)
        self.to_state(e.IBV_QPS_RTS)
        self.id.establish()
        self.register()

    def to_state(self, state):
        attr, mask = self.id.init_qp_attr(state)
        if state == e.IBV_QPS_RTS:
            # 67 ms: that a server has gone is known after some of these.
            attr.timeout = 14
        self.qp.modify(attr, mask)

    def post_recv(self, slot):
        place = SGE(self.commands.buf + slot * COMMAND, COMMAND, self.commands.lkey)
        self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[place]))

    def send(self, message):
        """A control message, or bytes that are none."""
        at = RECEIVES * COMMAND
        self.commands.write(message, len(message), at)
        piece = SGE(self.commands.buf + at, len(message), self.commands.lkey)
        self.post(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[piece]), True)
        self.settle()

    def post(self, wr, signaled):
        self.unsignaled += 1
        wr.wr_id = 1 << 32 | self.unsignaled
        wr.send_flags = e.IBV_SEND_SIGNALED if signaled else 0
        self.qp.post_send(wr)
        if signaled:
            self.waits_for, self.unsignaled = wr.wr_id, 0

    def settle(self):
        """Waits for the last signaled WR."""
        self.until(lambda: self.waits_for is None)

    def register(self):
        self.send(struct.pack(">H14xQII", REGISTER, self.inbox.buf, self.room, self.inbox.rkey))

    def poll(self):
        count, wcs = self.cq.poll(16)
        for wc in wcs[:count]:
            if wc.status != e.IBV_WC_SUCCESS:
                raise Closed(f"status {wc.status}")
            if wc.wr_id >> 32:
                self.waits_for = None
                continue
            if wc.opcode == e.IBV_WC_RECV_RDMA_WITH_IMM:
                self.filled += socket.ntohl(wc.imm_data)
                assert self.filled <= self.room, "the server writes beyond the buffer"
            else:
                assert wc.byte_len == COMMAND, f"a control message of {wc.byte_len} bytes"
                self.on_command(self.commands.read(COMMAND, wc.wr_id * COMMAND))
            self.post_recv(wc.wr_id)
        return count

    def on_command(self, message):
        (opcode,) = struct.unpack(">H", message[:2])
        if opcode == REGISTER:
            self.peer = struct.unpack(">QII", message[16:])
            self.written = 0
            self.registrations += 1
            if self.outbox is None or self.outbox.length != self.peer[1]:
                self.outbox = MR(self.id.pd, self.peer[1], e.IBV_ACCESS_LOCAL_WRITE)
        elif opcode == KEEPALIVE:
            self.keepalives += 1
        else:
            self.answers.append(message)

    def until(self, ready, seconds=DEADLINE):
        last = time.monotonic()
        deadline = last + seconds
        while not ready():
            now = time.monotonic()
            if self.poll() > 0:
                last = now
            elif now > deadline:
                raise TimeoutError("the server has not answered")
            elif self.keepalive_after is not None and self.waits_for is None and now > last + self.keepalive_after:
                self.send(struct.pack(">H30x", KEEPALIVE))
                last = time.monotonic()

    def take(self):
        """The bytes that came. The server is told of the buffer anew once it is full and read."""
        data = b""
        if self.filled > self.read_at:
            data = self.inbox.read(self.filled - self.read_at, self.read_at)
            self.read_at = self.filled
            if self.read_at == self.room:
                self.filled = self.read_at = 0
                self.register()
        return data

    def space(self):
        return self.peer[1] - self.written if self.peer else 0

    def write(self, data, group=1, taken=None):
        """WRITEs data, in `group` pieces for each immediate. What comes meanwhile is added to `taken`."""
        while data:
            def ready():
                if taken is not None:
                    taken.extend(self.take())
                return self.space() > 0
            self.until(ready)
            part, data = data[:self.space()], data[self.space():]
            addr, _, rkey = self.peer
            self.outbox.write(part, len(part), self.written)
            size = -(-len(part) // group)
            for at in range(0, len(part), size):
                piece = min(size, len(part) - at)
                is_last = at + piece == len(part)
                op = e.IBV_WR_RDMA_WRITE_WITH_IMM if is_last else e.IBV_WR_RDMA_WRITE
                sge = SGE(self.outbox.buf + self.written + at, piece, self.outbox.lkey)
                wr = SendWR(opcode=op, num_sge=1, sg=[sge], imm_data=socket.htonl(len(part)) if is_last else 0)
                wr.set_wr_rdma(rkey, addr + self.written + at)
                self.post(wr, self.unsignaled >= SENDS // 2)
                if self.unsignaled == 0:
                    self.settle()
            self.written += len(part)

    def expect(self, reply, group=1, request=b""):
        """Sends a request, and compares what comes with the reply that must come."""
        came = bytearray()
        self.write(request, group, came)

        def ready():
            came.extend(self.take())
            return len(came) >= len(reply)
        self.until(ready)
        assert len(came) == len(reply) and zlib.crc32(came) == zlib.crc32(reply), \
            f"{bytes(came[:80])!r} instead of {reply[:80]!r}"


def command(*words):
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        word = word if isinstance(word, bytes) else word.encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


def bulk(value):
    return b"$%d\r\n%s\r\n" % (len(value), value)


def noise(size, seed):
    out = bytearray()
    while len(out) < size:
        seed = seed * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        out += seed.to_bytes(8, "big")
    return bytes(out[:size])


def basics(host, port):
    client = Client(host, port)
    client.expect(b"+PONG\r\n", request=command("PING"))
    client.expect(b"+OK\r\n", request=command("SET", "colour", "green"))
    client.expect(bulk(b"green"), request=command("GET", "colour"))
    # The features of word 7: none, in a message of the same kind.
    client.send(struct.pack(">HH20xQ", GET_FEATURE, 7, 0))
    client.until(lambda: client.answers)
    assert client.answers == [struct.pack(">HH20xQ", GET_FEATURE, 7, 0)], client.answers
    # Features that are wanted are ignored, and so is a keep-alive.
    client.send(struct.pack(">HH20xQ", SET_FEATURE, 0, 1))
    client.send(struct.pack(">H30x", KEEPALIVE))
    client.expect(bulk(b"green"), request=command("GET", "colour"))
    assert len(client.answers) == 1


def keepalive(host, port):
    client = Client(host, port)
    client.until(lambda: client.keepalives >= 2)
    client.expect(b"+PONG\r\n", request=command("PING"))


def buffers(host, port):
    """Replies larger than the client's buffer, and buffers of both ends that fill to the last byte, with commands across."""
    client = Client(host, port, room=4099)
    value = noise(60_000, 1)
    # 40 of them are 2.4 MB: they fill the server's buffer several times.
    for number in range(40):
        client.expect(b"+OK\r\n", request=command("SET", f"big:{number % 4}", value))
    for number in range(4):
        client.expect(bulk(value), request=command("GET", f"big:{number}"))
    assert client.registrations > 3, client.registrations


def groups(host, port):
    """WRITEs without an immediate, and a last one that counts them all."""
    client = Client(host, port)
    value = noise(10_000, 2)
    for group in (2, 3, 100):
        client.expect(b"+OK\r\n", group, command("SET", f"group:{group}", value))
        client.expect(bulk(value), group, command("GET", f"group:{group}"))


def tiny(host, port):
    """More WRITEs with immediate than the server has receives, one byte each, before any is waited for."""
    client = Client(host, port)
    value = noise(5_000, 3)
    request = command("SET", "tiny", value)
    client.until(lambda: client.space() > 0)
    for at in range(len(request)):
        client.write(request[at:at + 1])
    client.expect(b"+OK\r\n")
    client.expect(bulk(value), request=command("GET", "tiny"))


def pipeline(host, port):
    client = Client(host, port)
    request, reply = bytearray(), bytearray()
    for number in range(3_000):
        value = noise(1 + number % 200, number)
        request += command("SET", f"p:{number % 100}", value) + command("GET", f"p:{number % 100}")
        reply += b"+OK\r\n" + bulk(value)
    client.expect(bytes(reply), request=bytes(request))


def slow(host, port):
    """Asks for 6 MB of replies, and reads none of them for a second."""
    client = Client(host, port)
    value = noise(60_000, 5)
    client.expect(b"+OK\r\n", request=command("SET", "slow", value))
    client.write(command("GET", "slow") * 100)
    begun = time.monotonic()
    client.until(lambda: time.monotonic() > begun + 1)
    assert client.filled == client.room, "the server has filled the buffer"
    client.expect(bulk(value) * 100)


def ends(client):
    """The server ends the connection."""
    deadline = time.monotonic() + DEADLINE
    try:
        while time.monotonic() < deadline:
            client.send(struct.pack(">H30x", KEEPALIVE))
            time.sleep(0.01)
    except Closed:
        return
    raise TimeoutError("the server goes on with a client that breaks the protocol")


def bad(host, port):
    def data(client, size, imm, key=0, offset=0):
        client.until(lambda: client.space() > 0)
        addr, _, rkey = client.peer
        sge = SGE(client.outbox.buf, size, client.outbox.lkey)
        wr = SendWR(opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM, num_sge=1, sg=[sge], imm_data=socket.htonl(imm))
        wr.set_wr_rdma(rkey ^ key, addr + offset)
        client.post(wr, False)

    good = Client(host, port)
    for breaks in (
        lambda c: data(c, 4, 0xffffffff),
        lambda c: data(c, 4, c.peer[1] + 1),
        lambda c: data(c, 4, 1),
        lambda c: data(c, 4, 4, key=0x100),
        lambda c: data(c, 4, 4, offset=1 << 40),
        lambda c: c.send(struct.pack(">H30x", 4)),
        lambda c: c.send(b"\xff" * COMMAND),
        lambda c: c.send(b"\0" * 31),
        lambda c: c.send(b"\0" * COMMAND + b"more"),
        lambda c: c.send(struct.pack(">H14xQII", REGISTER, c.inbox.buf, 0, c.inbox.rkey)),
    ):
        client = Client(host, port)
        client.until(lambda: client.space() > 0)
        try:
            breaks(client)
            ends(client)
        except Closed:
            pass
        good.expect(b"+PONG\r\n", request=command("PING"))


def forever(host, port):
    client = Client(host, port)
    # A client that only waits has nothing that a dead server would fail to acknowledge.
    client.keepalive_after = 0.1
    value = noise(30_000, 4)
    client.expect(b"+OK\r\n", request=command("SET", "forever", value))
    print("asks", flush=True)
    try:
        while True:
            client.expect(bulk(value), request=command("GET", "forever"))
    except Closed:
        print("ended", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[3]](sys.argv[1], sys.argv[2])
    print(sys.argv[3], "passed")
