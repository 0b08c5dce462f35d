"""Calls functions of another process by torch.distributed.rpc, over TensorPipe's InfiniBand transport, and checks the tensors.

tensorpipe_rpc.py RANK PORT sync|async|remote: rank 1 calls rank 0, which listens at PORT.
"""

import sys

import torch
import torch.distributed.rpc as rpc

LENGTHS = [0, 1, 1000, 1 << 18, 1 << 20]


def transform(tensor):
    return tensor * 2 + 1


def call(way, tensor):
    if way == "sync":
        return rpc.rpc_sync("rank0", transform, args=(tensor,))
    if way == "async":
        return rpc.rpc_async("rank0", transform, args=(tensor,)).wait()
    return rpc.remote("rank0", transform, args=(tensor,)).to_here()


rank, port, way = int(sys.argv[1]), sys.argv[2], sys.argv[3]
options = rpc.TensorPipeRpcBackendOptions(
    init_method=f"tcp://127.0.0.1:{port}",
    rpc_timeout=50,
    _transports=["ibv"],
    _channels=["basic"],
)
rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2, rpc_backend_options=options)
if rank == 1:
    for length in LENGTHS:
        for start in range(4):
            tensor = torch.arange(start, start + length, dtype=torch.float32)
            assert torch.equal(call(way, tensor), transform(tensor))
    print(f"{4 * len(LENGTHS)} tensors came back")
rpc.shutdown()
