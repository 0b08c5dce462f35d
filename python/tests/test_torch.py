"""The `torch.distributed` backend beside Gloo: the same programs, the same results.

Each test runs a program as several processes. They use `/usr/bin/python3`, for which the distribution has a package of torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PYTHON = "/usr/bin/python3"

HEAD = """
import os, signal, sys, time
import torch, torch.distributed as dist
import verbatim.torch
from datetime import timedelta

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def start(backend, timeout=60):
    # A file for each group: a TCP store that ends while another begins at its port is a race (torch 1.13).
    dist.init_process_group(
        backend, init_method=f"file://{os.environ['STORE']}/{backend}", rank=rank, world_size=size,
        timeout=timedelta(seconds=timeout))
"""


pytestmark = pytest.mark.skipif(
    not Path("/usr/share/doc/python3-torch").exists(), reason="needs the Debian package python3-torch"
)


def run(size: int, program: str, timeout: float = 90) -> list[tuple[int, str]]:
    """Runs a program as so many ranks: exit status and output of each."""
    with tempfile.TemporaryDirectory() as folder:
        return run_in(folder, size, program, timeout)


def run_in(folder: str, size: int, program: str, timeout: float) -> list[tuple[int, str]]:
    import verbatim

    # The package alone: the environment's numpy is not the one that the distribution's torch was built with.
    alone = Path(folder) / "site"
    alone.mkdir(exist_ok=True)
    if not (alone / "verbatim").exists():
        (alone / "verbatim").symlink_to(Path(verbatim.__file__).parent)
    environment = {
        **os.environ,
        "PYTHONPATH": str(alone),
        "STORE": folder,
        "WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
    }
    command = [PYTHON, "-c", HEAD + program]
    ranks = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=timeout)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    return [(process.returncode, output) for process, output in zip(ranks, said)]


def succeed(size: int, program: str) -> list[str]:
    results = run(size, program)
    assert all(status == 0 for status, _ in results), results
    return [output for _, output in results]


COLLECTIVES = """
def tensor(of, count, dtype):
    # Small whole numbers: sums and products are exact in any order.
    return (torch.arange(count) * 7 + of * 3).remainder(4).add(1).to(dtype)

def all_of(backend):
    start(backend)
    found = []
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    for count in [1, 1000, 100_003]:
        for dtype in [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8]:
            for op in ops:
                t = tensor(rank, count, dtype)
                dist.all_reduce(t, op)
                found.append(t)
        t = tensor(rank, count, torch.float16)
        dist.broadcast(t, size - 1)
        found.append(t)
        gathered = [torch.zeros(count, dtype=torch.int64) for _ in range(size)]
        dist.all_gather(gathered, tensor(rank, count, torch.int64))
        found.extend(gathered)
        t = torch.zeros(count)
        if rank == 0:
            dist.send(tensor(5, count, torch.float32), size - 1, tag=3)
        elif rank == size - 1:
            dist.recv(t, 0, tag=3)
        found.append(t)
        work = dist.all_reduce(tensor(rank, count, torch.float32), async_op=True)
        work.wait()
        found.extend(work.get_future().wait())
    dist.barrier()
    sub = dist.new_group([0, 1])
    if rank < 2:
        t = tensor(rank, 10, torch.float32)
        dist.all_reduce(t, group=sub)
        found.append(t)
    dist.barrier()
    dist.destroy_process_group()
    return found

ours, theirs = all_of("verbatim"), all_of("gloo")
assert len(ours) == len(theirs) > 60
for a, b in zip(ours, theirs):
    assert a.dtype == b.dtype and torch.equal(a, b), (a, b)
"""


@pytest.mark.parametrize("size", [2, 4])
def test_collectives_give_what_gloo_gives(size):
    succeed(size, COLLECTIVES)


ROUNDED = """
start("verbatim")

def inputs(count, dtype):
    return [torch.randn(count, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in range(size)]

two = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.PRODUCT: torch.mul,
       dist.ReduceOp.MIN: torch.minimum, dist.ReduceOp.MAX: torch.maximum}
for dtype in [torch.float16, torch.bfloat16]:
    for count in [5, 100_003]:
        for op, of_two in two.items():
            t = inputs(count, dtype)
            dist.all_reduce(t[rank], op)
            # Rounded after each operation, beginning with some rank and going around.
            orders = []
            for first in range(size):
                one = inputs(count, dtype)
                expected = one[first]
                for step in range(1, size):
                    expected = of_two(expected, one[(first + step) % size])
                orders.append(t[rank] == expected)
            assert torch.stack(orders).any(0).all(), (dtype, count, op)
"""


@pytest.mark.parametrize("size", [2, 3])
def test_numbers_of_16_bits_are_rounded_as_torch_does(size):
    succeed(size, ROUNDED)


WITHOUT_GLOO = """
start("verbatim")
inputs = [torch.full((to + 1, 2), 10.0 * rank + to) for to in range(size)]
outputs = [torch.zeros(rank + 1, 2) for _ in range(size)]
dist.all_to_all(outputs, inputs)
for source, output in enumerate(outputs):
    assert (output == 10.0 * source + rank).all(), outputs
out = torch.zeros(3 * size)
dist.all_to_all_single(out, torch.full((3 * size,), float(rank)))
assert torch.equal(out, torch.arange(size).repeat_interleave(3).float())
out = torch.zeros(size * (rank + 1), dtype=torch.int64)
splits = [to + 1 for to in range(size)]
dist.all_to_all_single(out, torch.full((sum(splits),), rank), [rank + 1] * size, splits)
assert torch.equal(out, torch.arange(size).repeat_interleave(rank + 1))
out = torch.zeros(5)
dist.reduce_scatter(out, [torch.full((5,), float(rank + to)) for to in range(size)])
assert (out == sum(other + rank for other in range(size))).all(), out
dist._reduce_scatter_base(out, torch.arange(5.0 * size))
assert torch.equal(out, size * torch.arange(5.0 * size)[5 * rank:5 * rank + 5])
whole = torch.zeros(4 * size)
whole[4 * rank:4 * rank + 4] = rank
dist._all_gather_base(whole, whole[4 * rank:4 * rank + 4])  # in place
assert torch.equal(whole, torch.arange(size).repeat_interleave(4).float())
# Both send first.
other = (rank + 1) % size, (rank - 1) % size
t = torch.zeros(500_000)
operations = [dist.P2POp(dist.isend, torch.full_like(t, rank), other[0]), dist.P2POp(dist.irecv, t, other[1])]
for work in dist.batch_isend_irecv(operations):
    work.wait()
assert (t == other[1]).all()
"""


@pytest.mark.parametrize("size", [2, 3])
def test_collectives_that_gloo_has_not(size):
    succeed(size, WITHOUT_GLOO)


REFUSED = """
start("verbatim")
def refused(call, text):
    try:
        call()
    except (ValueError, RuntimeError) as e:
        assert text in str(e), e
    else:
        raise AssertionError("it was accepted")
refused(lambda: dist.all_reduce(torch.zeros(4, 4).t()[1:]), "contiguous")
refused(lambda: dist.all_reduce(torch.zeros(4, dtype=torch.bool)), "cannot be reduced")
refused(lambda: dist.all_reduce(torch.zeros(4, dtype=torch.int32), dist.ReduceOp.BOR), "not supported")
refused(lambda: dist.all_reduce(torch.zeros(4, device="meta")), "host memory")
dist.barrier()
if rank == 0:
    work = dist.barrier(async_op=True)
    try:
        work.wait(timedelta(seconds=0.1))
    except TimeoutError:
        time.sleep(0.1)
    else:
        raise AssertionError("the other rank sleeps")
    work.wait()
else:
    time.sleep(2)
    dist.barrier()
"""


def test_what_cannot_be_done_is_refused_and_waiting_has_a_timeout():
    succeed(2, REFUSED)


DIFFERENT = """
start("verbatim")
dtype = [torch.float32, torch.int32][rank]
t = torch.ones({count}, dtype=dtype)
try:
    dist.{call}
except (ValueError, ConnectionError) as e:
    print(e)
else:
    raise AssertionError(f"float32 and int32 were reduced to {{t[:3]}}")
"""


@pytest.mark.parametrize("count", [10, 1_000_000])
@pytest.mark.parametrize("call", ["all_reduce(t)", "reduce_scatter(t, [t.clone(), t.clone()])"])
def test_element_types_that_differ_are_an_error_on_all_ranks(count, call):
    outputs = succeed(2, DIFFERENT.format(count=count, call=call))
    # The rank that notices first closes its connections.
    assert any("f32" in said and "i32" in said for said in outputs), outputs


DDP = """
from torch.nn.parallel import DistributedDataParallel

def train(backend):
    start(backend)
    torch.manual_seed(rank)  # DDP makes all ranks begin with those of rank 0
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 300), torch.nn.BatchNorm1d(300), torch.nn.ReLU(), torch.nn.Linear(300, 200), torch.nn.Linear(200, 3))
    model = DistributedDataParallel(model, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)
    for _ in range(10):
        x = torch.randn(16, 20, generator=data)
        loss = torch.nn.functional.mse_loss(model(x), x[:, :3])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    every = [torch.zeros_like(weights) for _ in range(size)]
    dist.all_gather(every, weights)
    assert all(torch.equal(one, weights) for one in every), "ranks have different weights"
    dist.destroy_process_group()
    return weights, float(loss)

(ours, loss), (theirs, _) = train("verbatim"), train("gloo")
print(loss, float((ours - theirs).abs().max()))
# A sum of two is the same in any order; more are rounded in the order in which they are added.
if size == 2:
    assert torch.equal(ours, theirs)
else:
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
"""


@pytest.mark.parametrize("size", [2, 4])
def test_a_model_trains_to_the_weights_of_gloo(size):
    succeed(size, DDP)


KILLED = """
from torch.nn.parallel import DistributedDataParallel

start("verbatim", 80)
model = DistributedDataParallel(torch.nn.Linear(500, 500))
begun = time.monotonic()
for step in range(1_000_000):
    if rank == 1 and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        {what}
    except ({errors}) as e:
        print("failed:", type(e).__name__, e)
        break
assert step >= 5 and time.monotonic() - begun < 40
# A group that has failed stays so.
try:
    dist.all_reduce(torch.zeros(3))
except (ConnectionError, RuntimeError):
    print("still")
"""


@pytest.mark.parametrize(
    ("what", "errors"),
    [
        ("dist.all_reduce(torch.zeros(1 << 20))", "ConnectionError"),
        ("dist.all_reduce(torch.zeros(1))", "ConnectionError"),
        ("model(torch.randn(8, 500)).sum().backward()", "RuntimeError"),
    ],
)
def test_a_killed_rank_is_an_exception(what, errors):
    results = run(4, KILLED.replace("{what}", what).replace("{errors}", errors))
    assert results[1][0] == -9
    for rank in (0, 2, 3):
        status, output = results[rank]
        assert status == 0 and "failed:" in output and "still" in output, results


LEAVES = """
start("verbatim", 20)
if rank == 0:
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    message = dist.irecv(torch.ones(5), 1)
else:
    time.sleep(1)
    try:
        dist.all_reduce(torch.ones(1 << 20))
    except ConnectionError:
        print("gone")
"""


def test_a_rank_may_end_while_something_is_under_way():
    results = run(2, LEAVES)
    assert [status for status, _ in results] == [0, 0], results


TENSORS = """
from verbatim.tensor import Peer

with Peer("127.0.0.1:0") as sender, Peer() as receiver:
    remote = receiver.connect(sender.address)
    for dtype in [torch.float32, torch.int64, torch.bfloat16]:
        source = torch.arange(1000).to(dtype)
        sender.publish("x", source)
        out = torch.zeros(1000, dtype=dtype)
        assert remote.get("x", out=out) is out
        assert torch.equal(out, source), dtype
"""


def test_tensors_are_sent_from_and_received_into():
    succeed(1, TENSORS)


def test_it_needs_torch_only_when_it_is_imported():
    done = subprocess.run([sys.executable, "-c", "import verbatim"], timeout=60)
    assert done.returncode == 0
