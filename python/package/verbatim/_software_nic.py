"""Programs on the software NIC."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ._command import COMMAND, command

__all__ = ["run", "software_nic"]

Program = Sequence[str | os.PathLike[str]]


def run(
    program: Program,
    *,
    nic: str | None = None,
    fabric: str | None = None,
    link_layer: str | None = None,
    ledger: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
    faults: Sequence[str] = (),
    options: Sequence[str] = (),
    **more: Any,
) -> subprocess.CompletedProcess[Any]:
    """Runs a program that uses the verbs, unmodified, on the software NIC (`verbatim run`).

    Args:
        program: the program and its arguments.
        nic: what the device says that it is, such as `cx3` or `cib`.
        fabric: only programs that were run with this name reach each other.
        link_layer: `ib` or `roce`.
        ledger: a file for what the program's verbs cost (`verbatim.explain`).
        trace: a file with a line a verb.
        faults: rules by which verbs fail, such as `verb=ibv_reg_mr,errno=ENOMEM,count=1`.
        options: more options of `verbatim run`.
        more: arguments of `subprocess.run`, such as `capture_output`, `text`, `timeout`, `check`.

    Returns:
        As `subprocess.run`; the exit status is the program's, or 2 if it could not be run.
    """
    return subprocess.run(_command_line(program, nic, fabric, link_layer, ledger, trace, faults, options), **more)


def _command_line(
    program: Program,
    nic: str | None,
    fabric: str | None,
    link_layer: str | None,
    ledger: str | os.PathLike[str] | None,
    trace: str | os.PathLike[str] | None,
    faults: Sequence[str],
    options: Sequence[str],
) -> list[str]:
    """The command and its arguments."""
    given = {"--nic": nic, "--fabric": fabric, "--link-layer": link_layer, "--ledger": ledger, "--trace": trace}
    line = [command(), "run", *options]
    for option, value in given.items():
        if value is not None:
            line += [option, os.fspath(value)]
    for rule in faults:
        line += ["--fault", rule]
    return [*line, "--", *map(os.fspath, program)]


@contextmanager
def software_nic(*, fabric: str | None = None) -> Iterator[Mapping[str, str]]:
    """While it lasts, subprocesses find the software NIC: their `libibverbs.so.1` and `librdmacm.so.1` are Verbatim's.

    It changes `os.environ`, which subprocesses inherit, and gives the variables that it sets. Programs that look for devices in
    `/sys`, as UCX does, need `run`.

    Args:
        fabric: only programs that were started with this name reach each other.
    """
    folder = COMMAND.parent.parent / "lib" / "verbatim"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there: install a wheel that `cargo xtask wheel` has built")
    before = os.environ.get("LD_LIBRARY_PATH")
    variables = {"LD_LIBRARY_PATH": f"{folder}:{before}" if before else str(folder)}
    if fabric is not None:
        variables["VERBATIM_FABRIC"] = fabric
    old = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield variables
    finally:
        for name, value in old.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
