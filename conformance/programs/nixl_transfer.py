"""Moves data between two processes by NIXL with its backend UCX, and checks it.

nixl_transfer.py FOLDER server|client DEVICE PORT: FOLDER has the wheel, and the two exchange metadata by TCP at PORT.
"""

import base64
import ctypes
import os
import socket
import sys

# Python is the program that `verbatim run` starts, so that the drop-in replaces the libibverbs in the wheel.
folder, role, device, port = sys.argv[1:]
sys.path.insert(0, folder)
os.environ["UCX_TLS"] = "rc_verbs,ud_verbs"
os.environ["UCX_NET_DEVICES"] = f"{device}:1"

from nixl_cu12._api import nixl_agent, nixl_agent_config  # noqa: E402

SIZE = 4 << 20


def pattern(factor):
    return bytes(i * factor & 255 for i in range(SIZE))


def open_agent(name):
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    memory = ctypes.create_string_buffer(SIZE)
    address = ctypes.addressof(memory)
    assert agent.register_memory([(address, SIZE, 0, "")], "DRAM")
    return agent, memory, address


def move(agent, peer, operation, local, remote):
    mine = agent.get_xfer_descs([(local, SIZE, 0)], "DRAM")
    theirs = agent.get_xfer_descs([(remote, SIZE, 0)], "DRAM")
    transfer = agent.initialize_xfer(operation, mine, theirs, peer)
    state = agent.transfer(transfer)
    while state == "PROC":
        state = agent.check_xfer_state(transfer)
    assert state == "DONE", state
    agent.release_xfer_handle(transfer)


def serve(port):
    agent, memory, address = open_agent("server")
    with socket.create_server(("127.0.0.1", port)) as listener:
        stream = listener.accept()[0].makefile("rw", buffering=1)
    print(base64.b64encode(agent.get_agent_metadata()).decode(), address, file=stream)
    assert stream.readline() == "written\n"
    assert memory.raw == pattern(7), "the client's data did not arrive"
    memory.raw = pattern(11)
    print("changed", file=stream)
    assert stream.readline() == "read\n"


def ask(port):
    agent, memory, address = open_agent("client")
    stream = socket.create_connection(("127.0.0.1", port)).makefile("rw", buffering=1)
    metadata, remote = stream.readline().split()
    peer = agent.add_remote_agent(base64.b64decode(metadata))
    memory.raw = pattern(7)
    move(agent, peer, "WRITE", address, int(remote))
    print("written", file=stream)
    assert stream.readline() == "changed\n"
    move(agent, peer, "READ", address, int(remote))
    assert memory.raw == pattern(11), "the server's data did not arrive"
    print("read", file=stream)
    print(f"moved {2 * SIZE} bytes")


(serve if role == "server" else ask)(int(port))
