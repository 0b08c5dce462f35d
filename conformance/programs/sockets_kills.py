"""One side of a connection is killed at a random moment, many times; the other sees what TCP shows: what was sent without a
gap, then the end or a reset, and never a wrong byte or a hang. sockets_kills.py ROUNDS"""

import os
import random
import signal
import socket
import sys
import time

numbers = random.Random(20261126)
pattern = bytes(range(251)) * 4000


def send_for_ever(sock, seed):
    own = random.Random(seed)
    sent = 0
    while True:
        sent += sock.send(pattern[sent % 251 :][: own.choice([1, 30, 900, 20_000, 300_000])])


def receive_to_the_end(sock, seed):
    own = random.Random(seed)
    got = 0
    sock.settimeout(30)
    try:
        while part := sock.recv(own.choice([1, 50, 4000, 200_000])):
            assert part == pattern[got % 251 :][: len(part)], f"wrong bytes after {got}"
            got += len(part)
    except ConnectionResetError:
        pass
    return got


def connected():
    """Both ends of a new connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    listener.close()
    return near, far


def one(number):
    near, far = connected()
    # The sender is killed: all that arrives is a prefix.
    sender = os.fork()
    if sender == 0:
        far.close()
        greet(near, True)
        try:
            send_for_ever(near, number)
        finally:
            os._exit(1)
    near.close()
    greet(far, False)
    delay = numbers.choice([0, 0.0005, 0.003, 0.02, 0.08])
    killer = os.fork()
    if killer == 0:
        time.sleep(delay)
        os.kill(sender, signal.SIGKILL)
        os._exit(0)
    got = receive_to_the_end(far, number)
    far.close()
    for pid in (sender, killer):
        os.waitpid(pid, 0)

    # The receiver is killed: the sender gets an error.
    near, far = connected()
    sender = os.fork()
    if sender == 0:
        far.close()
        signal.alarm(40)
        greet(near, True)
        try:
            send_for_ever(near, number)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
        os._exit(1)
    greeted, has_greeted = os.pipe()
    receiver = os.fork()
    if receiver == 0:
        near.close()
        greet(far, False)
        os.write(has_greeted, b"!")
        receive_to_the_end(far, number)
        os._exit(0)
    near.close()
    far.close()
    os.read(greeted, 1)
    os.close(greeted)
    os.close(has_greeted)
    time.sleep(delay)
    os.kill(receiver, signal.SIGKILL)
    os.waitpid(receiver, 0)
    status = os.waitpid(sender, 0)[1]
    assert status == 0, f"the sender ended with {status}"
    return got


def greet(sock, is_first):
    """Messages to and fro, until both ends have moved to RDMA."""
    for i in range(12):
        if is_first:
            sock.sendall(b"hello")
            assert sock.recv(5, socket.MSG_WAITALL) == b"hello"
        else:
            assert sock.recv(5, socket.MSG_WAITALL) == b"hello"
            sock.sendall(b"hello")


total = sum(one(number) for number in range(int(sys.argv[1])))
assert total > 0
print(f"{sys.argv[1]} rounds, {total} bytes before the kills")
