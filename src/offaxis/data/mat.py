"""Arrays of MATLAB files (MAT 5, compressed or not), every number of which is checked before anything is made of it."""

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from offaxis.errors import DataError

MAX_BYTES = 4 * 2**30
_FREE_BYTES, _MAX_RATIO = 2**28, 100  # what is both larger than this and very much larger than its file is refused
_MAX_VARIABLES = 100
_COMPRESSED, _MATRIX = 15, 14
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""How the numbers of an element are stored, by its type."""
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""What MATLAB took an array for, by its class: doubles that are small whole numbers are stored as bytes."""

Shape = tuple[int | None, ...]


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _DamagedError(ValueError):
    """A file does not say what a MATLAB file says."""


class _Inflated:
    """A compressed element as a file; it is inflated no further than it is read."""

    def __init__(self, file: _Readable, length: int) -> None:
        self.file, self.left, self.stream = file, length, zlib.decompressobj()

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; fewer only at the end."""
        pieces, wanted = [], size
        while wanted and not self.stream.eof:
            source = self.stream.unconsumed_tail
            if not source:
                source = self.file.read(min(self.left, 2**16))
                self.left -= len(source)
            piece = self.stream.decompress(source, wanted)
            if not piece and not source:
                break
            pieces.append(piece)
            wanted -= len(piece)
        return b"".join(pieces)

    def check_end(self) -> None:
        """Raise _DamagedError unless only the padding of the last element follows; the checksum of zlib is checked with it."""
        if len(self.read(9)) > 8 or not self.stream.eof:
            raise _DamagedError("a compressed element does not end where it should")


def read_mat(path: Path, shapes: Mapping[str, Shape]) -> dict[str, NDArray[Any]]:
    """Read some arrays of a MATLAB file of version 5, which MATLAB writes by ``-v6`` and ``-v7``.

    Args:
        path: the file.
        shapes: names of the arrays and their shapes, None for a length that is not known.

    Returns:
        The arrays by name, in the types that MATLAB had them in.

    Raises:
        DataError: it is no such file, is damaged, truncated or too large, or does not hold these arrays.
    """
    try:
        with path.open("rb") as file:
            reader = _Reader(path, shapes, file.read(128))
            for _ in range(_MAX_VARIABLES):
                if len(reader.found) == len(shapes) or not reader.read_element(file):
                    break
    except (_DamagedError, zlib.error, OSError) as error:
        raise DataError(f"{path} is no MATLAB file, or is damaged or truncated ({error}): get it again.") from error
    if len(reader.found) < len(shapes):
        raise DataError(f"Expected {_listed(shapes)} in {path} but got {_listed(reader.seen)}: it is another file.")
    return reader.found


class _Reader:
    """The elements of a file, one after the other."""

    def __init__(self, path: Path, shapes: Mapping[str, Shape], header: bytes) -> None:
        if len(header) != 128 or header[124:128] not in (b"\x00\x01IM", b"\x01\x00MI"):
            raise _DamagedError("it does not begin as MATLAB's version 5 does")
        self.order: Literal["<", ">"] = "<" if header[126:128] == b"IM" else ">"
        self.path, self.shapes, self.size = path, shapes, path.stat().st_size
        self.found: dict[str, NDArray[Any]] = {}
        self.seen: dict[str, Shape] = {}

    def read_element(self, file: Any) -> bool:
        """Read the next variable, or skip it where it is not wanted; False at the end of the file."""
        start = file.tell()
        tag = file.read(8)
        if not tag:
            return False
        kind, length = self._numbers(tag, "II")
        if kind not in (_MATRIX, _COMPRESSED) or start + 8 + length > self.size:
            raise _DamagedError(f"an element of type {kind} and {length:,} bytes in a file of {self.size:,}")
        if kind == _MATRIX:
            self._read_matrix(file, length)
        else:
            inflated = _Inflated(file, length)
            inner, inner_length = self._numbers(_exactly(inflated, 8), "II")
            if inner != _MATRIX:
                raise _DamagedError(f"an element of type {inner} where an array was expected")
            if self._read_matrix(inflated, inner_length):
                inflated.check_end()
        file.seek(start + 8 + length)
        return True

    def _read_matrix(self, file: _Readable, length: int) -> bool:
        """Read an array from its flags on; False where it is not wanted and was not read."""
        flags = self._part(file, (6,), 8)
        kind = self._numbers(flags, "II")[0]
        dimensions = self._part(file, (5,), 32)
        shape = self._numbers(dimensions, f"{len(dimensions) // 4}i")
        name = self._part(file, (1, 16), 64).decode("latin1")
        if name not in self.shapes:
            return False
        self.seen[name] = shape
        wanted = self.shapes[name]
        if len(shape) != len(wanted) or any(n < 0 or w not in (None, n) for n, w in zip(shape, wanted, strict=True)):
            raise DataError(
                f"Expected {_listed(self.shapes)} in {self.path} but got {_listed(self.seen)}: it is another file."
            )
        if kind & 0xFF not in _CLASSES or kind & 0x0800:
            raise _DamagedError(f"{name} is no array of real numbers")
        self.found[name] = self._values(file, shape, min(length, self._most())).astype(
            _CLASSES[kind & 0xFF], copy=False
        )
        return True

    def _values(self, file: _Readable, shape: tuple[int, ...], most: int) -> NDArray[Any]:
        stored, length, inline = self._tag(file)
        if stored not in _NUMBERS:
            raise _DamagedError(f"numbers of type {stored}")
        dtype = np.dtype(_NUMBERS[stored]).newbyteorder(self.order)
        count = 1
        for n in shape:
            count *= n
        if count * dtype.itemsize != length:
            raise _DamagedError(f"{length:,} bytes for an array {shape} of {dtype.itemsize} bytes each")
        if length > most:
            raise _DamagedError(f"an array of {length:,} bytes where at most {most:,} are read")
        raw = np.empty(length, np.uint8)
        if inline is not None:
            raw[:] = np.frombuffer(inline, np.uint8)
        elif fill(raw, file) < length:
            raise _DamagedError("it ends within an array")
        return raw.view(dtype).reshape(shape, order="F")

    def _most(self) -> int:
        return min(MAX_BYTES, max(_FREE_BYTES, _MAX_RATIO * self.size))

    def _part(self, file: _Readable, kinds: tuple[int, ...], most: int) -> bytes:
        """Read a small part of an array: its flags, its dimensions or its name."""
        kind, length, inline = self._tag(file)
        if kind not in kinds or not 0 < length <= most:
            raise _DamagedError(f"a part of type {kind} and {length:,} bytes")
        return inline if inline is not None else _exactly(file, -(-length // 8) * 8)[:length]

    def _tag(self, file: _Readable) -> tuple[int, int, bytes | None]:
        """Return type and length of a part, and its bytes where they are within the tag itself."""
        tag = _exactly(file, 8)
        kind, length = self._numbers(tag, "II")
        if kind >> 16:
            if kind >> 16 > 4:
                raise _DamagedError("a short part of more than four bytes")
            return kind & 0xFFFF, kind >> 16, tag[4 : 4 + (kind >> 16)]
        return kind, length, None

    def _numbers(self, data: bytes, kinds: str) -> tuple[int, ...]:
        if struct.calcsize(f"{self.order}{kinds}") != len(data):
            raise _DamagedError("a part of another length than it must have")
        return struct.unpack(f"{self.order}{kinds}", data)


def _exactly(file: _Readable, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise _DamagedError("it ends too early")
    return data


def _listed(shapes: Mapping[str, Shape]) -> str:
    """Return shapes as text: X (32, 32, 3, N) and y (N, 1)."""
    texts = [f"{name} ({', '.join('N' if n is None else str(n) for n in shape)})" for name, shape in shapes.items()]
    return " and ".join(texts) or "nothing"


def fill(array: NDArray[np.uint8], file: _Readable) -> int:
    """Read into an array piece by piece, so that nothing is in memory twice; return the number of bytes read."""
    here = 0
    while here < len(array):
        piece = file.read(min(2**20, len(array) - here))
        if not piece:
            break
        array[here : here + len(piece)] = np.frombuffer(piece, np.uint8)
        here += len(piece)
    return here
