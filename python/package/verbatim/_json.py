"""What the `verbatim` command prints with `--json`."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from ._command import command


class CommandError(RuntimeError):
    """The command failed; says why in its own words."""

    def __init__(self, arguments: list[str], returncode: int, stderr: str) -> None:
        self.returncode = returncode
        errors = [line for line in stderr.splitlines() if not line.startswith("note:")]
        super().__init__("\n".join(errors).strip() or f"verbatim {' '.join(arguments)} ended with status {returncode}")


def lines(arguments: list[str | os.PathLike[str]], timeout: float | None) -> list[dict[str, Any]]:
    """The objects that a command prints, one a line."""
    words = [os.fspath(a) for a in arguments]
    done = subprocess.run(
        [command(), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
    )
    if done.returncode != 0:
        raise CommandError(words, done.returncode, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
