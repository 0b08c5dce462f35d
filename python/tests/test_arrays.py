"""What may be sent, what comes, and when registrations end."""

from __future__ import annotations

import array
import asyncio
import gc
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from verbatim.tensor import REGISTRATIONS, Peer, Store


@pytest.fixture
def both():
    """A peer that has tensors and one that gets them, in one process."""
    with Peer("127.0.0.1:0") as sender, Peer() as receiver:
        yield sender, receiver.connect(sender.address)


@pytest.mark.parametrize(
    "dtype",
    [*"bhiqBHIQefdFD?", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3b11fnuz],
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_element_types_and_shapes_arrive(both, dtype, shape):
    sender, remote = both
    source = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    sender.publish("x", source)
    got = remote.get("x")
    assert got.dtype == source.dtype and got.shape == source.shape
    assert np.array_equal(got, source)
    out = np.zeros(shape, dtype)
    assert remote.get("x", out=out) is out
    assert np.array_equal(out, source)


def test_buffers_and_views_are_sent_in_place(both):
    sender, remote = both
    numbers = array.array("d", [1.0, 2.0])
    sender.publish("array", numbers)
    numbers[1] = 5.0  # nothing was copied
    assert remote.get("array").tolist() == [1.0, 5.0]
    sender.publish("bytes", b"abc")
    assert remote.get("bytes").tobytes() == b"abc"
    whole = np.arange(100_000.0)
    sender.publish("part", whole[1000:1010])
    assert remote.get("part").tolist() == list(range(1000, 1010))


class Foreign:
    """An array of another library, by DLPack."""

    def __init__(self, of: np.ndarray, device: int = 1) -> None:
        self.of, self.device = of, device

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, **more):
        return self.of.__dlpack__(**more)


def test_arrays_of_other_libraries_are_sent_by_dlpack(both):
    sender, remote = both
    sender.publish("x", Foreign(np.arange(6).reshape(2, 3)))
    assert remote.get("x").tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(BufferError, match="not in host memory"):
        sender.publish("x", Foreign(np.arange(6), device=2))
    assert np.from_dlpack(remote.get("x")).tolist() == [[0, 1, 2], [3, 4, 5]]


class Tensor(Foreign):
    """A tensor of a library whose DLPack does not say whether its memory may be written."""

    def __dlpack__(self, **more):
        return self.of.__dlpack__()

    def numpy(self):
        return self.of


def test_tensors_of_other_libraries_are_received_into(both):
    sender, remote = both
    sender.publish("x", np.arange(4.0))
    out = Tensor(np.zeros(4))
    assert remote.get("x", out=out) is out
    assert out.of.tolist() == [0, 1, 2, 3]


def test_what_numpy_has_no_type_for_is_refused(both):
    sender, remote = both
    with pytest.raises(TypeError, match="no DLPack element type"):
        sender.publish("x", np.zeros(4, ml_dtypes.int4))


@pytest.mark.parametrize(
    ("what", "error", "reason"),
    [
        (np.arange(12).reshape(3, 4).T, BufferError, "ascontiguousarray"),
        (np.arange(12)[::2], BufferError, "strides"),
        (np.array([object()]), TypeError, "references to Python objects"),
        (np.array(["text"]), TypeError, "no DLPack element type"),
        (np.array([1], ">i4"), TypeError, "byte order"),
        (np.ma.array([1.0, 2.0], mask=[True, False]), TypeError, "filled"),
        (SimpleNamespace(), TypeError, "numpy.asarray"),
    ],
)
def test_what_cannot_be_sent_says_why(both, what, error, reason):
    sender, remote = both
    with pytest.raises(error, match=reason):
        sender.publish("x", what)
    with pytest.raises(error, match=reason):
        remote.put("x", what)


def test_given_arrays_must_fit(both):
    sender, remote = both
    sender.publish("x", np.arange(4.0))
    with pytest.raises(ValueError, match=r"float64 \[4\]"):
        remote.get("x", out=np.zeros(5))
    with pytest.raises(ValueError, match="float32"):
        remote.get("x", out=np.zeros(4, np.float32))
    readonly = np.zeros(4)
    readonly.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        remote.get("x", out=readonly)


def test_errors_are_pythons(both):
    sender, remote = both
    with pytest.raises(KeyError, match="nothing"):
        remote.get("nothing", wait=False)
    with pytest.raises(TimeoutError, match="nothing"):
        remote.get("nothing", timeout=0.05)
    with pytest.raises(ValueError, match="not a number"):
        remote.get("nothing", timeout=float("nan"))
    with pytest.raises(ValueError, match="queue_pairs"):
        Peer(queue_pairs=0)
    with pytest.raises(ValueError, match="bytes of UTF-8"):
        remote.get("k" * 600)
    with pytest.raises(MemoryError, match="capacity"):
        remote.put("x", np.zeros(1))  # it is no store
    sender.publish("own", np.zeros(1))
    with pytest.raises(PermissionError, match="published"):
        remote.remove("own")
    with pytest.raises(ConnectionError):
        Peer().connect("127.0.0.1:1", timeout=0)
    remote.close()
    with pytest.raises(ConnectionError):
        remote.get("x")
    sender.close()
    with pytest.raises(ConnectionError):
        sender.publish("x", np.zeros(1))


def test_an_infinite_timeout_waits(both):
    sender, remote = both
    sender.publish("x", np.arange(3))
    assert remote.get("x", timeout=float("inf")).tolist() == [0, 1, 2]


def test_after_a_timeout_nothing_comes_into_the_array(both):
    sender, remote = both
    out = np.full(1000, 7.0)
    with pytest.raises(TimeoutError):
        remote.get("late", timeout=0.05, out=out)
    sender.publish("late", np.zeros(1000))
    assert (remote.get("late") == 0).all()
    assert (out == 7).all()


def test_registrations_end_with_their_array(both):
    sender, remote = both
    registrations = remote._arrays
    sender.publish("x", np.arange(1000.0))
    out = np.zeros(1000)
    remote.get("x", out=out)
    (first,) = registrations._known.values()
    assert first.valid
    with pytest.raises(ValueError):
        out.resize(2000)  # would move registered memory
    remote.get("x", out=out)
    assert list(registrations._known.values()) == [first]
    del out
    gc.collect()
    assert not first.valid
    for i in range(REGISTRATIONS + 10):
        sender.publish(str(i), np.zeros(3))
    assert len(sender._arrays._known) <= REGISTRATIONS


def test_a_registration_that_is_forgotten_ends(both):
    _, remote = both
    out = np.zeros(1000)
    source = remote._arrays.source(out, writable=True)
    assert source[0].valid
    remote._arrays.forget(source)
    assert not source[0].valid
    assert remote._arrays.source(out, writable=True)[0].valid


def test_a_published_array_is_kept(both):
    sender, remote = both
    sender.publish("x", np.arange(100_000.0))
    gc.collect()
    trash = [np.full(100_000, 9.0) for _ in range(10)]
    assert np.array_equal(remote.get("x"), np.arange(100_000.0))
    assert sender.withdraw("x") and not sender.withdraw("x")
    del trash


def test_asyncio_has_many_in_flight_and_cancels(both):
    sender, remote = both

    async def go():
        gets = [asyncio.create_task(remote.get_async(f"t{i}")) for i in range(50)]
        await asyncio.sleep(0.01)
        for i in reversed(range(50)):
            sender.publish(f"t{i}", np.full(i * 100, i))
        for i, got in enumerate(await asyncio.gather(*gets)):
            assert got.shape == (i * 100,) and (got == i).all()
        out = np.full(10, 3.0)
        never = asyncio.create_task(remote.get_async("never", out=out))
        await asyncio.sleep(0.01)
        never.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await remote.get_async("never")
        with pytest.raises(KeyError):
            await remote.get_async("never", wait=False)
        assert (out == 3).all()
        assert (await remote.get_async("t1", out=np.zeros(100, int)) == 1).all()

    asyncio.run(go())


def test_a_store_takes_more_at_once_than_it_holds():
    async def go():
        with Store(capacity=8 << 20) as store, Peer() as peer, peer.connect(store.address) as remote:
            large = np.ones((3 << 20) // 8)
            await asyncio.gather(*(remote.put_async(f"{i}", large) for i in range(40)))
            assert store.holdings == (2, 6 << 20, 38)

    asyncio.run(go())


def test_asyncio_stores(both):
    async def go():
        with Store() as store, Peer() as peer, peer.connect(store.address) as remote:
            await asyncio.gather(*(remote.put_async(f"{i}", np.full(1000, i)) for i in range(20)))
            assert store.holdings.tensors == 20
            assert ((await remote.get_async("7")) == 7).all()

    asyncio.run(go())
