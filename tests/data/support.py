"""Tiny sets in the publishers' own formats, and the state of a web server."""

import gzip
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from offaxis.data.catalogue import Entry, Layout, Split

Pixels = NDArray[np.uint8]
Save = Callable[[Path, Pixels], None]
Png = Callable[[Pixels], bytes]


@dataclass
class Published:
    """What was written: images (N, c, h, w) in the order in which they must come back, and labels."""

    images: Pixels
    labels: list[int] | None


def random_images(count: int, channels: int, height: int, width: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, channels, height, width), np.uint8)


def save_image(path: Path, image: Pixels) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = image.transpose(1, 2, 0)
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(path)


def write_records(path: Path, labels: Pixels, images: Pixels) -> None:
    """Write labels (N, label_bytes) and images (N, c, h, w) as CIFAR's binary files have them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.concatenate([labels, images.reshape(len(images), -1)], axis=1).tofile(path)


def write_idx(array: Pixels) -> bytes:
    """Encode an array of bytes with 1 to 4 dimensions as an IDX file."""
    header = b"\x00\x00\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.tobytes()


def old_pickle(data: Pixels, key: str, labels: list[int]) -> bytes:
    """The pickle that Python 2 and an old numpy wrote, as CIFAR is published: its strings are bytes."""

    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    rows, columns = data.shape
    dtype = b"cnumpy\ndtype\n" + text("u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text("|") + b"NNN" + number(-1) + number(-1) + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text("b") + b"\x87R"
    array += b"(K\x01" + number(rows) + number(columns) + b"\x86" + dtype + b"\x89"
    array += b"T" + struct.pack("<i", data.size) + data.tobytes() + b"tb"
    numbers = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text("data") + array + text(key) + numbers + b"u."


def _cifar(folder: Path, entry: Entry, layout: Layout, split: Split) -> Published:
    files = layout.files[split]
    images, labels = random_images(3 * len(files), 3, 32, 32), [i * 7 % 10 for i in range(3 * len(files))]
    for number, name in enumerate(files):
        part = slice(3 * number, 3 * number + 3)
        column = np.array(labels[part], np.uint8)[:, None]
        if name.endswith(".bin"):
            coarse = [np.full_like(column, 19)] if entry.name == "cifar100" else []
            write_records(folder / name, np.concatenate([*coarse, column], axis=1), images[part])
        else:
            key = "labels" if entry.name == "cifar10" else "fine_labels"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(old_pickle(images[part].reshape(3, 3072), key, labels[part]))
    return Published(images, labels)


def _idx(folder: Path, entry: Entry, layout: Layout, split: Split) -> Published:
    images, labels = random_images(5, 1, 28, 28), [3, 1, 4, 1, 5]
    folder.mkdir(parents=True, exist_ok=True)
    names = [alternatives.split("|") for alternatives in layout.files[split]]
    (folder / names[0][1]).write_bytes(gzip.compress(write_idx(images[:, 0])))  # one gzipped, one plain
    (folder / names[1][0]).write_bytes(write_idx(np.array(labels, np.uint8)))
    return Published(images, labels)


def _svhn(folder: Path, entry: Entry, layout: Layout, split: Split) -> Published:
    from scipy.io import savemat

    images, labels = random_images(4, 3, 32, 32), [0, 9, 1, 0]
    folder.mkdir(parents=True, exist_ok=True)
    column = np.array([[10], [9], [1], [10]], np.uint8)
    savemat(folder / layout.files[split][0], {"X": images.transpose(2, 3, 1, 0), "y": column}, do_compression=True)
    return Published(images, labels)


def _stl10(folder: Path, entry: Entry, layout: Layout, split: Split) -> Published:
    images, labels = random_images(3, 3, 96, 96), [0, 9, 4]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / layout.files[split][0]).write_bytes(images.transpose(0, 1, 3, 2).tobytes())
    (folder / layout.files[split][1]).write_bytes(bytes(label + 1 for label in labels))
    return Published(images, labels)


def _food101(folder: Path, entry: Entry, layout: Layout, split: Split) -> Published:
    stems = ["apple_pie/11", "apple_pie/12", "waffles/3"]
    images = np.repeat(random_images(3, 3, 1, 1), 48, 2).repeat(64, 3)  # one colour each: JPEG keeps it nearly
    for stem, image in zip(stems, images, strict=True):
        save_image(folder / "images" / f"{stem}.jpg", image)
    save_image(folder / "images" / "waffles" / "99.jpg", images[0])  # in the other split
    (folder / "meta").mkdir(exist_ok=True)
    (folder / "meta" / f"{split}.txt").write_text("\n".join(stems) + "\n")
    return Published(images, [0, 0, 1])


def _gtsrb(folder: Path, entry: Entry, layout: Layout, split: Split) -> Published:
    images = random_images(3, 3, 32, 32)
    if split == "train":
        for number, image in enumerate(images):
            save_image(folder / "GTSRB" / "Training" / f"{number // 2 * 42:05d}" / f"{number:05d}.ppm", image)
        (folder / "GTSRB" / "Training" / "00000" / "GT-00000.csv").write_text("Filename;ClassId\n")
        return Published(images, [0, 0, 42])
    rows = ["Filename;Width;Height;ClassId"]
    for number, image in enumerate(images):
        save_image(folder / "GTSRB" / "Final_Test" / "Images" / f"{number:05d}.ppm", image)
        rows.append(f"{number:05d}.ppm;32;32;{[16, 1, 38][number]}")
    (folder / "GTSRB" / "Final_Test" / "Images" / "GT-final_test.test.csv").write_text("Filename;Width;Height\n")
    (folder / "GT-final_test.csv").write_text("\n".join(rows) + "\n")
    return Published(images, [16, 1, 38])


def _folder(folder: Path, entry: Entry, layout: Layout, split: Split) -> Published:
    height, width = entry.native_size or entry.shape[1:]
    images = random_images(4, entry.shape[0], height, width)
    if entry.framed or entry.trim:
        for edge in (slice(0, 2), slice(-2, None)):
            images[:, :, edge] = 0
            images[:, :, :, edge] = 0
    by_class = entry.name in ("notmnist", "dtd", "scenes")
    for number, image in enumerate(images):
        inner = folder / ("buildings", "street")[number // 2] if by_class else folder
        save_image(inner / f"{number:06d}.png", image)
    (folder / ".DS_Store").write_text("left behind")
    return Published(images, [0, 0, 1, 1] if by_class else None)


Publish = Callable[[Path, Entry, Layout, Split], Published]
_WRITERS: dict[str, Publish] = {
    "cifar10": _cifar,
    "cifar100": _cifar,
    "mnist": _idx,
    "fashion-mnist": _idx,
    "kmnist": _idx,
    "svhn": _svhn,
    "stl10": _stl10,
    "food101": _food101,
    "gtsrb": _gtsrb,
}


def publish_set(folder: Path, entry: Entry, layout: Layout, split: Split) -> Published:
    """Write a tiny set as its publisher lays it out."""
    return _WRITERS.get(entry.name, _folder)(folder, entry, layout, split)


@dataclass
class Site:
    """A web server on localhost.

    Attributes:
        url: its address, without a slash at the end.
        files: path -> content.
        cuts: path -> for each request in turn, after how many bytes the connection breaks (None: never).
        ranges: whether it knows the header Range.
        lengths: whether it says how long an answer is.
        requests: (path, the header Range or "") of every request so far.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cuts: dict[str, list[int | None]] = field(default_factory=dict)
    ranges: bool = True
    lengths: bool = True
    requests: list[tuple[str, str]] = field(default_factory=list)
