"""Verbatim: a workbench for RDMA systems.

- `verbatim.tensor`: tensors between processes by key.
- `run`, `software_nic`: subprocesses on the software NIC.
- `ledger`, `explain`: what a program's verbs cost, and what to change.
- `simulate`: measurements of simulated clusters as columns.
- `command`: where the `verbatim` command is.
"""

from __future__ import annotations

from . import tensor
from ._command import command
from ._json import CommandError
from ._ledger import Advice, Explanation, Ledger, ProcessExplanation, explain, ledger
from ._simulate import Columns, simulate
from ._software_nic import run, software_nic

__all__ = [
    "Advice",
    "Columns",
    "CommandError",
    "Explanation",
    "Ledger",
    "ProcessExplanation",
    "command",
    "explain",
    "ledger",
    "run",
    "simulate",
    "software_nic",
    "tensor",
]
