"""A `torch.distributed` backend, `verbatim`: collectives of processes over RDMA, or over the software NIC.

Importing this module registers the backend::

    import torch.distributed as dist
    import verbatim.torch
    dist.init_process_group("verbatim", ...)

It has broadcast, all_reduce, all_gather, reduce_scatter, all_to_all, send, recv and barrier of contiguous tensors in host memory.
Collectives of a group run in their order, in a thread of the group. `DistributedDataParallel` works on it.

The environment variables `VERBATIM_PROVIDER` (`softnic`, the default, or `system`) and `VERBATIM_TORCH_DEVICE` choose the NIC.

*Errors*: `wait` raises `ConnectionError` (a rank has gone), `TimeoutError`, `ValueError` (element types, reductions or collectives of ranks
differ), `RuntimeError` (sizes differ). After an error of a collective the
group is closed: the other ranks get an error as well, and every later collective fails. `DistributedDataParallel` waits for collectives
in C++. There the all-reduce of gradients raises `RuntimeError`.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from . import _native

__all__ = ["ProcessGroupVerbatim"]

#: Element types that can be reduced, by the native part's names.
_DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
}
#: Reductions, by the native part's names.
_OPS = {c10d.ReduceOp.SUM: "sum", c10d.ReduceOp.PRODUCT: "prod", c10d.ReduceOp.MIN: "min", c10d.ReduceOp.MAX: "max"}

#: What was begun for works of this backend, and the seconds that waiting for it may take.
_tasks: weakref.WeakKeyDictionary[Any, tuple[Any, float]] = weakref.WeakKeyDictionary()
_wait_of_torch = c10d.Work.wait


def _wait(work: Any, timeout: timedelta | None = None) -> bool:
    """`Work.wait` for works of all backends.

    A work that is made of a future swallows errors and refuses timeouts (torch 1.13), so works of this backend wait for the native task.
    """
    if work not in _tasks:
        return _wait_of_torch(work) if timeout is None else _wait_of_torch(work, timeout)
    task, seconds = _tasks[work]
    if timeout is not None and timeout > timedelta(0):
        seconds = timeout.total_seconds()
    if not task.wait(seconds):
        raise TimeoutError(f"the operation is not done after {seconds:g} s")
    return True


c10d.Work.wait = _wait


def _memory(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor; refuses what is not contiguous in host memory."""
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor is on {tensor.device}: the backend verbatim takes tensors in host memory; call .cpu()")
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise ValueError("a tensor is not contiguous: call .contiguous()")
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def _kind(tensor: torch.Tensor) -> str:
    """The name of an element type that can be reduced."""
    if tensor.dtype not in _DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise ValueError(f"elements of {tensor.dtype} cannot be reduced: only {known}")
    return _DTYPES[tensor.dtype]


def _reduction(opts: Any) -> str:
    for op, name in _OPS.items():
        if opts.reduceOp == op:
            return name
    raise ValueError("this reduction is not supported: only SUM, PRODUCT, MIN and MAX")


def _one(tensors: Sequence[Any]) -> Any:
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} tensors were given: the backend verbatim takes one a rank")
    return tensors[0]


def _split(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[np.ndarray]:
    """Parts of a tensor along its first dimension, equal ones unless sizes are given."""
    rows = tensor.shape[0] if tensor.dim() > 0 else 1
    if not sizes and rows % ranks:
        raise ValueError(f"{rows} rows cannot be divided among {ranks} ranks")
    sizes = list(sizes) or [rows // ranks] * ranks
    if sum(sizes) != rows:
        raise ValueError(f"splits of {sum(sizes)} rows for a tensor of {rows}")
    memory, row = _memory(tensor), tensor.numel() * tensor.element_size() // max(rows, 1)
    return np.split(memory, np.cumsum(np.array(sizes) * row)[:-1])


class ProcessGroupVerbatim(c10d.ProcessGroup):
    """A group of processes whose collectives run over RDMA."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._timeout = timeout.total_seconds()
        provider = os.environ.get("VERBATIM_PROVIDER", "softnic")
        device = os.environ.get("VERBATIM_TORCH_DEVICE")
        listener = _native.GroupListener(rank, size, _own_address(), provider, device)
        store.set(f"verbatim/{rank}", bytes(listener.address).hex())
        addresses = [bytes.fromhex(store.get(f"verbatim/{peer}").decode()) for peer in range(size)]
        self._native = listener.connect(addresses, self._timeout)

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """The backend's name."""
        return "verbatim"

    def _begin(self, result: Any, begin: Callable[..., Any], *arguments: Any) -> Any:
        """Begins something; a work whose future has `result` once it is done."""
        base = torch.futures.Future()

        def outcome(ended: Any) -> Any:
            # An exception that is raised here is an error of the future, which C++ sees as well.
            error = ended.value()
            if error is not None:
                raise error
            return result

        work = c10d._create_work_from_future(base.then(outcome))
        _tasks[work] = (begin(*arguments, base.set_result), self._timeout)
        return work

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Reduces a tensor over all ranks, in place."""
        tensor = _one(tensors)
        return self._begin(tensors, self._native.all_reduce, _memory(tensor), _kind(tensor), _reduction(opts))

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Copies a tensor of one rank to all ranks."""
        return self._begin(tensors, self._native.broadcast, _memory(_one(tensors)), opts.rootRank)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        """Copies a tensor of each rank to all ranks."""
        into = [_memory(output) for output in _one(outputs)]
        return self._begin(outputs, self._native.all_gather, _memory(_one(inputs)), into)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        into = np.split(_memory(output), self.size())
        return self._begin([output], self._native.all_gather, _memory(tensor), into)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        """Reduces a tensor for each rank over all ranks."""
        output, parts = _one(outputs), [_memory(tensor) for tensor in _one(inputs)]
        begin = self._native.reduce_scatter
        return self._begin(outputs, begin, parts, _memory(output), _kind(output), _reduction(opts))

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Any:
        parts, begin = np.split(_memory(tensor), self.size()), self._native.reduce_scatter
        return self._begin([output], begin, parts, _memory(output), _kind(output), _reduction(opts))

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        """Copies a tensor for each rank there."""
        parts, into = ([_memory(tensor) for tensor in tensors] for tensors in (inputs, outputs))
        return self._begin(outputs, self._native.all_to_all, parts, into)

    def alltoall_base(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> Any:
        """Copies a part of a tensor for each rank there."""
        parts, into = _split(tensor, input_sizes, self.size()), _split(output, output_sizes, self.size())
        return self._begin([output], self._native.all_to_all, parts, into)

    def barrier(self, opts: Any = None) -> Any:
        """Waits for all ranks."""
        return self._begin([], self._native.barrier)

    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> Any:
        """Sends a tensor. Those of a pair of ranks match in their order, and have equal tags and sizes."""
        return self._begin(tensors, self._native.send, _memory(_one(tensors)), to, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        """Receives a tensor."""
        return self._begin(tensors, self._native.recv, _memory(_one(tensors)), source, tag)


def _own_address() -> str:
    """The address of this host by which it reaches the store; a loopback address if nothing is said of that."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, kind, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        # It sends nothing: the kernel only chooses a route.
        probe.connect(address)
        return probe.getsockname()[0]


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> ProcessGroupVerbatim:
    return ProcessGroupVerbatim(store, rank, size, timeout)


dist.Backend.register_backend("verbatim", _create)
