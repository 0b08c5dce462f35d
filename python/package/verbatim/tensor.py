"""Tensors between processes, by key: written straight from the source array into the destination array.

A process that has tensors for others::

    from verbatim.tensor import Peer
    peer = Peer("0.0.0.0:7001")
    peer.publish("weights", array, step=3)

A process that gets them::

    remote = Peer().connect("host:7001")
    array = remote.get("weights", step=3)

`Store` holds tensors that others put there, as a cache of key-value pairs does.

*What may be sent*: numpy arrays, objects with the buffer protocol, and objects with DLPack in host memory, such as torch's tensors.
Their memory is registered in place and never copied. So it has to be contiguous (C order).

*Errors*: `KeyError` (no such tensor), `TimeoutError`, `ConnectionError` (the peer has gone), `ValueError` (the given array has another shape
or element type), `MemoryError` (larger than the store), `TypeError` and `BufferError` (this cannot be sent; says why).
"""

from __future__ import annotations

import asyncio
import collections
import threading
from typing import Any, NamedTuple

import numpy as np

from . import _dlpack, _dtypes, _native

__all__ = ["Holdings", "Peer", "Remote", "Store"]

#: Seconds that calls wait unless told otherwise.
TIMEOUT = 30.0
#: Arrays whose registration is kept.
REGISTRATIONS = 256


class Holdings(NamedTuple):
    """What a peer has."""

    #: Tensors, published and stored.
    tensors: int
    #: Bytes of those that others have stored.
    stored_bytes: int
    #: Stored tensors that had to go for others.
    evicted: int


class _Source(NamedTuple):
    """An object's memory, and what it is."""

    memory: np.ndarray
    dtype: _dtypes.Code
    shape: tuple[int, ...]


class _Registrations:
    """Registrations of arrays, so that an array that is used again is not registered again.

    A registration ends when its array is freed, or when many other arrays were used since.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._known: collections.OrderedDict[tuple[int, ...], Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def source(self, obj: Any, writable: bool = False) -> tuple[Any, ...]:
        """What the native part takes: the registration, whose memory it is, element type and shape."""
        memory, dtype, shape = _source(obj, writable)
        return (self._registration(memory, writable), memory, dtype, shape)

    def _registration(self, memory: np.ndarray, writable: bool) -> Any:
        root = _root(memory)
        if root is None:
            return self._native.register(memory, writable, None)
        key = (id(root), memory.ctypes.data, memory.nbytes, writable)
        with self._lock:
            known = self._known.get(key)
            # Another array may have come to lie there.
            if known is None or not known.valid:
                known = self._known[key] = self._native.register(memory, writable, root)
            self._known.move_to_end(key)
            while len(self._known) > REGISTRATIONS:
                self._known.popitem(last=False)
        return known

    def forget(self, source: tuple[Any, ...]) -> None:
        """Takes peers' access to this memory away."""
        registration, memory = source[:2]
        # Others, such as a traceback, may still have the registration.
        registration.revoke()
        with self._lock:
            for key in [k for k in self._known if k[1:3] == (memory.ctypes.data, memory.nbytes)]:
                del self._known[key]


def _root(array: np.ndarray) -> np.ndarray | None:
    """The array that owns this one's memory, if an array does."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if type(array) is np.ndarray and array.flags.owndata else None


def _source(obj: Any, writable: bool = False) -> _Source:
    """The memory of an object that can be sent, or received into."""
    if isinstance(obj, np.ma.MaskedArray):
        raise TypeError("a masked array would arrive without its mask: send its .filled(value), or its .data and its .mask")
    if not isinstance(obj, np.ndarray):
        if hasattr(obj, "__dlpack__"):
            obj, dtype = _dlpack.to_array(obj, writable)
            if dtype is not None:
                return _Source(_bytes_of(obj, writable), dtype, obj.shape)
        else:
            try:
                obj = np.asarray(memoryview(obj))
            except TypeError:
                raise TypeError(
                    f"a {type(obj).__name__} is neither a numpy array nor has it the buffer protocol or DLPack; "
                    "convert it with numpy.asarray"
                ) from None
    return _Source(_bytes_of(obj, writable), _dtypes.to_code(obj.dtype), obj.shape)


def _bytes_of(array: np.ndarray, writable: bool) -> Any:
    """The bytes of an array, in place."""
    if array.dtype.hasobject:
        _dtypes.to_code(array.dtype)
    if not array.flags.c_contiguous:
        raise BufferError(
            f"the array of shape {array.shape} has strides {array.strides}: its elements do not lie one behind the other. "
            "Send numpy.ascontiguousarray(array)"
        )
    if writable and not array.flags.writeable:
        raise BufferError("the array is read-only: nothing can come into it")
    return array.reshape(-1).view(np.uint8)


def _array(buffer: Any) -> np.ndarray:
    """The array in memory that has come."""
    return np.frombuffer(buffer, dtype=np.uint8).view(_dtypes.from_code(buffer.dtype)).reshape(buffer.shape)


class Remote:
    """A peer that this process is connected to. Made by `Peer.connect`; a context manager that closes it."""

    def __init__(self, arrays: _Registrations, native: Any) -> None:
        self._arrays = arrays
        self._native = native

    def get(
        self, key: str, *, step: int = 0, wait: bool = True, timeout: float | None = TIMEOUT, out: Any = None
    ) -> np.ndarray:
        """The tensor of this key and step.

        Args:
            wait: wait until the peer has it; else `KeyError` if it has not.
            timeout: seconds; `None`: for ever.
            out: an array of the same element type and shape that the tensor comes into. When the call returns, also by an
                exception, nothing is written there any more.

        Returns:
            A new array in registered memory, or `out`.
        """
        if out is None:
            return _array(self._native.get(key, step, wait, timeout, None))
        into = self._arrays.source(out, writable=True)
        try:
            self._native.get(key, step, wait, timeout, into)
        except BaseException:
            self._arrays.forget(into)
            raise
        return out

    def put(self, key: str, obj: Any, *, step: int = 0, timeout: float | None = TIMEOUT) -> None:
        """Stores a tensor there, in place of another stored one of this key and step. The peer must be a `Store`.

        `PermissionError` if the peer has published a tensor of this key and step itself."""
        self._native.put(key, step, self._arrays.source(obj), timeout)

    def remove(self, key: str, *, step: int = 0, timeout: float | None = TIMEOUT) -> None:
        """Removes a stored tensor there. `KeyError` if there is none, `PermissionError` if the peer has published it."""
        self._native.remove(key, step, timeout)

    async def get_async(self, key: str, *, step: int = 0, wait: bool = True, out: Any = None) -> np.ndarray:
        """As `get`, for asyncio. Cancelling the task cancels the request; use `asyncio.timeout` for a timeout."""
        if out is None:
            return _array(await _outcome(self._native.begin_get(key, step, wait, None)))
        into = self._arrays.source(out, writable=True)
        try:
            await _outcome(self._native.begin_get(key, step, wait, into))
        except BaseException:
            self._arrays.forget(into)
            raise
        return out

    async def put_async(self, key: str, obj: Any, *, step: int = 0) -> None:
        """As `put`, for asyncio."""
        await _outcome(self._native.begin_put(key, step, self._arrays.source(obj)))

    @property
    def has_ended(self) -> bool:
        """Whether the connection is of no use any more."""
        return self._native.has_ended()

    def close(self) -> None:
        """Ends the connection."""
        self._native.close()

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _outcome(operation: Any) -> Any:
    """Waits for an operation without blocking the loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def callback() -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:
            # The loop was closed: nobody waits.
            pass

    operation.on_done(callback)
    try:
        await done
    except asyncio.CancelledError:
        operation.cancel()
        raise
    return operation.result()


class Peer:
    """This process: has tensors for others, and connects to others. A context manager that closes it.

    Args:
        listen: `host:port` where others find it (port 0: any free one); nobody does if `None`.
        queue_pairs: queue pairs that large tensors are striped over, 1 to 8.
        provider: `softnic` (the software NIC) or `system` (the machine's own libibverbs).
        device: the device; the provider's first if `None`.
    """

    _capacity = 0

    def __init__(
        self,
        listen: str | None = None,
        *,
        queue_pairs: int = 4,
        provider: str = "softnic",
        device: str | None = None,
    ) -> None:
        self._native = _native.Peer(listen, self._capacity, queue_pairs, provider, device)
        self._arrays = _Registrations(self._native)

    @property
    def address(self) -> str | None:
        """`host:port` where others find it."""
        return self._native.address

    def publish(self, key: str, obj: Any, *, step: int = 0) -> None:
        """Has a tensor for whoever asks, in place of any other of this key and step.

        Nothing is copied. While it is published, do not change the array: a receiver may find old and new elements.
        """
        self._native.publish(key, step, self._arrays.source(obj))

    def withdraw(self, key: str, *, step: int = 0) -> bool:
        """Has it no more; whether there was one."""
        return self._native.withdraw(key, step)

    def find(self, key: str, *, step: int = 0) -> np.ndarray | None:
        """The tensor of this key and step that this process itself has, read-only and in place."""
        found = self._native.find(key, step)
        return None if found is None else _array(found)

    @property
    def holdings(self) -> Holdings:
        """What it has."""
        return Holdings(*self._native.holdings())

    def connect(self, address: str, *, timeout: float = 10.0) -> Remote:
        """Connects to the peer that listens at `host:port`, or begins to within `timeout` seconds.

        Raises:
            ConnectionError: it cannot be reached, or refuses.
        """
        return Remote(self._arrays, self._native.connect(address, timeout))

    def close(self) -> None:
        """Ends it and its connections."""
        self._native.close()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Store(Peer):
    """A peer that holds tensors that others put there.

    Args:
        listen: `host:port` where others find it.
        capacity: bytes of all stored tensors; beyond that, those that were used longest ago go.
    """

    def __init__(self, listen: str = "127.0.0.1:0", *, capacity: int = 1 << 30, **more: Any) -> None:
        if capacity <= 0:
            raise ValueError(f"capacity is {capacity}: a store holds at least one byte")
        self._capacity = capacity
        super().__init__(listen, **more)
