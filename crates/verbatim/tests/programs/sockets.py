"""Two processes on one TCP connection, as unmodified programs use it: `sockets.py SCENARIO`, where STAT is the command that
prints the connections. Ends with status 0 if everything came as TCP brings it."""

import array
import os
import random
import select
import shlex
import signal
import socket
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
    assert len(lines) == 2 and all(" rdma " in line for line in lines), lines


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


def refuses(sock):
    """The peer is gone: sends fail in the end."""
    end = time.monotonic() + 30
    try:
        while time.monotonic() < end:
            sock.sendall(b"y" * 1000)
    except (BrokenPipeError, ConnectionResetError):
        return
    raise AssertionError("sends to a dead peer succeed")


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
    assert read_exactly(sock, 3) == b"bef"
    os.set_inheritable(sock.fileno(), True)
    os.execv(sys.executable, [sys.executable, __file__, "rest", str(sock.fileno())])


def serve_rest(sock):
    assert read_exactly(sock, 8) == b"oreafter"
    sock.sendall(b"by the child")
    sock.close()


def run(scenario):
    family = socket.AF_INET6 if scenario is events else socket.AF_INET
    listener = socket.socket(family)
    listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    client = os.fork()
    if client == 0:
        listener.close()
        sock = socket.socket(family)
        sock.connect(("::1" if family == socket.AF_INET6 else "127.0.0.1", port))
        warm(sock, False)
        if read_exactly(sock, 1) == b"!":
            scenario(sock, False)
        sock.close()
        os._exit(0)
    sock, _ = listener.accept()
    warm(sock, True)
    is_carried(port)
    sock.sendall(b"!")
    if scenario is executed:
        # The other program is this process: the client must be waited for by somebody else.
        watcher = os.fork()
        if watcher != 0:
            sock.close()
            assert os.waitpid(watcher, 0)[1] == 0
            assert os.waitstatus_to_exitcode(os.waitpid(client, 0)[1]) == 0
            return
    scenario(sock, True)
    sock.close()
    status = os.waitstatus_to_exitcode(os.waitpid(client, 0)[1])
    assert status == (-signal.SIGKILL if scenario in (killed, deaf) else 0), status


if __name__ == "__main__":
    name = sys.argv[1]
    if name == "take":
        take(sys.argv[2])
    elif name == "rest":
        serve_rest(socket.socket(fileno=int(sys.argv[2])))
    else:
        run(globals()[name])
        print("as TCP")
