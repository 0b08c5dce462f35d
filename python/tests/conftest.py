"""What all tests need: a watchdog, a fabric of their own, and other processes."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

# Each process joins the fabric when it opens the device.
os.environ["VERBATIM_FABRIC"] = f"python_{os.getpid()}"


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """A test that hangs ends the whole run, with the stacks of all threads."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


class Process:
    """Another Python process, which runs a script until its standard input ends."""

    def __init__(self, script: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        """The next line that it prints, within a minute."""
        timer = threading.Timer(60, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        timer.cancel()
        return line.strip()

    def end(self) -> int:
        """Ends it; its exit status."""
        self.process.communicate(timeout=60)
        return self.process.returncode

    def kill(self) -> None:
        """Kills it."""
        self.process.kill()
        self.process.wait(60)


@pytest.fixture
def process() -> Iterator[type[Process]]:
    """Starts other processes; those that are left are killed."""
    started: list[Process] = []

    class Counted(Process):
        def __init__(self, script: str) -> None:
            super().__init__(script)
            started.append(self)

    yield Counted
    for one in started:
        one.kill()
