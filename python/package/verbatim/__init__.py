"""Verbatim: a workbench for RDMA systems.

- `verbatim.tensor`: tensors between processes by key.
- `run`, `software_nic`: subprocesses on the software NIC.
"""

from __future__ import annotations

from . import tensor
from ._command import command

__all__ = ["command", "tensor"]
