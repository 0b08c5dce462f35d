"""Moves data between two processes by Mooncake's transfer engine, and checks it.

mooncake_transfer.py server|client DEVICE PORT: the two exchange addresses by TCP at PORT.
"""

import ctypes
import socket
import sys

from mooncake.engine import TransferEngine

SIZE = 4 << 20
PIECE = 1 << 16


def pattern(factor):
    return bytes(i * factor & 255 for i in range(SIZE))


def open_engine(device):
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", device) == 0
    memory = ctypes.create_string_buffer(SIZE)
    address = ctypes.addressof(memory)
    assert engine.register_memory(address, SIZE) == 0
    return engine, memory, address


def serve(device, port):
    engine, memory, address = open_engine(device)
    with socket.create_server(("127.0.0.1", port)) as listener:
        stream = listener.accept()[0].makefile("rw", buffering=1)
    print(f"127.0.0.1:{engine.get_rpc_port()}", address, file=stream)
    assert stream.readline() == "written\n"
    assert memory.raw == pattern(7), "the client's data did not arrive"
    memory.raw = pattern(11)
    print("changed", file=stream)
    assert stream.readline() == "read\n"


def ask(device, port):
    engine, memory, address = open_engine(device)
    stream = socket.create_connection(("127.0.0.1", port)).makefile("rw", buffering=1)
    peer, remote = stream.readline().split()
    remote = int(remote)
    memory.raw = pattern(7)
    assert engine.transfer_sync_write(peer, address, remote, SIZE) == 0
    print("written", file=stream)
    assert stream.readline() == "changed\n"
    pieces = range(0, SIZE, PIECE)
    local = [address + at for at in pieces]
    there = [remote + at for at in pieces]
    sizes = [PIECE] * len(local)
    assert engine.batch_transfer_sync_read(peer, local, there, sizes) == 0
    assert memory.raw == pattern(11), "the server's data did not arrive"
    print("read", file=stream)
    print(f"moved {2 * SIZE} bytes")


role, device, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
(serve if role == "server" else ask)(device, port)
