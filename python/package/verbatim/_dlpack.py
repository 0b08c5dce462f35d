"""Arrays of other libraries, by DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _dtypes

#: DLPack's `kDLCPU`.
_HOST = 1


def to_array(obj: Any, writable: bool) -> tuple[np.ndarray, _dtypes.Code | None]:
    """An array on the memory of an object with DLPack, and the element type where numpy's is another.

    Raises:
        BufferError: the memory is not the host's.
    """
    device = obj.__dlpack_device__()
    if int(device[0]) != _HOST:
        raise BufferError(f"its memory is on DLPack device {tuple(map(int, device))}, not in host memory: copy it there, as .cpu() does")
    code = _dtypes.OF_ML_DTYPES.get(str(getattr(obj, "dtype", "")).rpartition(".")[2])
    if code is not None and hasattr(obj, "view"):
        # numpy's DLPack has no such type: the same bits as integers.
        obj = _as_integers(obj, bits=code[1])
    else:
        code = None
    array = np.from_dlpack(obj)
    if writable and not array.flags.writeable:
        array = _writable_array(obj, array)
    return array, code


def _as_integers(obj: Any, bits: int) -> Any:
    """A view of a tensor as integers, by the library that it belongs to."""
    import importlib

    library = importlib.import_module(type(obj).__module__.split(".")[0])
    return obj.view(library.int16 if bits == 16 else library.uint8)


def _writable_array(obj: Any, read_only: np.ndarray) -> np.ndarray:
    """The library's own array on the same memory, if it has one.

    Before version 1.0 DLPack does not say whether memory may be written, so numpy's array is read-only. torch's tensors have `.numpy()`.
    """
    as_numpy = getattr(obj, "numpy", None)
    array = as_numpy() if callable(as_numpy) else None
    if isinstance(array, np.ndarray) and array.ctypes.data == read_only.ctypes.data and array.shape == read_only.shape:
        return array
    return read_only
