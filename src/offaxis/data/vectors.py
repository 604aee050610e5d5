"""Feature vectors, the input of a model that was fitted to them: checked, and read from .npy files."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from offaxis.data.transforms import Preprocessing
from offaxis.errors import DataError
from offaxis.files import is_regular


@dataclass(frozen=True)
class VectorInput:
    """The input of a model of feature vectors, where Preprocessing is that of a model of images: rows of finite numbers.

    Attributes:
        size: d, the numbers in a row.
    """

    size: int

    @property
    def shape(self) -> tuple[int]:
        """Return (d,)."""
        return (self.size,)

    def normalise(self, rows: Tensor) -> Tensor:
        """Return the rows unchanged: they are as the model that made them gave them."""
        return rows

    def pixels(self, row: Any, name: str | None = None, max_pixels: int = 0) -> NDArray[np.float64]:  # noqa: ARG002
        """Return one row of numbers, or of their JSON, as float64 (d,); the same step for images gives this its name.

        Raises:
            DataError: it is not d finite numbers; the message calls it ``name``.
        """
        if isinstance(row, bytes):
            try:
                row = json.loads(row)
            except (ValueError, RecursionError):
                row = ""
        if isinstance(row, (str, Path, Image.Image)):
            raise DataError(
                f"Expected a vector of {self.size} numbers, for the model was fitted to feature vectors, but got "
                f"another file: compute its features with the same model first. "
                'Over HTTP they are JSON, {"features": [[...], ...]}; on the command line a .npy file of rows.'
            )
        return np.asarray(self._checked([row], name or "the vector")[0])

    def batch(self, rows: Any) -> Iterable[Tensor]:
        """Yield float64 batches (B, d) of rows (N, d), or of one row (d,): an array, a tensor or lists of numbers.

        Raises:
            DataError: these are not rows of d finite numbers.
        """
        single = np.ndim(rows) == 1 if not isinstance(rows, (str, bytes, Path)) else True
        checked: Tensor = torch.from_numpy(self._checked([rows] if single else rows, "the features"))
        return [checked[start : start + 4096] for start in range(0, len(checked), 4096)]

    def example(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random rows float64 (count, d), to try a model with."""
        return torch.randn(count, self.size, dtype=torch.float64, generator=generator)

    def to_json(self) -> dict[str, Any]:
        """Return the size in types that JSON has."""
        return {"features": self.size}

    def _checked(self, rows: Any, name: str) -> NDArray[np.float64]:
        try:
            numbers = np.asarray(rows)
            fits = numbers.ndim == 2 and numbers.dtype.kind in "fiu"
        except (ValueError, TypeError):  # rows of different lengths
            numbers, fits = np.empty(0), False
        if not fits or numbers.shape[1] != self.size:
            came = f"{numbers.shape[1]} of type {numbers.dtype}" if numbers.ndim == 2 else "something else"
            raise DataError(
                f"Expected rows of {self.size} numbers, as fitted to, but got {came} ({name}): use features of the "
                "same model."
            )
        if not np.isfinite(numbers).all():
            raise DataError(
                f"Expected finite numbers but {name} has NaN or infinity: leave such rows out, or repair them."
            )
        return np.ascontiguousarray(numbers, np.float64)


def read_rows(path: str | Path) -> Iterator[NDArray[Any]]:
    """Read the array of a .npy file, feature vectors (N, d) or pixels, a megabyte of rows at a time.

    The file is not mapped into memory: where it is truncated meanwhile, as by a program that saves it again, the system would
    kill this process.

    Raises:
        DataError: there is no such file, it is no array of numbers with two dimensions or more, or it became shorter.
    """
    rows = _mapped(path)
    offset, step = rows.offset, max(1, 2**20 // (rows.itemsize * int(np.prod(rows.shape[1:]))))
    if not rows.flags.c_contiguous:  # in the order of Fortran, a row is all over the file
        step = max(1, len(rows))
    with Path(path).open("rb") as file:
        file.seek(offset)
        for start in range(0, len(rows), step):
            shape = (min(step, len(rows) - start), *rows.shape[1:])
            numbers = np.fromfile(file, rows.dtype, int(np.prod(shape)))
            if len(numbers) < np.prod(shape):
                raise DataError(
                    f"Expected {len(rows)} rows but {path} became shorter while it was read: score it again."
                )
            yield numbers.reshape(shape, order="C" if rows.flags.c_contiguous else "F")


def _mapped(path: str | Path) -> "np.memmap[Any, Any]":
    """Return the array of a .npy file with its header checked and nothing of it read."""
    if Path(path).exists() and not is_regular(Path(path)):
        raise DataError(f"Expected a .npy file but {path} is no plain file: to read it might never end.")
    try:
        # a shape that the file is too short for is refused here; "c": changes stay in memory
        with np.errstate(over="ignore"):  # of the size, where the shape is absurd
            rows = np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception as error:
        raise DataError(
            f"Expected a .npy file of feature vectors (N, d), as numpy.save writes an array of numbers, but {path} cannot be "
            f"read ({str(error).partition(' If you trust')[0][:200]})."
        ) from error
    if not isinstance(rows, np.memmap) or rows.ndim < 2:
        came = f"an array of shape {rows.shape}" if isinstance(rows, np.ndarray) else "an archive of arrays"
        raise DataError(
            f"Expected a .npy file of feature vectors (N, d) but {path} holds {came}: one vector is a row, x.reshape(1, -1)."
        )
    if rows.dtype.kind not in "fiu" or 0 in rows.shape[1:]:  # rows of no bytes may be as many as the file claims
        raise DataError(
            f"Expected a .npy file of feature vectors (N, d), or of images, but {path} holds an array of {rows.dtype} of shape "
            f"{rows.shape}: save numbers, as x.astype('float32')."
        )
    return rows


def input_from_json(saved: dict[str, Any]) -> Preprocessing | VectorInput:
    """Return the preprocessing, or the input of feature vectors, that ``to_json`` described."""
    return VectorInput(int(saved["features"])) if "features" in saved else Preprocessing.from_json(saved)
