"""Pickles of numpy arrays, and of nothing else."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from offaxis.errors import DataError

MAX_BYTES = 2**30
_PLAIN = frozenset({"b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"})


class _NdArray:
    """Stand-in for numpy.ndarray inside a pickle: it can be named there, but not called."""

    def __new__(cls) -> "_NdArray":
        raise pickle.UnpicklingError("an array made from nothing")


def _empty(kind: object, shape: object, _: object) -> Any:
    if kind is not _NdArray or shape != (0,):
        raise pickle.UnpicklingError("an array of an unusual kind")
    return np.empty(0, np.uint8)  # its state, which follows, fills it: numpy checks that shape and bytes agree


def _dtype(name: object, *_: object) -> Any:
    text = name.decode("latin1") if isinstance(name, bytes) else name
    if text not in _PLAIN:
        raise pickle.UnpicklingError(f"an array of {text!r}")
    return np.dtype(text)


def _scalar(dtype: Any, data: object = b"") -> Any:
    raw = data.encode("latin1") if isinstance(data, str) else data
    if not isinstance(dtype, np.dtype) or not isinstance(raw, bytes):
        raise pickle.UnpicklingError("a number of an unusual kind")
    return np.frombuffer(raw, dtype, 1)[0]


def _from_buffer(data: object, dtype: Any, shape: Any, order: Any) -> Any:
    if not isinstance(data, bytes | bytearray) or not isinstance(dtype, np.dtype):
        raise pickle.UnpicklingError("an array of an unusual kind")
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def _to_bytes(text: object, encoding: object) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes in an unusual encoding")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): _NdArray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _to_bytes,
}
for _package in ("numpy.core", "numpy._core"):
    _ADMITTED[f"{_package}.multiarray", "_reconstruct"] = _empty
    _ADMITTED[f"{_package}.multiarray", "scalar"] = _scalar
    _ADMITTED[f"{_package}.numeric", "_frombuffer"] = _from_buffer


class _ArraysOnly(pickle.Unpickler):
    """Unpickler of arrays, numbers, text and containers; any other name is refused, and nothing is called."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for an admitted name."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"the name {module}.{name}") from None


def read_pickle(path: Path) -> dict[str, Any]:
    """Read the dictionary in a pickle that holds arrays, numbers, text, lists and dictionaries alone; its keys as text.

    Raises:
        DataError: it holds anything else, is damaged or too large. Nothing in it was executed.
    """
    length = path.stat().st_size
    if length > MAX_BYTES:
        raise DataError(f"{path} has {length:,} bytes, more than the {MAX_BYTES:,} that a pickle may have.")
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path} is refused: a data file may hold arrays, numbers, text and containers but it is damaged or asks "
            f"for something else ({error})."
        ) from error
    except Exception as error:  # a damaged pickle can stumble anywhere
        raise DataError(f"{path} is damaged or truncated ({error}): get it again.") from error
    if not isinstance(content, dict):
        raise DataError(f"Expected a dictionary in {path} but got {type(content).__name__}.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
