"""Measures tensors between two processes beside pickles over TCP and beside torch.distributed with Gloo.

    python python/benchmarks/beside.py [--rounds N] [--json]

A client asks a server process for an array and gets it, again and again: `get` of verbatim.tensor into new memory and into a given
array; a pickled request and a pickled array over a TCP socket; a `send` of one number and a `recv` of the array with Gloo. Every
array that comes is checked. The ways take turns; figures are medians over all rounds. A plain copy of the array in one process
(`numpy.copyto`) is the limit. Gloo is left out where there is no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

#: Bytes of an array, and how often it is got in a round.
SIZES = {1 << 10: 2000, 1 << 20: 100, 64 << 20: 8}


def array(size: int) -> np.ndarray:
    """The array of so many bytes that all ways send."""
    return np.arange(size // 8, dtype=np.float64)


def serve_verbatim() -> None:
    from verbatim.tensor import Peer

    with Peer("127.0.0.1:0") as peer:
        for size in SIZES:
            peer.publish(str(size), array(size))
        print(peer.address, flush=True)
        sys.stdin.read()


def serve_pickle() -> None:
    arrays = {size: array(size) for size in SIZES}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
    with peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while request := receive(peer):
            send(peer, pickle.dumps(arrays[pickle.loads(request)], protocol=5))


def send(sock: socket.socket, data: bytes) -> None:
    sock.sendall(struct.pack("<Q", len(data)))
    sock.sendall(data)


def receive(sock: socket.socket) -> bytearray | None:
    head = sock.recv(8, socket.MSG_WAITALL)
    if len(head) < 8:
        return None
    data = bytearray(struct.unpack("<Q", head)[0])
    view, at = memoryview(data), 0
    while at < len(data):
        got = sock.recv_into(view[at:])
        if got == 0:
            return None
        at += got
    return data


def gloo(rank: int, port: str):
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    return dist


def serve_gloo() -> None:
    import torch

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    print(port, flush=True)
    dist = gloo(0, port)
    arrays = {size: torch.from_numpy(array(size)) for size in SIZES}
    request = torch.zeros(1, dtype=torch.int64)
    while True:
        dist.recv(request, 1)
        if int(request) == 0:
            return
        dist.send(arrays[int(request)], 1)


@contextmanager
def server(way: str) -> Iterator[str]:
    """A server process, and what it says first."""
    command = [sys.executable, __file__, "--serve", way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
            process.communicate(timeout=20)
        finally:
            process.kill()


def ways(stack) -> dict[str, Callable[[int], np.ndarray]]:
    """What gets an array of so many bytes, by each way."""
    from verbatim.tensor import Peer

    peer = stack.enter_context(Peer())
    remote = stack.enter_context(peer.connect(stack.enter_context(server("verbatim"))))
    outs = {size: np.zeros(size // 8) for size in SIZES}
    found: dict[str, Callable[[int], np.ndarray]] = {
        "verbatim": lambda size: remote.get(str(size)),
        "verbatim, out=": lambda size: remote.get(str(size), out=outs[size]),
    }
    port = stack.enter_context(server("pickle"))
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", int(port))))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pickled(size: int) -> np.ndarray:
        send(sock, pickle.dumps(size))
        return pickle.loads(receive(sock))

    found["pickle over TCP"] = pickled
    try:
        import torch
    except ImportError:
        return found
    dist = gloo(1, stack.enter_context(server("gloo")))
    tensors = {size: torch.zeros(size // 8, dtype=torch.float64) for size in SIZES}
    stack.callback(dist.send, torch.tensor([0]), 0)

    def by_gloo(size: int) -> np.ndarray:
        dist.send(torch.tensor([size]), 0)
        dist.recv(tensors[size], 0)
        return tensors[size].numpy()

    found["torch.distributed, Gloo"] = by_gloo
    return found


def measure(get: Callable[[int], np.ndarray], size: int, expected: np.ndarray) -> float:
    """Seconds that getting an array takes: the median of a round."""
    times = []
    for i in range(SIZES[size]):
        begun = time.perf_counter()
        got = get(size)
        times.append(time.perf_counter() - begun)
        # Small ones now and then, large ones each time.
        if size > 1 << 10 or i % 100 == 0:
            assert np.array_equal(got, expected), f"{size} bytes came wrong"
        del got
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=["verbatim", "pickle", "gloo"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        globals()[f"serve_{args.serve}"]()
        return
    from contextlib import ExitStack

    results: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        found = ways(stack)
        copies = {size: np.zeros(size // 8) for size in SIZES}
        expected = {size: array(size) for size in SIZES}

        def copied(size: int) -> np.ndarray:
            np.copyto(copies[size], expected[size])
            return copies[size]

        found["numpy.copyto, one process"] = copied
        for round_number in range(args.rounds + 1):
            for size in SIZES:
                for way, get in found.items():
                    seconds = measure(get, size, expected[size])
                    # The first round warms up.
                    if round_number > 0:
                        results.setdefault((way, size), []).append(seconds)
    for (way, size), seconds in results.items():
        median = statistics.median(seconds)
        spread = (min(seconds), max(seconds))
        if args.json:
            print(json.dumps({"way": way, "bytes": size, "seconds": median, "spread": spread, "rounds": args.rounds}))
        else:
            low, high = (1e6 * s for s in spread)
            print(f"{way:26} {size:>9} B  {1e6 * median:10.1f} us ({low:.1f}..{high:.1f})  {size / median / 1e9:7.2f} GB/s")


if __name__ == "__main__":
    main()
