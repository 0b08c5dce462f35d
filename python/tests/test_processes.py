"""Tensors between processes."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from verbatim import _native
from verbatim.tensor import Peer, Store

SENDER = """
import sys
import numpy as np
from verbatim.tensor import Peer

peer = Peer("127.0.0.1:0")
peer.publish("weights", np.arange(300_000, dtype=np.float32).reshape(300, 1000), step=3)
print(peer.address, flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


def test_an_array_goes_from_one_process_to_another(process):
    sender = process(SENDER)
    with Peer() as peer, peer.connect(sender.line()) as remote:
        for _ in range(2):
            got = remote.get("weights", step=3)
            assert got.dtype == np.float32 and got.shape == (300, 1000)
            assert (got == np.arange(300_000, dtype=np.float32).reshape(300, 1000)).all()
        got[0, 0] = 7.0  # it is the receiver's own
    assert sender.end() == 0


def test_changed_metadata_are_followed(process):
    sender = process(SENDER)
    with Peer() as peer, peer.connect(sender.line()) as remote:
        for code, expected in [("np.zeros((2, 3))", np.zeros((2, 3))), ("np.arange(7)", np.arange(7))]:
            sender.process.stdin.write(f"peer.publish('x', {code})\n")
            sender.process.stdin.flush()
            assert sender.line() == "done"
            got = remote.get("x")
            assert got.dtype == expected.dtype and np.array_equal(got, expected)


def test_a_killed_sender_is_an_error(process):
    sender = process(SENDER)
    with Peer() as peer, peer.connect(sender.line()) as remote:
        out = np.full((300, 1000), 5, dtype=np.float32)
        sender.kill()
        with pytest.raises(ConnectionError, match="has ended"):
            remote.get("never", timeout=60, out=out)
        assert remote.has_ended
        assert (out == 5).all()


def test_a_sender_that_was_stopped_does_not_write_later(process):
    sender = process(SENDER)
    with Peer() as peer, peer.connect(sender.line()) as remote:
        out = np.zeros((300, 1000), dtype=np.float32)
        remote.get("weights", step=3, out=out)
        sender.process.send_signal(signal.SIGSTOP)
        # Its threads stop a moment later.
        os.waitid(os.P_PID, sender.process.pid, os.WSTOPPED)
        with pytest.raises(TimeoutError):
            remote.get("weights", step=3, timeout=0.1, out=out)
        out[:] = 5
        sender.process.send_signal(signal.SIGCONT)
        # The late WRITE fails, and the connection with it.
        with pytest.raises(ConnectionError):
            remote.get("never", timeout=60)
        assert (out == 5).all()


WRITER = """
import sys
import numpy as np
from verbatim.tensor import Peer

with Peer() as peer, peer.connect(sys.argv[1] if len(sys.argv) > 1 else input()) as store:
    for i in range(40):
        store.put("cache/%d" % i, np.full(10_000, i, dtype=np.uint8))
print("stored", flush=True)
"""


def test_a_store_holds_what_a_process_leaves_behind(process):
    with Store(capacity=200_000) as store, Peer() as peer:
        writer = process(WRITER)
        writer.process.stdin.write(f"{store.address}\n")
        writer.process.stdin.flush()
        assert writer.line() == "stored"
        assert writer.end() == 0
        assert store.holdings == (20, 200_000, 20)
        with peer.connect(store.address) as remote:
            assert (remote.get("cache/39") == 39).all()
            assert (store.find("cache/39") == 39).all()
            with pytest.raises(KeyError):
                remote.get("cache/0", wait=False)
            remote.remove("cache/39")
            with pytest.raises(KeyError):
                remote.remove("cache/39")


FORKS = """
import os
import sys
import numpy as np
from verbatim.tensor import Peer, Store

store, peer = Store(), Peer()
address = store.address
remote = peer.connect(address)
remote.put("x", np.ones(10))
child = os.fork()
if child == 0:
    try:
        remote.get("x")
    except RuntimeError as e:
        assert "make a Peer in process" in str(e)
        with Peer() as own:
            assert own.connect(address).get("x").sum() == 10
    sys.exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 7, status
assert remote.get("x").sum() == 10
print("parent goes on", flush=True)
"""


def test_a_forked_child_neither_uses_nor_ends_its_parents_peers(process):
    forks = process(FORKS)
    assert forks.line() == "parent goes on"
    assert forks.end() == 0


RECEIVER = """
import numpy as np
from verbatim.tensor import Peer

remote = Peer().connect(input())
out = np.zeros(4 << 20)
print("ready", flush=True)
while True:
    remote.get("large", out=out)
    remote.get("large")
"""


def test_killed_receivers_do_not_harm_the_sender(process):
    with Peer("127.0.0.1:0") as sender, Peer() as peer:
        sender.publish("large", np.arange(4 << 20, dtype=np.float64))
        for _ in range(3):
            receiver = process(RECEIVER)
            receiver.process.stdin.write(f"{sender.address}\n")
            receiver.process.stdin.flush()
            assert receiver.line() == "ready"
            with pytest.raises(TimeoutError):
                # Meanwhile the receiver is in the middle of transfers.
                with peer.connect(sender.address) as remote:
                    remote.get("never", timeout=0.1)
            receiver.kill()
        with peer.connect(sender.address) as remote:
            assert remote.get("large")[-1] == (4 << 20) - 1


def test_a_signal_ends_the_rendezvous_of_a_group():
    first, never_connects = (_native.GroupListener(rank, 2, "127.0.0.1", "softnic", None) for rank in range(2))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            first.connect([first.address, never_connects.address], 3600)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
