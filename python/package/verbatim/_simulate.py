"""Measurements of simulated clusters, as columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from . import _json

__all__ = ["Columns", "simulate"]

SYSTEMS = ("sequencer", "kv", "btree")


class Columns(dict[str, np.ndarray]):
    """Columns of equal length, by name: numbers where all are numbers, else objects."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.values()), ()))

    def to_pandas(self) -> Any:
        """The same as a `pandas.DataFrame`; needs pandas."""
        import pandas

        return pandas.DataFrame(dict(self))

    def _repr_html_(self) -> str:
        from ._ledger import _table

        return _table(tuple(self), list(zip(*self.values())))


def simulate(system: str, *, nic: str | Iterable[str] = "cib", timeout: float | None = 600, **options: Any) -> Columns:
    """Measures a system on a simulated cluster in virtual time: `verbatim sequencer --nic cib` and its like.

    A sweep is an option with several values: `simulate("sequencer", design="spec-s0", cores=[1, 2, 4])` has a row each.

    Args:
        system: `sequencer`, `kv` or `btree`.
        nic: the NIC of the machines, such as `cib` or `cx3`; several for a sweep.
        timeout: seconds that each run may take.
        options: options of the command, with `_` for `-`: `design`, `cores`, `clients`, `duration`, `window`...
            `True` sets a flag.

    Returns:
        A row for each design and each combination of values. Nested fields are named `outer.inner`.

    Raises:
        CommandError: the command refused its options, or an answer was wrong.
    """
    if system not in SYSTEMS:
        raise ValueError(f"{system!r} is not one of {', '.join(SYSTEMS)}")
    runs: list[tuple[list[str], dict[str, Any]]] = [([], {})]
    for name, value in {"nic": nic, **options}.items():
        several = isinstance(value, Iterable) and not isinstance(value, str)
        values = list(value) if several else [value]
        runs = [
            (words + _option(name, one), swept | ({name: one} if several else {})) for words, swept in runs for one in values
        ]
    rows = []
    for words, swept in runs:
        for line in _json.lines([system, *words, "--json"], timeout):
            if line.get("type") == "simulated":
                rows.append(swept | _flat(line["data"]))
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Columns((name, _column([row.get(name) for row in rows])) for name in names)


def _option(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return [flag]
    return [] if value is None or value is False else [f"{flag}={value}"]


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as fields of their own; a time of the command's as seconds."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict) and value.keys() == {"secs", "nanos"}:
            flat[f"{prefix}{name}_s"] = value["secs"] + value["nanos"] / 1e9
        elif isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _column(values: list[Any]) -> np.ndarray:
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    if numbers or all(isinstance(v, bool) for v in values):
        return np.array(values)
    if all(v is None or isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        return np.array([np.nan if v is None else v for v in values], dtype=float)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
