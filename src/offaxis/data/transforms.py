"""Images or feature vectors -> what a network takes: one declared rule for size and colour, and normalisation.

Two rules bring an image to a size, both bilinear with antialiasing (Pillow's ``BILINEAR``): ``stretch`` keeps the whole
image and changes its proportions; ``crop`` cuts out the largest centred part that has the new proportions and resizes it,
which is "short side to the size, then centre crop". Grey becomes RGB by repeating it; RGB becomes grey by its luminance
(ITU-R 601: 0.299 R + 0.587 G + 0.114 B). Bytes stay bytes. The rule is the same for arrays and for files, so a set gives
the same pixels however it was stored.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from offaxis.data.decode import MAX_PIXELS, decode, eight_bits
from offaxis.data.images import ImageSet, describe_tensor, to_unit
from offaxis.errors import ArgumentError, DataError, at_least_one


@dataclass(frozen=True)
class Normalise:
    """(pixel in [0, 1] - mean) / std, channel by channel, with the ID set's statistics for every set.

    Attributes:
        mean: one number per channel.
        std: one positive number per channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        finite = all(math.isfinite(value) for value in (*self.mean, *self.std))
        if not self.mean or len(self.mean) != len(self.std) or not finite or min(self.std) <= 0:
            raise ArgumentError(
                f"Expected a finite mean and a positive std for each channel but got {self.mean} and {self.std}."
            )

    @classmethod
    def from_images(cls, images: ImageSet) -> Self:
        """Compute the mean and the standard deviation of all pixels of a set, by channel, summed in float64."""
        statistics = images.statistics()
        return cls(statistics.mean, tuple(max(std, 1e-6) for std in statistics.std))

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise a batch (N, c, h, w), uint8 or in [0, 1]: float (N, c, h, w)."""
        if images.shape[1] != len(self.mean):
            raise ArgumentError(f"Expected images with {len(self.mean)} channels but got {images.shape[1]}.")
        pixels = to_unit(images)
        mean, std = (torch.tensor(v, dtype=pixels.dtype, device=pixels.device) for v in (self.mean, self.std))
        return (pixels - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)


# As the paper's authors ran their networks; for every other set, Normalise.from_images computes them.
PUBLISHED: dict[str, Normalise] = {
    "cifar10": Normalise((0.49137255, 0.48235294, 0.44666667), (0.24705882, 0.24352941, 0.26156863)),
    "cifar100": Normalise((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


Shape = tuple[int, int, int]
MAX_SIDE = 16_384  # pixels; an image of a larger side is more than a file may hold
Resize = Literal["crop", "stretch"]
"""How an image is brought to a size."""
NO_LABELS = torch.empty(0, dtype=torch.long)
CROP_ABOVE = 64
"""Images of more pixels a side are cropped unless the rule is named: photographs keep their proportions."""


def resize_rule(shape: Shape, resize: str | None = None) -> Resize:
    """Return the rule for a shape (c, h, w): the one that is named, else crop above 64 pixels and stretch up to them.

    Raises:
        ArgumentError: there is no such rule.
    """
    if resize is None:
        return "crop" if min(shape[1:]) > CROP_ABOVE else "stretch"
    if resize not in get_args(Resize):
        raise ArgumentError(f"Expected resize to be one of {', '.join(get_args(Resize))} but got {resize!r}.")
    return resize  # type: ignore[return-value]


def centre(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of the largest centred part of an image that has the proportions of the target.

    Examples:
        >>> centre((300, 401), (224, 224))
        (0, 50, 300, 300)
    """
    (height, width), (target_height, target_width) = size, target
    if height * target_width > width * target_height:
        kept = (max(1, round(width * target_height / target_width)), width)
    else:
        kept = (height, max(1, round(height * target_width / target_height)))
    return (height - kept[0]) // 2, (width - kept[1]) // 2, *kept


def fit(image: Image.Image, shape: Shape, resize: str | None = None) -> NDArray[np.uint8]:
    """Match an image in mode L or RGB to a shape by one of the two rules (see ``resize_rule``): uint8 (c, h, w)."""
    channels, height, width = shape
    if channels == 1 and image.mode != "L":
        image = image.convert("L")
    if image.size != (width, height):
        if resize_rule(shape, resize) == "crop":
            top, left, kept_height, kept_width = centre((image.height, image.width), (height, width))
            image = image.crop((left, top, left + kept_width, top + kept_height))
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    if channels == 3 and image.mode != "RGB":
        image = image.convert("RGB")
    pixels = np.asarray(image).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def fit_batch(images: Tensor, shape: Shape, resize: str | None = None) -> Tensor:
    """Match a batch (B, c, h, w), uint8 or float32 in [0, 1], to a shape by one of the two rules: (B, *shape), same type."""
    check_shape(shape)
    if tuple(images.shape[1:]) == shape:
        return images
    images = _luminance(images) if shape[0] == 1 and images.shape[1] == 3 else images
    if resize_rule(shape, resize) == "crop":
        top, left, height, width = centre((images.shape[2], images.shape[3]), shape[1:])
        images = images[:, :, top : top + height, left : left + width]
    images = _resize(images, shape[1:])
    return images.expand(-1, 3, -1, -1).contiguous() if images.shape[1] < shape[0] else images


def check_shape(shape: Shape) -> None:
    """Raise ArgumentError unless this is a shape that images can be matched to."""
    if shape[0] not in (1, 3) or min(shape) < 1 or max(shape) > MAX_SIDE:
        raise ArgumentError(
            f"Expected a shape (1 or 3 channels, height, width), no side above {MAX_SIDE:,}, but got {shape}."
        )


def _luminance(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:  # with Pillow's integers, to the bit
        red, green, blue = images.int().unbind(1)
        return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).to(torch.uint8).unsqueeze(1)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(images.shape[2:]) == size:
        return images
    if images.dtype != torch.uint8:
        return F.interpolate(images, size, mode="bilinear", antialias=True).clamp(0, 1)
    resized = torch.empty(*images.shape[:2], *size, dtype=torch.uint8)
    planes, target = images.numpy(), resized.numpy()
    for index in np.ndindex(*images.shape[:2]):
        plane = Image.fromarray(np.ascontiguousarray(planes[index]))
        target[index] = np.asarray(plane.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    return resized


class Matched(ImageSet):
    """Another set, matched to a shape as it is read."""

    def __init__(self, source: ImageSet, shape: Shape, resize: str | None = None) -> None:
        check_shape(shape)
        super().__init__(source.name, shape, classes=source.classes)
        self.resize = resize_rule(shape, resize)
        self.describe_like(source, size=list(shape[1:]), resize=self.resize)
        self.source = source

    @property
    def labels(self) -> Tensor | None:
        """Labels, int64 (N,), or None."""
        return self.source.labels

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: Tensor) -> Tensor:
        """Return the images at these indices: (B, c, h, w)."""
        return fit_batch(self.source.batch(indices), self.shape, self.resize)

    def stream(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield a batch for each tensor of indices, in order."""
        return (fit_batch(images, self.shape, self.resize) for images in self.source.stream(indices))


def match(images: ImageSet, shape: Shape, resize: str | None = None) -> ImageSet:
    """Return the set itself where it has this shape, else the set matched to it by one of the two rules."""
    return images if images.shape == shape else Matched(images, shape, resize)


@dataclass(frozen=True)
class Batches:
    """Normalised batches of a set with their labels, which can be iterated again and again.

    The labels of a set without labels are an empty tensor (0,), so that nothing can be fitted on them by mistake.
    """

    images: ImageSet
    normalise: Normalise
    size: int

    def __post_init__(self) -> None:
        at_least_one("batch_size", self.size)

    def __len__(self) -> int:
        return -(-len(self.images) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        indices = torch.arange(len(self.images)).split(self.size)
        labels = self.images.labels
        for chosen, pixels in zip(indices, self.images.stream(indices), strict=True):
            yield self.normalise(pixels), NO_LABELS if labels is None else labels[chosen]


ImageLike = str | Path | bytes | Image.Image | NDArray[np.uint8] | Tensor
"""A file, its bytes, a Pillow image, uint8 pixels (h, w), (h, w, 3) as an array or (c, h, w) as a tensor."""


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
            raise DataError(
                f"Expected a file, bytes, a Pillow image, an array or a tensor but got a {type(image).__name__}."
            )
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
        single = isinstance(images, str | bytes) or not isinstance(images, Sequence)
        several: Sequence[Any] = [images] if single else images  # type: ignore[assignment]
        return (
            torch.from_numpy(np.stack([self.pixels(image) for image in several[start : start + 256]]))
            for start in range(0, len(several), 256)
        )

    def match(self, images: ImageSet) -> ImageSet:
        """Return a set as images of this size and colour."""
        return match(images, self.shape, self.resize)

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
        floats = images.is_floating_point()
        fits = images.dim() == 4 and images.shape[1] in (1, 3) and 0 not in images.shape[1:]
        if not fits or not (floats or images.dtype == torch.uint8):
            raise DataError(
                f"Expected images of shape (N, 1 or 3, h, w), pixels in uint8 or in [0, 1], but got {describe_tensor(images)}."
            )
        if floats and not bool(((images >= 0) & (images <= 1)).all()):
            raise DataError(
                "Expected pixels in uint8, or in [0, 1] in floating point, but got values from "
                f"{float(images.min()):.3g} to {float(images.max()):.3g}: do not normalise them, predict() does. Batches "
                "that are normalised already are given as a list, [images], or as a DataLoader."
            )
        pixels = images.mul(255).round().to(torch.uint8) if floats else images
        return fit_batch(pixels.cpu(), self.shape, self.resize)


def _from_array(pixels: NDArray[Any]) -> Image.Image:
    grey = pixels.ndim == 2
    if pixels.dtype != np.uint8 or not (grey or (pixels.ndim == 3 and pixels.shape[2] in (1, 3))) or 0 in pixels.shape:
        raise DataError(
            f"Expected a uint8 array (h, w) or (h, w, 3) but got {pixels.shape} in {pixels.dtype}. Stack nothing: several "
            "images are a list, or a tensor (N, c, h, w)."
        )
    return Image.fromarray(pixels if grey or pixels.shape[2] == 3 else pixels[:, :, 0])


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
                row = None
        return np.asarray(self._checked([row], name or "the vector")[0])

    def batch(self, rows: Any) -> Iterable[Tensor]:
        """Yield float64 batches (B, d) of rows (N, d), or of one row (d,): an array, a tensor or lists of numbers.

        Raises:
            DataError: these are not rows of d finite numbers.
        """
        single = isinstance(rows, str | bytes | Path) or np.ndim(rows) == 1
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
        except (ValueError, TypeError):  # rows of different lengths
            numbers = np.empty(0)
        if numbers.ndim != 2 or numbers.shape[1] != self.size or numbers.dtype.kind not in "fiu":
            came = f"{numbers.shape[1]} of type {numbers.dtype}" if numbers.ndim == 2 else "something else"
            raise DataError(
                f"Expected rows of {self.size} numbers, as the model was fitted to feature vectors, but got {came} ({name}): "
                'compute features with the same model; over HTTP they are JSON, {"features": [[...], ...]}, in the shell .npy.'
            )
        if not np.isfinite(numbers).all():
            raise DataError(
                f"Expected finite numbers but {name} has NaN or infinity: leave such rows out, or repair them."
            )
        return np.ascontiguousarray(numbers, np.float64)


def input_from_json(saved: dict[str, Any]) -> Preprocessing | VectorInput:
    """Return the preprocessing, or the input of feature vectors, that ``to_json`` described."""
    return VectorInput(int(saved["features"])) if "features" in saved else Preprocessing.from_json(saved)
