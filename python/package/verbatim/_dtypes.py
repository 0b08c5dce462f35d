"""Element types, as DLPack and as numpy have them."""

from __future__ import annotations

import numpy as np

#: DLPack's code, bits and lanes.
Code = tuple[int, int, int]

_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}

#: Element types that numpy has only with the package `ml_dtypes`, by their names there. Codes: `DLDataTypeCode` of DLPack 1.1.
OF_ML_DTYPES: dict[str, Code] = {
    "bfloat16": (4, 16, 1),
    "float8_e3m4": (7, 8, 1),
    "float8_e4m3": (8, 8, 1),
    "float8_e4m3b11fnuz": (9, 8, 1),
    "float8_e4m3fn": (10, 8, 1),
    "float8_e4m3fnuz": (11, 8, 1),
    "float8_e5m2": (12, 8, 1),
    "float8_e5m2fnuz": (13, 8, 1),
    "float8_e8m0fnu": (14, 8, 1),
}


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
    if dtype.name in OF_ML_DTYPES:
        return OF_ML_DTYPES[dtype.name]
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
    for name, known in OF_ML_DTYPES.items():
        if code == known:
            return _dtype_of_ml_dtypes(name)
    kind, bits, lanes = code
    for char, number in _KINDS.items():
        if number == kind and lanes == 1:
            if char == "b":
                return np.dtype(np.bool_)
            return np.dtype(f"{char}{bits // 8}")
    raise TypeError(f"numpy has no element type for DLPack's {code}")


def _dtype_of_ml_dtypes(name: str) -> np.dtype:
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"numpy has {name} only with the package ml_dtypes: pip install ml_dtypes") from None
    if not hasattr(ml_dtypes, name):
        raise TypeError(f"ml_dtypes {ml_dtypes.__version__} has no {name}: pip install --upgrade ml_dtypes")
    return np.dtype(getattr(ml_dtypes, name))
