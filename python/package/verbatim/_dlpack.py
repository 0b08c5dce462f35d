"""Arrays of other libraries, by DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _dtypes

#: DLPack's `kDLCPU`.
_HOST = 1


def to_array(obj: Any) -> tuple[np.ndarray, _dtypes.Code | None]:
    """An array on the memory of an object with DLPack, and the element type where numpy's is another.

    Raises:
        BufferError: the memory is not the host's.
    """
    device = obj.__dlpack_device__()
    if int(device[0]) != _HOST:
        raise BufferError(f"its memory is on DLPack device {tuple(map(int, device))}, not in host memory: copy it there, as .cpu() does")
    if str(getattr(obj, "dtype", "")).endswith("bfloat16") and hasattr(obj, "view"):
        # numpy's DLPack has no bfloat16: the same bits as 16-bit integers.
        return np.from_dlpack(_as_int16(obj)), (4, 16, 1)
    return np.from_dlpack(obj), None


def _as_int16(obj: Any) -> Any:
    """A view of a bfloat16 tensor as 16-bit integers, by the library that it belongs to."""
    import importlib

    library = importlib.import_module(type(obj).__module__.split(".")[0])
    return obj.view(library.int16)
