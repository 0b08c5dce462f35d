"""Measures all-reduce of the torch.distributed backend verbatim beside Gloo.

    python3 python/benchmarks/all_reduce.py [--ranks N] [--rounds N] [--json]

Processes sum tensors of float32 over all ranks, again and again. The backends take turns in the same processes, so both meet the same
load of the machine. A round's figure is the median over its calls; of the rounds, median and spread are printed. Results are checked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

#: Bytes of a tensor, and how often it is reduced in a round.
SIZES = {1 << 10: 500, 64 << 10: 100, 1 << 20: 40, 64 << 20: 4}
BACKENDS = ("verbatim", "gloo")


def rank_of(rank: int, ranks: int, rounds: int, folder: str) -> None:
    """The work of a rank; rank 0 prints what it measured."""
    import torch
    import torch.distributed as dist

    import verbatim.torch  # noqa: F401 (registers the backend)

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    results: dict[tuple[str, int], list[float]] = {}
    for round_number in range(rounds + 1):
        for size, calls in SIZES.items():
            for backend, group in groups.items():
                seconds = measure(dist, torch.ones(size // 4), calls, group)
                # The first round warms up.
                if round_number > 0:
                    results.setdefault((backend, size), []).append(seconds)
    if rank == 0:
        rows = [(backend, size, seconds) for (backend, size), seconds in results.items()]
        print(json.dumps(rows))
    dist.barrier()


def measure(dist, tensor, calls: int, group) -> float:
    """Seconds that a call takes: the median."""
    times = []
    for _ in range(calls):
        tensor.fill_(1.0)
        dist.barrier(group)
        begun = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        times.append(time.perf_counter() - begun)
        ranks = float(dist.get_world_size())
        assert bool((tensor == ranks).all()), "the sum is wrong"
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        rank_of(args.rank, args.ranks, args.rounds, args.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--folder", folder, "--ranks", str(args.ranks), "--rounds", str(args.rounds)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        others = [subprocess.Popen([*command, "--rank", str(rank)], env=environment) for rank in range(1, args.ranks)]
        try:
            first = subprocess.run(
                [*command, "--rank", "0"], env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=220
            )
        finally:
            for other in others:
                other.terminate()
    for backend, size, seconds in json.loads(first.stdout):
        median, low, high = statistics.median(seconds), min(seconds), max(seconds)
        if args.json:
            print(json.dumps({"backend": backend, "bytes": size, "seconds": median, "spread": [low, high]}))
        else:
            low, high = 1e6 * low, 1e6 * high
            print(f"{backend:9} {size:>9} B  {1e6 * median:10.1f} us ({low:.1f}..{high:.1f})  {size / median / 1e9:6.2f} GB/s")


if __name__ == "__main__":
    main()
