"""Images in any form -> the pixels that the network takes; feature vectors likewise."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from offaxis.data import ImageSet, Normalise
from offaxis.data.decode import MAX_PIXELS, decode, eight_bits
from offaxis.data.sources import as_image_set
from offaxis.data.transforms import Resize, Shape, check_shape, fit, fit_batch, match, resize_rule
from offaxis.errors import ArgumentError, DataError
from offaxis.files import is_regular

ImageLike = str | Path | bytes | Image.Image | NDArray[np.uint8] | Tensor
"""A file, its bytes, a Pillow image, uint8 pixels (h, w), (h, w, 3) as an array or (c, h, w) as a tensor."""
_EXPECTED = "Expected a file, bytes, a Pillow image, an array or a tensor"
_ONE = (str, Path, bytes, Image.Image, np.ndarray, Tensor)


@dataclass(frozen=True)
class Preprocessing:
    """Size, colour, mean and standard deviation of the images that a network was trained on.

    Attributes:
        shape: (channels, height, width); an image is brought to it, and made grey or RGB (see offaxis.data.transforms).
        normalise: mean and standard deviation for each channel.
        resize: how: ``"crop"`` (short side to the size, centre crop) or ``"stretch"``; by default crop above 64 pixels.
    """

    shape: Shape
    normalise: Normalise
    resize: Resize | None = None

    def __post_init__(self) -> None:
        check_shape(self.shape)
        object.__setattr__(self, "resize", resize_rule(self.shape, self.resize))
        if len(self.normalise.mean) != self.shape[0]:
            raise ArgumentError(
                f"Expected a mean for each of {self.shape[0]} channels but got {len(self.normalise.mean)}."
            )

    @property
    def colour(self) -> str:
        """``"grey"`` or ``"RGB"``."""
        return "grey" if self.shape[0] == 1 else "RGB"

    def pixels(self, image: ImageLike, name: str | None = None, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
        """Decode and resize one image to uint8 (c, h, w).

        Raises:
            DataError: it is damaged, too large or no image; the message calls it ``name``.
        """
        if isinstance(image, Tensor):
            return np.asarray(self._fit_tensor(image.unsqueeze(0))[0])
        if isinstance(image, np.ndarray):
            image = _from_array(image)
        if isinstance(image, Image.Image):
            return fit(eight_bits(image, name or "the image"), self.shape, self.resize)
        if not isinstance(image, str | Path | bytes):
            raise DataError(f"{_EXPECTED} but got a {type(image).__name__}.")
        return fit(decode(image, name, max_pixels), self.shape, self.resize)

    def batch(self, images: "ImageLike | Sequence[ImageLike] | ImageSet | Tensor") -> Iterable[Tensor]:
        """Yield uint8 batches (B, c, h, w) of one image, several, a tensor (N, c, h, w) or an ImageSet.

        Raises:
            DataError: these are not images.
        """
        if isinstance(images, ImageSet):
            return (self._fit_tensor(part) for part in images.batches(256))
        if isinstance(images, Tensor) and images.dim() == 4:
            return (self._fit_tensor(part) for part in images.split(256))
        several: Sequence[Any] = [images] if isinstance(images, _ONE) else images
        if not isinstance(several, Sequence):
            raise DataError(f"{_EXPECTED}, a list of these, or a data set but got a {type(images).__name__}.")
        return (
            torch.from_numpy(np.stack([self.pixels(image) for image in several[start : start + 256]]))
            for start in range(0, len(several), 256)
        )

    def match(self, images: Any) -> ImageSet:
        """Return an image set, a dataset or a tensor as a set of images of this size and colour."""
        return match(as_image_set(images), self.shape, self.resize)

    def example(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random pixels uint8 (count, c, h, w), to try a model with."""
        return torch.randint(0, 256, (count, *self.shape), dtype=torch.uint8, generator=generator)

    def to_json(self) -> dict[str, Any]:
        """Return size, colour, mean and std in types that JSON has."""
        channels, height, width = self.shape
        return {
            "channels": channels,
            "height": height,
            "width": width,
            "resize": self.resize,
            "colour": self.colour,
            "mean": list(self.normalise.mean),
            "std": list(self.normalise.std),
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "Preprocessing":
        """Return the preprocessing that ``to_json`` described; where it names no rule for the size, that was stretch."""
        shape = (int(saved["channels"]), int(saved["height"]), int(saved["width"]))
        normalise = Normalise(tuple(map(float, saved["mean"])), tuple(map(float, saved["std"])))
        return cls(shape, normalise, resize_rule(shape, str(saved.get("resize", "stretch"))))

    def _fit_tensor(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[1:]:
            raise DataError(f"Expected images of shape (N, 1 or 3, h, w) but got {tuple(images.shape)}.")
        if images.is_floating_point():
            if not bool(((images >= 0) & (images <= 1)).all()):
                raise DataError(
                    "Expected pixels in uint8, or in [0, 1] in floating point, but got values from "
                    f"{float(images.min()):.3g} to {float(images.max()):.3g}: do not normalise them, predict() does. Batches "
                    "that are normalised already may be given as a DataLoader."
                )
            images = images.mul(255).round().to(torch.uint8)
        if images.dtype != torch.uint8:
            raise DataError(f"Expected pixels in uint8 but got {str(images.dtype).removeprefix('torch.')}.")
        return fit_batch(images.cpu(), self.shape, self.resize)


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


def _from_array(pixels: NDArray[Any]) -> Image.Image:
    grey = pixels.ndim == 2
    if pixels.dtype != np.uint8 or not (grey or (pixels.ndim == 3 and pixels.shape[2] in (1, 3))) or 0 in pixels.shape:
        raise DataError(
            f"Expected a uint8 array (h, w) or (h, w, 3) but got {pixels.shape} in {pixels.dtype}. Stack nothing: several "
            "images are a list, or a tensor (N, c, h, w)."
        )
    return Image.fromarray(pixels if grey or pixels.shape[2] == 3 else pixels[:, :, 0])
