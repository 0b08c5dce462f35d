"""Two processes on one TCP connection, as unmodified programs use it: `sockets.py SCENARIO`, where STAT is the command that
prints the connections, and LINES the number of its lines for a connection. Ends with status 0 if everything came as TCP
brings it. On two hosts: `sockets.py serve SCENARIO ADDRESS PORT` and `sockets.py connect SCENARIO ADDRESS PORT`."""

import array
import ctypes
import errno
import fcntl
import mmap
import os
import queue
import random
import resource
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib



def path_of(port):
    """What `verbatim sockets --stat` says of the connections of a port."""
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    command = shlex.split(os.environ["STAT"])
    out = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return [line for line in out.stdout.splitlines() if f":{port} " in line]


def is_carried(port):
    lines = path_of(port)
    return len(lines) == int(os.environ["LINES"]) and all(" rdma " in line for line in lines)


def read_exactly(sock, count):
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        assert part, f"the stream ended after {len(data)} of {count} bytes"
        data += part
    return data


def warm(sock, is_server):
    """Small messages to and fro, until both ends have moved to RDMA."""
    for i in range(20):
        if is_server:
            assert read_exactly(sock, 5) == b"%05d" % i
            sock.sendall(b"%05d" % i)
        else:
            sock.sendall(b"%05d" % i)
            assert read_exactly(sock, 5) == b"%05d" % i


def send_random(sock, seed, total):
    numbers = random.Random(seed)
    sent, checksum = 0, 0
    while sent < total:
        part = numbers.randbytes(min(total - sent, numbers.choice([1, 7, 100, 4096, 70_000, 400_000])))
        sock.sendall(part)
        sent, checksum = sent + len(part), zlib.crc32(part, checksum)
    return checksum


def stream(sock, is_server):
    """Both directions at once, random sizes, by threads; a checksum at the end."""
    total = 30_000_000
    sums = {}
    sender = threading.Thread(target=lambda: sums.update(sent=send_random(sock, is_server, total)))
    sender.start()
    numbers = random.Random(7 + is_server)
    got, checksum = 0, 0
    while got < total:
        part = sock.recv(min(total - got, numbers.choice([1, 50, 5000, 300_000])))
        assert part, f"the stream ended after {got} bytes"
        got, checksum = got + len(part), zlib.crc32(part, checksum)
    sender.join()
    sock.sendall(sums["sent"].to_bytes(4, "big"))
    assert int.from_bytes(read_exactly(sock, 4), "big") == checksum, "wrong bytes"


def events(sock, is_server):
    """Both directions at once without blocking, edge-triggered."""
    total, sent, got = 10_000_000, 0, 0
    sock.setblocking(False)
    poller = select.epoll()
    poller.register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET | select.EPOLLRDHUP)
    pattern = bytes(range(251)) * 3000
    end = time.monotonic() + 60
    while (sent < total or got < total) and time.monotonic() < end:
        for _, _ in poller.poll(10):
            try:
                while sent < total:
                    sent += sock.send(pattern[sent % 251 :][: min(60_000, total - sent)])
            except BlockingIOError:
                pass
            try:
                while got < total:
                    part = sock.recv(50_000)
                    assert part, "the stream ended"
                    assert part == pattern[got % 251 :][: len(part)], f"wrong bytes after {got}"
                    got += len(part)
            except BlockingIOError:
                pass
    assert (sent, got) == (total, total), (sent, got)
    sock.setblocking(True)


def polled(sock, is_server):
    """`poll` and `select` with timeouts, MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, half close."""
    if not is_server:
        assert select.select([sock], [sock], [], 0)[1] == [sock]
        start = time.monotonic()
        assert select.select([sock], [], [], 0.2)[0] == [] and time.monotonic() - start >= 0.19
        sock.sendall(b"go")
        assert select.select([sock], [], [], 20)[0] == [sock]
        assert sock.recv(100, socket.MSG_PEEK) == b"1234"
        assert sock.recv(8, socket.MSG_WAITALL) == b"12345678"
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        assert poller.poll(50) == []
        try:
            sock.recv(1, socket.MSG_DONTWAIT)
            raise AssertionError("nothing was sent")
        except BlockingIOError:
            pass
        sock.settimeout(0.2)
        try:
            sock.recv(1)
            raise AssertionError("nothing was sent")
        except TimeoutError:
            pass
        sock.settimeout(None)
        sock.sendall(b"all of it")
        sock.shutdown(socket.SHUT_WR)
        assert read_exactly(sock, 500_000) == b"x" * 500_000
        assert sock.recv(1) == b""
    else:
        assert read_exactly(sock, 2) == b"go"
        sock.sendall(b"1234")
        time.sleep(0.3)
        sock.sendall(b"5678")
        assert read_exactly(sock, 9) == b"all of it"
        assert sock.recv(1) == b""
        sock.sendall(b"x" * 500_000)


class EpollEvent(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]


DATA = 0x1122334455667788
PATTERN = bytes(range(251)) * 12_000
# More than the ring of a connection has room for.
MUCH = PATTERN[:400_000]


def answer_commands(sock):
    """Sends one byte for each byte, until the peer closes."""
    while command := sock.recv(1):
        sock.sendall(command)


def added(sock, is_server):
    """A thread sleeps in `epoll_wait` while another adds the connection, and then changes its events."""
    if is_server:
        return answer_commands(sock)
    libc = ctypes.CDLL(None)
    poller = libc.epoll_create1(0)

    def control(operation, fd, events, data):
        assert libc.epoll_ctl(poller, operation, fd, ctypes.byref(EpollEvent(events, data))) == 0

    def wait():
        events = (EpollEvent * 8)()
        count = libc.epoll_wait(poller, events, 8, 10_000)
        found.put([(event.events, event.data) for event in events[:count]])

    def while_a_thread_sleeps(change):
        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.2)
        change()
        return found.get(timeout=20)

    def add():
        control(1, sock.fileno(), select.EPOLLIN, DATA)
        sock.sendall(b"1")

    def rearm():
        control(3, sock.fileno(), select.EPOLLIN | select.EPOLLONESHOT, DATA)

    def rearm_and_ask():
        rearm()
        sock.sendall(b"2")

    found = queue.Queue()
    idle, _kept = os.pipe()
    control(1, idle, select.EPOLLIN, 7)
    assert while_a_thread_sleeps(add) == [(select.EPOLLIN, DATA)]
    assert sock.recv(1) == b"1"
    control(3, sock.fileno(), 0, DATA)
    assert while_a_thread_sleeps(rearm_and_ask) == [(select.EPOLLIN, DATA)]
    # The byte is still unread, so the changed instance is ready.
    assert while_a_thread_sleeps(rearm) == [(select.EPOLLIN, DATA)]
    assert sock.recv(1) == b"2"


def nested(sock, is_server):
    """An epoll instance inside another one, and that one in `poll`, wake a thread when data come."""
    if is_server:
        while command := sock.recv(1):
            time.sleep(0.02)
            sock.sendall(command)
        return
    inner, outer, poller = select.epoll(), select.epoll(), select.poll()
    inner.register(sock, select.EPOLLIN)
    outer.register(inner.fileno(), select.EPOLLIN)
    poller.register(outer.fileno(), select.POLLIN)
    for i in range(10):
        sock.sendall(b"n")
        if i % 2:
            assert poller.poll(10_000) == [(outer.fileno(), select.POLLIN)]
        assert outer.poll(10) == [(inner.fileno(), select.EPOLLIN)], i
        assert inner.poll(0) == [(sock.fileno(), select.EPOLLIN)]
        assert sock.recv(1) == b"n"
        assert outer.poll(0) == inner.poll(0) == []


def full(sock, is_server):
    """A thread sleeps in an edge-triggered `epoll_wait` while another fills the connection; then the peer reads."""
    if is_server:
        time.sleep(1)
        while not sock.recv(100_000).endswith(b"!"):
            pass
        return
    sock.setblocking(False)
    poller = select.epoll()
    poller.register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    assert poller.poll(1) == [(sock.fileno(), select.EPOLLOUT)]
    edges = queue.Queue()
    threading.Thread(target=lambda: edges.put(poller.poll(20)), daemon=True).start()
    time.sleep(0.2)
    try:
        while True:
            sock.send(b"x" * 10_000)
    except BlockingIOError:
        pass
    assert edges.get(timeout=10) == [(sock.fileno(), select.EPOLLOUT)]
    sock.setblocking(True)
    sock.sendall(b"!")


def sleepers(sock, is_server):
    """Several threads of a process sleep on one connection, and one of them wakes."""
    if is_server:
        listener = socket.create_server(("127.0.0.1", 0))
        sock.sendall(struct.pack("!H", listener.getsockname()[1]))
        other, _ = listener.accept()
        warm(other, True)
        threading.Thread(target=answer_commands, args=[other], daemon=True).start()
        return answer_commands(sock)
    (port,) = struct.unpack("!H", read_exactly(sock, 2))
    other = socket.create_connection(("127.0.0.1", port))
    warm(other, False)
    found = queue.Queue()

    # A poll ends by its timeout while a read sleeps.
    threading.Thread(target=lambda: found.put(sock.recv(1)), daemon=True).start()
    time.sleep(0.2)
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    assert poller.poll(50) == []
    sock.sendall(b"1")
    assert found.get(timeout=5) == b"1"

    # A thread that got an event does not come back, while another sleeps in the same instance.
    instance = select.epoll()
    for one in (sock, other):
        instance.register(one, select.EPOLLIN | select.EPOLLET)
    for _ in range(2):
        threading.Thread(target=lambda: found.put(instance.poll(20)), daemon=True).start()
    time.sleep(0.2)
    for one in (sock, other):
        one.sendall(b"2")
        assert found.get(timeout=5) == [(one.fileno(), select.EPOLLIN)]
    assert sock.recv(1) + other.recv(1) == b"22"

    # A read that does not block, while another thread sleeps in an instance.
    sock.setblocking(False)
    for _ in range(50):
        threading.Thread(target=lambda: found.put(instance.poll(20)), daemon=True).start()
        sock.sendall(b"3")
        got, end = b"", time.monotonic() + 10
        while not got and time.monotonic() < end:
            try:
                got = sock.recv(1)
            except BlockingIOError:
                pass
        assert got == b"3"
        other.sendall(b"4")
        assert other.recv(1) == b"4"
    other.close()
    sock.setblocking(True)


def pool(sock, is_server):
    """Four threads share an instance, and arm each connection again when they have answered it."""
    if is_server:
        listener = socket.create_server(("127.0.0.1", 0))
        sock.sendall(struct.pack("!H", listener.getsockname()[1]))
        others = [listener.accept()[0] for _ in range(3)]
        instance = select.epoll()
        ends = queue.Queue()

        def serve():
            while True:
                for fd, _ in instance.poll(20, 1):
                    part = clients[fd].recv(3)
                    if not part:
                        return ends.put(fd)
                    clients[fd].sendall(part)
                    instance.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)

        clients = {one.fileno(): one for one in [sock, *others]}
        for fd in clients:
            instance.register(fd, select.EPOLLIN | select.EPOLLONESHOT)
        for _ in clients:
            threading.Thread(target=serve, daemon=True).start()
        for _ in clients:
            ends.get(timeout=60)
        return
    (port,) = struct.unpack("!H", read_exactly(sock, 2))
    clients = [sock] + [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    numbers = random.Random(5)
    for _ in range(1000):
        chosen = numbers.sample(clients, numbers.choice([1, 1, 2, 4]))
        part = numbers.randbytes(numbers.choice([1, 3, 10]))
        for one in chosen:
            one.settimeout(10)
            one.sendall(part)
        for one in chosen:
            assert read_exactly(one, len(part)) == part
        time.sleep(numbers.choice([0, 0, 0.0001, 0.002]))
    for one in clients:
        one.close()


def left(sock, is_server):
    """The client exits, without a close, after a read that slept: the server finds the end of the stream."""
    if not is_server:
        assert sock.recv(1) == b"x"
        os._exit(0)
    time.sleep(0.3)
    sock.sendall(b"x")
    assert sock.recv(1) == b""


def reset(sock, is_server):
    """The server resets the connection while the client sleeps in `poll`."""
    if is_server:
        time.sleep(0.3)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    assert poller.poll(10_000)[0][1] & select.POLLIN
    try:
        assert sock.recv(1) is None, "the reset looks like an end"
    except ConnectionResetError:
        pass


def failed(sock, is_server):
    """The server resets the connection. The client sees the error by events, and then by `SO_ERROR`, once."""
    if is_server:
        time.sleep(0.3)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return
    poller, watcher = select.poll(), select.epoll()
    poller.register(sock, select.POLLIN)
    watcher.register(sock, select.EPOLLIN)
    for _ in range(3):
        assert poller.poll(10_000)[0][1] & select.POLLERR
        assert watcher.poll(10)[0][1] & select.EPOLLERR
    errors = [sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for _ in range(2)]
    assert errors == [errno.ECONNRESET, 0], errors
    assert not poller.poll(10_000)[0][1] & select.POLLERR
    assert sock.recv(1) == b""


def urgent(sock, is_server):
    """Urgent data: events, `SIGURG`, `MSG_OOB`, and the mark behind bytes that came before."""
    if is_server:
        assert sock.recv(1) == b"?"
        sock.sendall(b"normal")
        assert sock.send(b"abc!", socket.MSG_OOB) == 4
        sock.sendall(b"after")
        assert sock.recv(1) == b"."
        return
    signals = []
    signal.signal(signal.SIGURG, lambda number, _: signals.append(number))
    fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())
    watcher, poller, libc = select.epoll(), select.poll(), ctypes.CDLL(None)
    watcher.register(sock, select.EPOLLPRI)
    poller.register(sock, select.POLLPRI)
    sock.sendall(b"?")
    assert watcher.poll(20) == [(sock.fileno(), select.EPOLLPRI)]
    assert poller.poll(20_000) == [(sock.fileno(), select.POLLPRI)]
    assert select.select([], [], [sock], 20)[2] == [sock]
    assert signals == [signal.SIGURG], signals
    assert sock.recv(1, socket.MSG_OOB) == b"!"
    before = b""
    while not libc.sockatmark(sock.fileno()):
        before += sock.recv(100)
    assert before == b"normalabc", before
    assert read_exactly(sock, 5) == b"after"
    sock.sendall(b".")


def inlined(sock, is_server):
    """Urgent data among the others, by `SO_OOBINLINE`."""
    if is_server:
        assert sock.recv(1) == b"?"
        sock.sendall(PATTERN[:100_000])
        assert sock.send(b"xyz", socket.MSG_OOB) == 3
        sock.sendall(b"after")
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    sock.sendall(b"?")
    assert read_exactly(sock, 100_008) == PATTERN[:100_000] + b"xyzafter"
    assert sock.recv(1) == b""


def unread(sock, is_server):
    """The client closes connections before it has read all, and its memory for receiving is used again."""
    if is_server:
        listener = socket.create_server(("127.0.0.1", 0))
        sock.sendall(struct.pack("!H", listener.getsockname()[1]))
        for _ in range(80):
            other, _ = listener.accept()
            warm(other, True)
            other.sendall(b"nobody reads this")
            sock.sendall(b"!")
            assert sock.recv(1) == b"?"
            other.close()
        return
    (port,) = struct.unpack("!H", read_exactly(sock, 2))
    segments = []
    for _ in range(80):
        other = socket.create_connection(("127.0.0.1", port))
        warm(other, False)
        assert sock.recv(1) == b"!"
        other.close()
        with open("/proc/sysvipc/shm") as all_segments:
            creators = [line.split()[4] for line in all_segments]
        segments.append(creators.count(str(os.getpid())))
        sock.sendall(b"?")
    assert segments[0] > 0 and segments[-1] == segments[0], segments


def messages(sock, is_server):
    """`MSG_TRUNC` discards bytes; control messages arrive on a connection that is not on RDMA."""
    if is_server:
        sock.sendall(b"discarded and read")
        return
    assert sock.recv(18, socket.MSG_PEEK | socket.MSG_WAITALL) == b"discarded and read"
    libc = ctypes.CDLL(None)
    assert libc.recv(sock.fileno(), None, 10, socket.MSG_TRUNC) == 10
    assert read_exactly(sock, 8) == b"and read"[-8:]
    listener = socket.create_server(("127.0.0.1", 0))
    plain = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    tcp_inq = 36
    accepted.setsockopt(socket.IPPROTO_TCP, tcp_inq, 1)
    plain.sendall(b"abc")
    data, control, _, _ = accepted.recvmsg(2, 64)
    assert (data, control) == (b"ab", [(socket.IPPROTO_TCP, tcp_inq, struct.pack("i", 1))])
    for i in range(20):
        plain.sendall(b"%05d" % i)
        assert read_exactly(accepted, 5 + (i == 0))[-5:] == b"%05d" % i
        accepted.sendall(b"y")
        assert plain.recv(1) == b"y"


def spliced(sock, is_server):
    """The client moves bytes between the connection and pipes by `splice`, which waits and returns as on TCP."""
    if is_server:
        sock.sendall(b"abc")
        assert sock.recv(1) == b"?"
        sock.sendall(PATTERN[:300_000])
        assert read_exactly(sock, 300_000) == PATTERN[:300_000]
        # Nobody reads until the client has filled the connection.
        assert sock.recv(1, socket.MSG_PEEK) == PATTERN[:1]
        time.sleep(0.5)
        assert read_exactly(sock, len(PATTERN)) == PATTERN
        sock.sendall(b"late")
        assert sock.recv(1) == b"."
        assert is_carried(sock.getsockname()[1]), path_of(sock.getsockname()[1])
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""
        return
    fd, now = sock.fileno(), os.SPLICE_F_NONBLOCK
    splice_into_pipes(sock, fd, now)
    # As many bytes as the pipe takes, the rest later.
    source, sink = os.pipe()
    moved = b""
    while len(moved) < 300_000:
        count = os.splice(fd, sink, 1 << 20)
        assert 0 < count <= 65_536, count
        # Back into the connection, through another pipe.
        moved += PATTERN[len(moved) : len(moved) + count]
        assert os.splice(source, fd, 1 << 20) == count
    fill_by_splice(sock, source, sink)
    # A call that blocks waits for data of the connection, whatever its flags say of the pipe.
    assert os.splice(fd, sink, 10, flags=now) == 4 and os.read(source, 10) == b"late"
    sock.sendall(b".")
    assert os.splice(fd, sink, 10) == 0, "no end of the stream"
    os.close(sink)
    assert os.splice(source, fd, 10) == 0, "no end of the pipe"


def splice_into_pipes(sock, fd, now):
    """Full pipes, pipes without readers, and no data."""
    source, sink = os.pipe()
    os.write(sink, bytes(65_536))
    select.select([sock], [], [], 20)
    assert fails(errno.EAGAIN, lambda: os.splice(fd, sink, 10, flags=now))
    os.read(source, 65_536)
    assert os.splice(fd, sink, 10) == 3 and os.read(source, 10) == b"abc"
    sock.setblocking(False)
    assert fails(errno.EAGAIN, lambda: os.splice(fd, sink, 10))
    assert fails(errno.EAGAIN, lambda: os.splice(source, fd, 10, flags=now))
    sock.setblocking(True)
    assert fails(errno.EINVAL, lambda: os.splice(fd, fd, 10))
    assert fails(errno.EBADF, lambda: os.splice(fd, source, 10))
    assert fails(errno.ESPIPE, lambda: os.splice(fd, sink, 10, offset_dst=0))
    os.close(source)
    sock.sendall(b"?")
    assert fails(errno.EPIPE, lambda: os.splice(fd, sink, 10))
    os.close(sink)


def fill_by_splice(sock, source, sink):
    """Moves PATTERN by calls that do not wait; the pipe keeps what a full connection does not take."""
    sock.setblocking(False)
    written, sent, was_full = 0, 0, False
    while sent < len(PATTERN):
        if written == sent:
            written += os.write(sink, PATTERN[written : written + 60_000])
        try:
            sent += os.splice(source, sock.fileno(), 1 << 20)
        except BlockingIOError:
            was_full = True
            select.select([], [sock], [], 20)
    assert was_full
    sock.setblocking(True)


def fails(expected, call):
    try:
        call()
    except OSError as err:
        return err.errno == expected
    return False


def killed(sock, is_server):
    """The client is killed while it sends; the server reads a prefix, then the end of the stream or a reset."""
    if not is_server:
        threading.Timer(random.uniform(0.05, 0.3), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        while True:
            sock.sendall(bytes(range(251)) * 100)
    pattern, got = bytes(range(251)) * 300, 0
    sock.settimeout(30)
    try:
        while part := sock.recv(60_000):
            assert part == pattern[got % 251 :][: len(part)], f"wrong bytes after {got}"
            got += len(part)
    except ConnectionResetError:
        pass
    refuses(sock)


def deaf(sock, is_server):
    """The client is killed while the server sends to it."""
    if not is_server:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        while True:
            sock.recv(10_000)
            time.sleep(0.001)
    refuses(sock)


def unheard(sock, make_poller):
    """The client is killed while the server's threads send to it, and wait for room by `make_poller` alone."""
    if make_poller is None:
        (port,) = struct.unpack("!H", read_exactly(sock, 2))
        others = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        for other in others:
            warm(other, False)
            threading.Thread(target=take_all, args=(other,)).start()
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    listener = socket.create_server(("127.0.0.1", 0))
    sock.sendall(struct.pack("!H", listener.getsockname()[1]))
    ended = queue.Queue()
    for _ in range(4):
        other, _ = listener.accept()
        warm(other, True)
        threading.Thread(target=send_by_events, args=(other, make_poller, ended), daemon=True).start()
    for _ in range(4):
        ended.get(timeout=20)


def take_all(sock):
    """Reads until the stream ends."""
    while sock.recv(65_536):
        pass


def send_by_events(sock, make_poller, ended):
    """Sends until the connection fails. Waits for room by events alone."""
    sock.setblocking(False)
    poller = make_poller()
    poller.register(sock, select.POLLOUT)
    try:
        while True:
            poller.poll()
            try:
                sock.send(b"z" * 65_536)
            except BlockingIOError:
                pass
    except (BrokenPipeError, ConnectionResetError) as failure:
        ended.put(failure)


def unheard_poll(sock, is_server):
    """`unheard`, by `poll`."""
    unheard(sock, select.poll if is_server else None)


def unheard_epoll(sock, is_server):
    """`unheard`, by `epoll`."""
    unheard(sock, select.epoll if is_server else None)


def served(sock, is_server):
    """The client is killed after it has read all requests. The server's next send succeeds, and its next read tells."""
    if not is_server:
        sock.setblocking(False)
        for i in range(3):
            data = b""
            while len(data) < 5:
                # A read that finds data at once leaves the wake byte in the stream.
                try:
                    data += sock.recv(5 - len(data))
                except BlockingIOError:
                    pass
            sock.send(data)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    for i in range(3):
        sock.sendall(b"%05d" % i)
        assert read_exactly(sock, 5) == b"%05d" % i
    time.sleep(1)
    assert sock.send(b"again") == 5
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    assert poller.poll(10_000)
    try:
        assert sock.recv(5) == b""
    except ConnectionResetError:
        pass
    refuses(sock)


def refuses(sock):
    """The peer is gone: sends fail in the end."""
    end = time.monotonic() + 30
    try:
        while time.monotonic() < end:
            sock.sendall(b"y" * 1000)
    except (BrokenPipeError, ConnectionResetError):
        return
    raise AssertionError("sends to a dead peer succeed")


def written(sock, is_server):
    """The client exits, without a close, right after a write: the server gets every byte."""
    if not is_server:
        sock.sendall(PATTERN[:200_000])
        os._exit(0)
    assert read_exactly(sock, 200_000) == PATTERN[:200_000]
    assert sock.recv(1) == b""


def halved(sock, is_server):
    """The client ends its direction, and reads much after that."""
    if not is_server:
        sock.shutdown(socket.SHUT_WR)
        assert read_exactly(sock, len(PATTERN)) == PATTERN
        assert sock.recv(1) == b""
        return
    assert sock.recv(1) == b""
    sock.sendall(PATTERN)


def stopped(sock, is_server):
    """The client stops for longer than a queue pair waits, while the server sends to it and it has sent itself."""
    if not is_server:
        sock.sendall(struct.pack("!I", os.getpid()))
        assert read_exactly(sock, len(PATTERN)) == PATTERN
        sock.sendall(PATTERN)
        return
    (client,) = struct.unpack("!I", read_exactly(sock, 4))
    os.kill(client, signal.SIGSTOP)
    timer = threading.Timer(3, lambda: os.kill(client, signal.SIGCONT))
    timer.start()
    sock.sendall(PATTERN)
    timer.join()
    assert read_exactly(sock, len(PATTERN)) == PATTERN


def crowd(sock, is_server):
    """Many connections of an epoll instance, of which most are idle for long: data, room, ends and changes still come."""
    crowd_by(sock, is_server, threads=1, oneshot=0)


def crowd_of_threads(sock, is_server):
    """The same with threads that share the instance, and one-shot watches."""
    crowd_by(sock, is_server, threads=2, oneshot=select.EPOLLONESHOT)


def crowd_by(sock, is_server, threads, oneshot):
    count = 90
    if is_server:
        listener = socket.create_server(("127.0.0.1", 0), backlog=count)
        sock.sendall(struct.pack("!H", listener.getsockname()[1]))
        serve_crowd([listener.accept()[0] for _ in range(count)], threads, oneshot)
        return
    (port,) = struct.unpack("!H", read_exactly(sock, 2))
    others = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    busy, idle = others[0], others[1:]
    while sum(" rdma " in line for line in path_of(port)) < count * int(os.environ["LINES"]):
        for other in others:
            other.settimeout(30)
            warm(other, False)

    def let_others_idle():
        """The server sleeps before each of these messages."""
        for i in range(80):
            time.sleep(0.002)
            busy.sendall(b"%05d" % i)
            assert read_exactly(busy, 5) == b"%05d" % i

    for _ in range(2):
        let_others_idle()
        for i, other in enumerate(idle):
            other.sendall(b"%05d" % i)
            assert read_exactly(other, 5) == b"%05d" % i
    let_others_idle()
    # The server sends more than has room to connections that have been idle, and to one that it takes back to TCP.
    busy.sendall(b"send!")
    time.sleep(0.1)
    for other in idle:
        assert read_exactly(other, len(MUCH)) == MUCH
    assert read_exactly(busy, 5) == b"send!"
    let_others_idle()
    for i, other in enumerate(idle):
        if i % 2:
            other.close()
        else:
            other.shutdown(socket.SHUT_WR)
            assert other.recv(1) == b""
    busy.close()


def serve_crowd(others, threads, oneshot):
    """Answers messages of 5 bytes on all connections until each has ended."""
    kinds = [0, select.EPOLLET, select.EPOLLET | select.EPOLLOUT]
    poller = select.epoll()
    unsent = {}
    open_ones = {other.fileno(): other for other in others}
    wanted = {fd: select.EPOLLIN | kinds[i % 3] | oneshot for i, fd in enumerate(open_ones)}
    for fd, other in open_ones.items():
        other.setblocking(False)
        unsent[fd] = b""
        poller.register(fd, wanted[fd])

    def send(fd):
        try:
            while unsent[fd]:
                unsent[fd] = unsent[fd][open_ones[fd].send(unsent[fd][:50_000]) :]
        except BlockingIOError:
            pass

    def demote(other):
        try:
            other.recv(1, socket.MSG_TRUNC)
        except BlockingIOError:
            pass

    def send_to_all():
        for i, fd in enumerate(unsent):
            if fd != others[0].fileno():
                if i == 5:
                    demote(open_ones[fd])
                unsent[fd] += MUCH
                send(fd)
                if unsent[fd] and not wanted[fd] & select.EPOLLOUT:
                    poller.modify(fd, wanted[fd] | select.EPOLLOUT)

    def handle(fd, event):
        """Returns false at the end of the connection."""
        other = open_ones[fd]
        try:
            while event & ~select.EPOLLOUT:
                message = other.recv(5)
                if message == b"":
                    return False
                if message == b"send!":
                    send_to_all()
                unsent[fd] += message
                if not wanted[fd] & select.EPOLLET:
                    break
        except BlockingIOError:
            pass
        send(fd)
        if oneshot or not wanted[fd] & select.EPOLLOUT and event & select.EPOLLOUT:
            poller.modify(fd, wanted[fd] | (select.EPOLLOUT if unsent[fd] else 0))
        return True

    lock = threading.Lock()
    failures = []

    def work():
        end = time.monotonic() + 80
        while open_ones and time.monotonic() < end:
            for fd, event in poller.poll(1, 8):
                with lock:
                    if fd in open_ones and not handle(fd, event):
                        poller.unregister(fd)
                        open_ones.pop(fd).close()

    def work_or_fail():
        try:
            work()
        except BaseException as failure:
            failures.append(failure)
            raise

    workers = [threading.Thread(target=work_or_fail) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures and not open_ones, (failures, len(open_ones))


def echo_for_ever(listener):
    """Accepts connections one after the other, and sends 100,000 bytes of each back once RDMA carries it."""
    while True:
        other, _ = listener.accept()
        warm(other, True)
        while read_exactly(other, 1) == b"?":
            warm(other, True)
        other.sendall(read_exactly(other, 100_000))
        other.close()


def expect_echoes(port, count):
    """Opens connections one after the other to processes in `echo_for_ever`."""
    for _ in range(count):
        other = socket.create_connection(("127.0.0.1", port))
        warm(other, False)
        while not is_carried(port):
            other.sendall(b"?")
            warm(other, False)
        other.sendall(b"!" + PATTERN[:100_000])
        assert read_exactly(other, 100_000) == PATTERN[:100_000]
        other.close()


def closed_by(close, sock, is_server):
    """The server closes connections by `close`. Later connections get their descriptors."""
    if not is_server:
        (port,) = struct.unpack("!H", read_exactly(sock, 2))
        for _ in range(4):
            others = [socket.create_connection(("127.0.0.1", port)) for _ in range(6)]
            for other in others:
                warm(other, False)
            for other in others:
                try:
                    assert other.recv(1) == b""
                except ConnectionResetError:
                    # Nobody has taken the wake bytes before a close past the library.
                    assert close is close_by_instruction
                other.close()
        return sock.sendall(b".")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    sock.sendall(struct.pack("!H", port))
    for _ in range(4):
        others = [listener.accept()[0] for _ in range(6)]
        for other in others:
            warm(other, True)
        for other in others:
            assert close(other.detach()) == 0
    assert sock.recv(1) == b"."
    return port


def close_by_number(fd):
    """Closes a descriptor by `syscall(2)`, as libuv does."""
    number = {"x86_64": 3, "aarch64": 57}[os.uname().machine]
    return ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_long(fd))


def close_by_instruction(fd):
    """Closes a descriptor past the C library."""
    if os.uname().machine != "x86_64":
        return close_by_number(fd)
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # mov eax, 3; syscall; ret
    code.write(bytes.fromhex("b8030000000f05c3"))
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(address)(fd)


def numbered(sock, is_server):
    """Descriptors are closed by `syscall(SYS_close)`: their connections end."""
    port = closed_by(close_by_number, sock, is_server)
    end = time.monotonic() + 30
    while is_server and path_of(port):
        assert time.monotonic() < end, path_of(port)
        time.sleep(0.1)


def bypassed(sock, is_server):
    """Descriptors are closed past the library: later connections of their numbers bring their bytes."""
    closed_by(close_by_instruction, sock, is_server)


def narrow(sock, is_server):
    """A thread with a stack of 64 KiB makes the first connections of a process."""
    if is_server:
        listener = socket.create_server(("127.0.0.1", 0))
        sock.sendall(struct.pack("!H", listener.getsockname()[1]))
        for _ in range(3):
            other, _ = listener.accept()
            use_thoroughly(other, True)
        return
    (port,) = struct.unpack("!H", read_exactly(sock, 2))
    subprocess.run([sys.executable, __file__, "use-thoroughly", str(port)], timeout=60, check=True)


def use_by_small_thread(port):
    """The program of `narrow`."""
    threading.stack_size(64 << 10)
    done = queue.Queue()

    def use():
        for _ in range(3):
            use_thoroughly(socket.create_connection(("127.0.0.1", port)), False)
        done.put(True)

    threading.Thread(target=use, daemon=True).start()
    done.get(timeout=30)


def use_thoroughly(sock, is_server):
    """Moves a connection to RDMA, sends much to the client, and closes."""
    for _ in range(5):
        warm(sock, is_server)
    if is_server:
        sock.sendall(PATTERN[:300_000])
        with open(__file__, "rb") as file:
            text = file.read()
        assert read_exactly(sock, len(text)) == text
        assert sock.recv(1) == b""
    else:
        assert read_exactly(sock, 300_000) == PATTERN[:300_000]
        with open(__file__, "rb") as file:
            sock.sendfile(file)
    sock.close()


def dropped(sock, is_server):
    """The server, or a child of it, changes its user at a call of the first ones of a connection."""
    if not is_server:
        (port,) = struct.unpack("!H", read_exactly(sock, 2))
        for _ in range(2 * USER_CHANGES):
            other = socket.create_connection(("127.0.0.1", port))
            for _ in range(3):
                warm(other, False)
            other.close()
        return sock.sendall(b".")
    listener = socket.create_server(("127.0.0.1", 0))
    sock.sendall(struct.pack("!H", listener.getsockname()[1]))
    for i in range(2 * USER_CHANGES):
        process = os.fork()
        if process == 0:
            other, _ = listener.accept()
            child = os.fork() if i % 2 else 0
            if child == 0:
                warm_and_change_user(other, i // 2)
                os._exit(0)
            other.close()
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert os.waitpid(process, 0)[1] == 0, i
    assert sock.recv(1) == b"."


# Numbers of messages after which a server changes its user.
USER_CHANGES = 7


def warm_and_change_user(sock, change):
    """The server's end of three times `warm`, with the change before its answer to message `change`."""
    for i in range(60):
        assert read_exactly(sock, 5) == b"%05d" % (i % 20)
        if i == change:
            os.setgid(65534)
            os.setuid(65534)
        sock.sendall(b"%05d" % (i % 20))


def prefork(sock, is_server):
    """Children that were forked before accept connections of the parent's listener."""
    if is_server:
        listener = socket.create_server(("127.0.0.1", 0))
        children = []
        while len(children) < 2 and (child := os.fork()):
            children.append(child)
        if child == 0:
            echo_for_ever(listener)
        sock.sendall(struct.pack("!H", listener.getsockname()[1]))
        assert sock.recv(1) == b"."
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return
    (port,) = struct.unpack("!H", read_exactly(sock, 2))
    expect_echoes(port, 6)
    sock.sendall(b".")


def forked(sock, is_server):
    """The server hands the connection to a child that it forks."""
    if not is_server:
        sock.sendall(b"before")
        time.sleep(0.2)
        sock.sendall(b"after")
        assert read_exactly(sock, 12) == b"by the child"
        assert sock.recv(1) == b""
        return
    assert read_exactly(sock, 3) == b"bef"
    child = os.fork()
    if child == 0:
        assert read_exactly(sock, 8) == b"oreafter"
        sock.sendall(b"by the child")
        os._exit(0)
    sock.close()
    assert os.waitpid(child, 0)[1] == 0


def handed(sock, is_server):
    """The server hands the connection to a child while the client sends."""
    if not is_server:
        for i in range(3000):
            sock.sendall(b"%04d" % i)
        assert read_exactly(sock, 4) == b"done"
        return
    child = os.fork()
    if child == 0:
        for i in range(3000):
            got = read_exactly(sock, 4)
            assert got == b"%04d" % i, got
        sock.sendall(b"done")
        os._exit(0)
    sock.close()
    assert os.waitpid(child, 0)[1] == 0


def abandoned(sock, is_server):
    """The server's process ends at once after a fork, as a daemon's does, while the client sends to its child."""
    if not is_server:
        return handed(sock, is_server)
    if os.fork():
        os._exit(0)
    time.sleep(random.choice([0, 0.001, 0.01]))
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    for i in range(3000):
        assert poller.poll(20_000), f"no message {i}"
        got = read_exactly(sock, 4)
        assert got == b"%04d" % i, got
    sock.sendall(b"done")


def interrupted(sock, is_server):
    """The client forks while a thread of it sends. No child hangs, and the last one goes on with the connection."""
    if is_server:
        got = b""
        while not got.endswith(b"END"):
            got += sock.recv(1 << 20)
        count = int.from_bytes(got[-11:-3], "big")
        assert got[:-11] == b"x" * count, (len(got), count)
        return
    count, stops = [0], threading.Event()

    def send():
        while not stops.is_set():
            sock.sendall(b"x" * 2000)
            count[0] += 2000

    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(60):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            sock.close()
            with socket.socket(), select.epoll():
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "a child hangs"
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        sock.sendall(os.read(told, 8) + b"END")
        os._exit(0)
    stops.set()
    sender.join()
    os.write(tells, count[0].to_bytes(8, "big"))
    assert os.waitpid(child, 0)[1] == 0


def passed(sock, is_server):
    """The server sends, passes the descriptor on and ends at once. Its unread bytes go with the descriptor."""
    if not is_server:
        sock.sendall(b"beforeafter" + PATTERN[:100_000])
        assert read_exactly(sock, 15) == b"byeby the child"
        assert sock.recv(1) == b""
        return
    assert len(sock.recv(100_011, socket.MSG_PEEK | socket.MSG_WAITALL)) == 100_011
    assert read_exactly(sock, 3) == b"bef"
    ours, theirs = socket.socketpair()
    kept = [theirs.fileno(), SAYS[0]]
    subprocess.Popen([sys.executable, __file__, "take-over", *map(str, kept)], pass_fds=kept)
    sock.sendall(b"bye")
    descriptors = array.array("i", [sock.fileno()])
    ours.sendmsg([b"take"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    os._exit(0)


def ended(sock, is_server):
    """The same, where the unread bytes end with the process: both others learn of it."""
    if is_server:
        return passed(sock, is_server)
    sock.sendall(b"beforeafter" + PATTERN[:100_000])
    try:
        assert read_exactly(sock, 15) is None, "the bytes look received"
    except ConnectionResetError:
        pass


def take_over(fd, says):
    ours = socket.socket(fileno=int(fd))
    # The sender ends meanwhile.
    time.sleep(0.5)
    _, fds, _, _ = socket.recv_fds(ours, 10, 1)
    sock = socket.socket(fileno=fds[0])
    try:
        assert read_exactly(sock, 8) == b"oreafter"
    except ConnectionResetError:
        os.write(int(says), b"lost")
        return
    got = read_exactly(sock, 100_000)
    assert got == PATTERN[:100_000], "wrong bytes"
    sock.sendall(b"by the child")
    sock.close()
    os.write(int(says), b"well")


# The pipe by which a process of the server says that all went well.
SAYS = []


def shared(sock, is_server):
    """A parent and its child both send, and the parent receives."""
    count = 2000
    if not is_server:
        sender = threading.Thread(target=lambda: [sock.sendall(b"%08d" % i) for i in range(count)])
        sender.start()
        expected = {b"p": 0, b"c": 0}
        for _ in range(2 * count):
            got = read_exactly(sock, 8)
            assert int(got[1:]) == expected[got[:1]], (got, expected)
            expected[got[:1]] += 1
        sender.join()
        sock.sendall(b"end")
        return
    child = os.fork()
    name = b"p" if child else b"c"
    sender = threading.Thread(target=lambda: [sock.sendall(name + b"%07d" % i) for i in range(count)])
    sender.start()
    if child:
        for i in range(count):
            got = read_exactly(sock, 8)
            assert got == b"%08d" % i, got
    sender.join()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert read_exactly(sock, 3) == b"end"


def recycled(sock, is_server):
    """A child has a connection that its parent has closed. The parent's next connection must not get its memory."""
    if is_server:
        listener = socket.create_server(("127.0.0.1", 0))
        sock.sendall(struct.pack("!H", listener.getsockname()[1]))
        told, tells = os.pipe()
        child = os.fork()
        if child == 0:
            poller = select.poll()
            poller.register(sock, select.POLLIN)
            while not poller.poll(5):
                pass
            assert read_exactly(sock, 5) == b"child"
            sock.sendall(b"right")
            assert os.read(told, 1) == b"."
            os._exit(0)
        sock.close()
        other, _ = listener.accept()
        warm(other, True)
        while read_exactly(other, 1) == b"?":
            warm(other, True)
        assert read_exactly(other, 3000) == PATTERN[:3000]
        other.sendall(b"parent")
        os.write(tells, b".")
        assert os.waitpid(child, 0)[1] == 0
        return
    (port,) = struct.unpack("!H", read_exactly(sock, 2))
    other = socket.create_connection(("127.0.0.1", port))
    warm(other, False)
    while not is_carried(port):
        other.sendall(b"?")
        warm(other, False)
    other.sendall(b"!")
    for i in range(0, 3000, 10):
        other.sendall(PATTERN[i : i + 10])
    assert read_exactly(other, 6) == b"parent"
    sock.sendall(b"child")
    assert read_exactly(sock, 5) == b"right"


def inherited(sock, is_server):
    """The client sends and exits. The server passes the descriptor on and closes it, before anybody has read."""
    if not is_server:
        sock.sendall(PATTERN[:100_000])
        os._exit(0)
    # The end of the stream has arrived.
    poller = select.poll()
    poller.register(sock, select.POLLRDHUP)
    assert poller.poll(20_000)
    ours, theirs = socket.socketpair()
    program = [sys.executable, __file__, "take-late", str(theirs.fileno())]
    helper = subprocess.Popen(program, pass_fds=[theirs.fileno()])
    descriptors = array.array("i", [sock.fileno()])
    ours.sendmsg([b"take"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    sock.close()
    assert helper.wait(60) == 0


def take_late(fd):
    ours = socket.socket(fileno=int(fd))
    # The sender closes its descriptor meanwhile.
    time.sleep(0.5)
    _, fds, _, _ = socket.recv_fds(ours, 10, 1)
    sock = socket.socket(fileno=fds[0])
    got = read_exactly(sock, 100_000)
    assert got == PATTERN[:100_000], "wrong bytes"
    assert sock.recv(1) == b""


def whole(sock, is_server):
    """A send that blocks sends everything by one call, also if the connection goes back to TCP meanwhile."""
    if not is_server:
        assert sock.send(PATTERN) == len(PATTERN)
        return
    got = read_exactly(sock, 100_000)
    time.sleep(0.2)
    sock.shutdown(socket.SHUT_WR)
    assert got + read_exactly(sock, len(PATTERN) - len(got)) == PATTERN


def wrapped(sock, is_server):
    """The client's descriptor is closed by `fclose`, and a file gets its number."""
    if is_server:
        assert read_exactly(sock, 5) == b"hello"
        assert sock.recv(1) == b""
        return
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    number = sock.detach()
    stream = ctypes.c_void_p(libc.fdopen(number, b"w"))
    assert libc.fputs(b"hello", stream) >= 0 and libc.fclose(stream) == 0
    file = os.open("/dev/zero", os.O_RDONLY)
    assert file == number and os.read(file, 3) == bytes(3)


def signalled(sock, is_server):
    """A signal whose handler restarts calls does not end a send that waits for room."""
    if is_server:
        time.sleep(1)
        while part := sock.recv(100_000):
            last = part
        assert last.endswith(b"!")
        return
    sock.setblocking(False)
    try:
        while True:
            sock.send(b"x" * 10_000)
    except BlockingIOError:
        pass
    sock.setblocking(True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    libc = ctypes.CDLL(None, use_errno=True)
    sent = libc.send(sock.fileno(), b"y", 1, 0)
    assert sent == 1, os.strerror(ctypes.get_errno())
    # A handler that does not restart calls ends it.
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0, 0)
    sock.sendall(b"!")


def refused(sock, is_server):
    """The server resets the connection. The client's first call learns of the reset, also if it sends."""
    if is_server:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return
    poller = select.poll()
    poller.register(sock, select.POLLRDHUP)
    assert poller.poll(10_000)
    try:
        for _ in range(1000):
            sock.sendall(b"z")
        raise AssertionError("sends succeed")
    except ConnectionResetError:
        pass
    assert sock.recv(1) == b""


def uring(sock, is_server):
    """The system call for `io_uring` fails as on a kernel without it, and the connection goes on."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(ctypes.c_long(425), ctypes.c_long(8), ctypes.create_string_buffer(120)) == -1
    assert ctypes.get_errno() == errno.ENOSYS
    stream(sock, is_server)


def use_up_descriptors():
    """From here on no descriptor can be opened."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, most))


def reuseport(sock, is_server):
    """Two processes listen at one port by SO_REUSEPORT. The connections of both are carried."""
    if is_server:
        first = socket.create_server(("127.0.0.1", 0), reuse_port=True)
        port = first.getsockname()[1]
        child = os.fork()
        if child == 0:
            first.close()
            first = socket.create_server(("127.0.0.1", port), reuse_port=True)
            echo_for_ever(first)
        thread = threading.Thread(target=echo_for_ever, args=(first,), daemon=True)
        thread.start()
        time.sleep(0.1)
        sock.sendall(struct.pack("!H", port))
        assert sock.recv(1) == b"."
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return
    (port,) = struct.unpack("!H", read_exactly(sock, 2))
    expect_echoes(port, 8)
    sock.sendall(b".")


def exhausted():
    """Two processes without descriptors left for RDMA talk as by TCP."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    client = os.fork()
    if client == 0:
        listener.close()
        sock = socket.create_connection(("127.0.0.1", port))
        use_up_descriptors()
        talk(sock, False)
        os._exit(0)
    sock, _ = listener.accept()
    use_up_descriptors()
    talk(sock, True)
    assert os.waitstatus_to_exitcode(os.waitpid(client, 0)[1]) == 0


def watched(sock, is_server):
    """Threads wait in `poll` on connections that change to RDMA meanwhile, while others send."""
    if is_server:
        listener = socket.create_server(("127.0.0.1", 0))
        sock.sendall(struct.pack("!H", listener.getsockname()[1]))
        for _ in range(20):
            other, _ = listener.accept()
            for _ in range(20):
                assert read_exactly(other, 5) == b"small"
            other.sendall(b"first")
            time.sleep(0.02)
            other.sendall(b"next")
            assert read_exactly(other, 600_000) == PATTERN[:600_000]
            assert other.recv(1) == b""
            other.close()
        return
    (port,) = struct.unpack("!H", read_exactly(sock, 2))

    def take(other, wait, taken):
        got = b""
        while got != b"firstnext":
            assert wait(other), f"not woken after {got}"
            got += other.recv(100)
        taken.put(got)

    def by_poll(other):
        poller = select.poll()
        poller.register(other, select.POLLIN)
        return poller.poll(5_000)

    for i in range(20):
        other = socket.create_connection(("127.0.0.1", port))
        taken = queue.Queue()
        wait = by_poll if i % 2 else lambda one: select.select([one], [], [], 5)[0]
        threading.Thread(target=take, args=[other, wait, taken], daemon=True).start()
        time.sleep(0.01)
        for _ in range(20):
            other.sendall(b"small")
        other.sendall(PATTERN[:600_000])
        assert taken.get(timeout=20) == b"firstnext"
        other.close()


def rights(sock, is_server):
    """The server sends the descriptor to another process."""
    if not is_server:
        return forked(sock, is_server)
    assert read_exactly(sock, 3) == b"bef"
    ours, theirs = socket.socketpair()
    program = [sys.executable, __file__, "take", str(theirs.fileno())]
    helper = subprocess.Popen(program, pass_fds=[theirs.fileno()])
    descriptors = array.array("i", [sock.fileno()])
    ours.sendmsg([b"take"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    sock.close()
    assert helper.wait(60) == 0


def take(fd):
    ours = socket.socket(fileno=int(fd))
    _, fds, _, _ = socket.recv_fds(ours, 10, 1)
    serve_rest(socket.socket(fileno=fds[0]))


def executed(sock, is_server):
    """The server gives its process to another program, with the descriptor."""
    if not is_server:
        return forked(sock, is_server)
    got = read_exactly(sock, 3)
    assert got == b"bef", got
    os.set_inheritable(sock.fileno(), True)
    os.execv(sys.executable, [sys.executable, __file__, "rest", str(sock.fileno())])


def serve_rest(sock):
    assert read_exactly(sock, 8) == b"oreafter"
    sock.sendall(b"by the child")
    sock.close()


def overtaken(sock, is_server):
    """The ends move to RDMA, although the client's first thousand calls return before the server's first call."""


def overtake(sock, is_server):
    """What happens in `overtaken` before the connection is on RDMA."""
    if is_server:
        time.sleep(0.2)
        assert read_exactly(sock, 1000) == bytes(1000)
    else:
        for _ in range(1000):
            sock.sendall(b"\0")


def serve(sock, port, scenario):
    """The server's end of a connection: begins the scenario when the connection is on RDMA."""
    if scenario is overtaken:
        overtake(sock, True)
    warm(sock, True)
    while not is_carried(port):
        # The ends on two hosts find each other by datagrams, beside the bytes.
        sock.sendall(b"?")
        warm(sock, True)
    sock.sendall(b"!")
    scenario(sock, True)


def connect(sock, address, scenario):
    """The client's end of a connection."""
    sock.connect(address)
    if scenario is overtaken:
        overtake(sock, False)
    warm(sock, False)
    while read_exactly(sock, 1) == b"?":
        warm(sock, False)
    scenario(sock, False)
    sock.close()


def talk(sock, is_server):
    """Messages to and fro, for longer than the ends look for each other."""
    for _ in range(4):
        warm(sock, is_server)
        time.sleep(0.1)
    for i in range(2):
        if is_server == (i == 0):
            sock.sendall(PATTERN)
        else:
            assert read_exactly(sock, len(PATTERN)) == PATTERN


def tcp(has_library):
    """The connection stays on TCP, because the client has no library, or no packet arrives."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if has_library or k != "LD_PRELOAD"}
    client = subprocess.Popen([sys.executable, __file__, "talk", str(port)], env=environment)
    sock, _ = listener.accept()
    talk(sock, True)
    assert all(" tcp " in line for line in path_of(port)), path_of(port)
    assert client.wait(60) == 0


def run(scenario):
    family = socket.AF_INET6 if scenario is events else socket.AF_INET
    address = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    listener = socket.socket(family)
    listener.bind((address, 0))
    listener.listen()
    port = listener.getsockname()[1]
    client = os.fork()
    if client == 0:
        listener.close()
        connect(socket.socket(family), (address, port), scenario)
        os._exit(0)
    sock, _ = listener.accept()
    if scenario is executed:
        return run_executed(sock, port, client)
    if scenario in (abandoned, passed, ended):
        return run_abandoned(sock, port, client, scenario)
    serve(sock, port, scenario)
    sock.close()
    status = os.waitstatus_to_exitcode(os.waitpid(client, 0)[1])
    assert status == (-signal.SIGKILL if scenario in (killed, deaf, served, unheard_poll, unheard_epoll) else 0), status


def run_executed(sock, port, client):
    """The other program is this process: somebody else must wait for the client."""

    def watched(sock, is_server):
        watcher = os.fork()
        if watcher == 0:
            return executed(sock, is_server)
        sock.close()
        assert os.waitpid(watcher, 0)[1] == 0
        assert os.waitstatus_to_exitcode(os.waitpid(client, 0)[1]) == 0

    serve(sock, port, watched)


def run_abandoned(sock, port, client, scenario):
    """The server's process ends: another one says by a pipe that all went well."""
    said, says = os.pipe()
    SAYS.append(says)
    if os.fork() == 0:
        os.close(said)
        serve(sock, port, scenario)
        os.write(says, b"well")
        os._exit(0)
    os.close(says)
    sock.close()
    assert os.read(said, 4) == (b"lost" if scenario is ended else b"well")
    assert os.waitstatus_to_exitcode(os.waitpid(client, 0)[1]) == 0


if __name__ == "__main__":
    name = sys.argv[1]
    if name == "take":
        take(sys.argv[2])
    elif name == "take-over":
        take_over(sys.argv[2], sys.argv[3])
    elif name == "take-late":
        take_late(sys.argv[2])
    elif name == "rest":
        serve_rest(socket.socket(fileno=int(sys.argv[2])))
    elif name == "use-thoroughly":
        use_by_small_thread(int(sys.argv[2]))
    elif name == "talk":
        talk(socket.create_connection(("127.0.0.1", int(sys.argv[2]))), False)
    elif name in ("serve", "connect"):
        scenario, address = globals()[sys.argv[2]], (sys.argv[3], int(sys.argv[4]))
        if name == "connect":
            connect(socket.socket(), address, scenario)
        else:
            serve(socket.create_server(address).accept()[0], address[1], scenario)
        print("as TCP")
    else:
        if name == "exhausted":
            exhausted()
        elif name in ("unaided", "unreachable"):
            tcp(has_library=name == "unreachable")
        else:
            run(globals()[name])
        print("as TCP")
