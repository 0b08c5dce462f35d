"""What a program's verbs cost, and what to change."""

from __future__ import annotations

import html
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _json
from ._software_nic import Program, run

__all__ = ["Advice", "Explanation", "Ledger", "ProcessExplanation", "explain", "ledger"]


@dataclass(frozen=True)
class Ledger:
    """What the processes of a program did with the verbs, counted."""

    #: The command that was run.
    command: str
    #: The NIC that it ran on: `softnic` or `system`.
    provider: str
    #: Each process, as `verbatim run --ledger` writes it.
    processes: list[dict[str, Any]]
    #: What is to be known of it.
    notes: list[str]
    #: The whole document.
    document: dict[str, Any] = field(repr=False)

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> "Ledger":
        """Reads what `verbatim run --ledger` has written."""
        document = json.loads(Path(file).read_text())
        if document.get("format") != "verbatim ledger":
            raise ValueError(f"{os.fspath(file)} is no ledger of Verbatim")
        return cls(document["command"], document["provider"], document["processes"], document["notes"], document)

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes it for `verbatim explain`."""
        Path(file).write_text(json.dumps(self.document))

    def explain(self, nic: str = "cib") -> "Explanation":
        """As `verbatim.explain`."""
        return explain(self, nic)

    def _repr_html_(self) -> str:
        rows = [(p["program"], p["pid"], len(p["queue_pairs"]), len(p["threads"]), p["peers"]) for p in self.processes]
        return f"<p><code>{html.escape(self.command)}</code></p>" + _table(
            ("process", "pid", "queue pairs", "threads", "peers"), rows
        )


@dataclass(frozen=True)
class Advice:
    """A guideline that a process breaks."""

    #: Its name, such as `doorbell-batching`.
    guideline: str
    #: Where it is from.
    section: str
    #: What was seen.
    seen: str
    #: What to change.
    advice: str
    #: The rate now and then, in 10^6 operations a second, as the model has it; `None` where it says nothing.
    now_mops: float | None
    then_mops: float | None
    #: Largest relative gain that is within the noise of the model; `None` where it says nothing.
    noise: float | None = None


@dataclass(frozen=True)
class ProcessExplanation:
    """What a process's verbs cost on a NIC."""

    program: str
    pid: int
    #: Work requests.
    posted: int
    received: int
    queue_pairs: int
    #: What the NIC's resources allow, in 10^6 operations a second.
    predicted_mops: float | None
    #: The resource that allows the least.
    bottleneck: str | None
    #: Each kind of operation: its count and what it costs.
    kinds: list[dict[str, Any]]
    advice: list[Advice]
    #: The range in which the rate probably lies, in 10^6 operations a second; `None` where a resource is unknown.
    low_mops: float | None = None
    high_mops: float | None = None


@dataclass(frozen=True)
class Explanation:
    """What a program's verbs cost on a NIC, and what to change. Rates are the model's, not measurements."""

    #: The NIC's name and title.
    nic: str
    nic_title: str
    command: str
    processes: list[ProcessExplanation]
    #: The whole document.
    document: dict[str, Any] = field(repr=False)

    def _repr_html_(self) -> str:
        parts = [f"<p><code>{html.escape(self.command)}</code> on {html.escape(self.nic_title)}</p>"]
        for p in self.processes:
            parts.append(
                f"<p>{html.escape(p.program)}: {p.posted} posted, {p.received} received; "
                f"{_number(p.predicted_mops)} M/s{_likely(p)}, bottleneck: {html.escape(p.bottleneck or 'unknown')}</p>"
            )
            kinds = [
                (k["what"], k["count"], _number(k["postlist"]), k["wqe_bytes"], _number(k["mmio_writes"]),
                 _number(k["dma_reads"]), _number(k["dma_writes"]))
                for k in p.kinds
            ]
            head = ("operation", "count", "a list", "WQE, B", "MMIO", "DMA reads", "DMA writes")
            parts.append(_table(head, kinds))
            advice = [(a.guideline, a.seen, a.advice, _number(a.now_mops), _number(a.then_mops)) for a in p.advice]
            if advice:
                parts.append(_table(("guideline", "seen", "change", "M/s now", "then"), advice))
        return "".join(parts)


def _likely(process: ProcessExplanation) -> str:
    if process.low_mops is None or process.high_mops is None:
        return ""
    return f" (likely {_number(process.low_mops)} to {_number(process.high_mops)} M/s)"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    def row(cells: tuple[Any, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(c))}</{tag}>" for c in cells) + "</tr>"

    return "<table>" + row(head, "th") + "".join(row(r, "td") for r in rows) + "</table>"


def ledger(program: Program, *, timeout: float | None = None, **options: Any) -> Ledger:
    """Runs a program on the software NIC, and counts what it does with the verbs.

    Args:
        program: the program and its arguments.
        timeout: seconds; none unless set.
        options: as for `verbatim.run`.

    Raises:
        subprocess.CalledProcessError: the program failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.json"
        options.setdefault("stdout", subprocess.DEVNULL)
        run(program, ledger=file, check=True, timeout=timeout, **options)
        return Ledger.load(file)


def explain(of: Ledger | str | os.PathLike[str], nic: str = "cib") -> Explanation:
    """What the verbs of a ledger cost on a NIC, which guidelines they break, and what to change (`verbatim explain`).

    Args:
        of: a ledger, or the file of one.
        nic: `cx`, `cx3`, `cib`, `bf2`, or the file of a profile.
    """
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(of, Ledger):
            file = Path(folder) / "ledger.json"
            of.save(file)
        else:
            file = Path(of)
        (line,) = _json.lines(["explain", file, "--nic", nic, "--json"], timeout=120)
    data = line["data"]
    return Explanation(data["nic"], data["nic_title"], data["command"], [_process(p) for p in data["processes"]], data)


def _process(p: dict[str, Any]) -> ProcessExplanation:
    return ProcessExplanation(
        program=p["program"],
        pid=p["pid"],
        posted=p["posted"],
        received=p["received"],
        queue_pairs=p["queue_pairs"],
        predicted_mops=p.get("predicted_mops"),
        bottleneck=p.get("bottleneck"),
        kinds=p["kinds"],
        advice=[_advice(a) for a in p["advice"]],
        low_mops=p.get("low_mops"),
        high_mops=p.get("high_mops"),
    )


def _advice(a: dict[str, Any]) -> Advice:
    gain = a.get("gain") or {}
    rates = (gain.get("now_mops"), gain.get("then_mops"), gain.get("noise"))
    return Advice(a["guideline"], a["section"], a["seen"], a["advice"], *rates)
