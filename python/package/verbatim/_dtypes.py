"""Element types, as DLPack and as numpy have them."""

from __future__ import annotations

import numpy as np

#: DLPack's code, bits and lanes.
Code = tuple[int, int, int]

_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4


def _bfloat16() -> np.dtype | None:
    """numpy's bfloat16, if the package `ml_dtypes` is there."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def to_code(dtype: np.dtype) -> Code:
    """DLPack's description of a numpy element type.

    Raises:
        TypeError: there is none; says why.
    """
    if dtype.hasobject:
        raise TypeError(
            f"an array of {dtype} holds references to Python objects, which mean nothing in another process; "
            "convert it to numbers, or pickle it"
        )
    if dtype.name == "bfloat16":
        return (_BFLOAT, 16, 1)
    if dtype.kind not in _KINDS or dtype.names is not None or dtype.subdtype is not None:
        raise TypeError(f"{dtype} has no DLPack element type; use numbers or Booleans, or view the array as uint8")
    if not dtype.isnative:
        raise TypeError(f"{dtype} has the other byte order; convert it with .astype({dtype.newbyteorder('=').str!r})")
    return (_KINDS[dtype.kind], 8 * dtype.itemsize, 1)


def from_code(code: Code) -> np.dtype:
    """The numpy element type.

    Raises:
        TypeError: numpy has none.
    """
    kind, bits, lanes = code
    if lanes == 1 and kind == _BFLOAT and bits == 16:
        bfloat16 = _bfloat16()
        if bfloat16 is None:
            raise TypeError("numpy has bfloat16 only with the package ml_dtypes: pip install ml_dtypes")
        return bfloat16
    for char, number in _KINDS.items():
        if number == kind and lanes == 1:
            if char == "b":
                return np.dtype(np.bool_)
            return np.dtype(f"{char}{bits // 8}")
    raise TypeError(f"numpy has no element type for DLPack's {code}")
