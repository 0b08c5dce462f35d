"""Where the `verbatim` command of this package is, and how it is run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: The command, beside the libraries that it gives to programs.
COMMAND = Path(__file__).parent / "_installed" / "bin" / "verbatim"


def command() -> str:
    """The path of the `verbatim` command.

    Raises:
        FileNotFoundError: the package was installed without it.
    """
    if not COMMAND.exists():
        raise FileNotFoundError(
            f"{COMMAND} is not there: install a wheel that `cargo xtask wheel` has built"
        )
    return str(COMMAND)


def main() -> None:
    """The console script `verbatim`: becomes the command."""
    try:
        path = command()
    except FileNotFoundError as e:
        sys.exit(f"error: {e}")
    os.execv(path, ["verbatim", *sys.argv[1:]])
