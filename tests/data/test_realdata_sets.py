"""Real sets, where there are some: OFFAXIS_DATA is their root.

OFFAXIS_MOSAICS may name a folder with the same images in another form: an ``INDEX.json`` and one mosaic picture a set.
"""

import hashlib
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from offaxis.data import CATALOGUE, PUBLISHED, ImageSet, Normalise, load_images
from offaxis.data.catalogue import Split
from offaxis.data.inspection import inspect

ROOT = Path(os.environ.get("OFFAXIS_DATA", "/nowhere"))
MOSAICS = Path(os.environ.get("OFFAXIS_MOSAICS", "/nowhere"))

pytestmark = pytest.mark.realdata


def _load(name: str, split: Split) -> ImageSet:
    if split not in CATALOGUE[name].available(ROOT):
        pytest.skip(f"{name} ({split}) is not below OFFAXIS_DATA")
    return load_images(name, split)


def _hashes(images: ImageSet) -> Counter[bytes]:
    """Of each image's bytes, row by row and pixel by pixel."""
    rows = (row for batch in images.batches(2048) for row in batch.permute(0, 2, 3, 1).contiguous().numpy())
    return Counter(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows)


def _tiles(names: list[str]) -> list[NDArray[np.uint8]]:
    index = json.loads((MOSAICS / "INDEX.json").read_text())
    tiles: list[NDArray[np.uint8]] = []
    for name in names:
        entry = index[name]
        n, h, w, c, columns = (entry[key] for key in ("n", "h", "w", "c", "cols"))
        with Image.open(MOSAICS / entry["file"]) as mosaic:
            pixels = np.asarray(mosaic.convert("RGB" if c == 3 else "L")).reshape(-1, h, columns, w, c)
        images = pixels.transpose(0, 2, 1, 3, 4).reshape(-1, h, w, c)[:n]
        assert hashlib.sha256(np.ascontiguousarray(images).tobytes()).hexdigest() == entry["sha256_pixels"]
        tiles.extend(images)
    return tiles


@pytest.mark.parametrize(
    ("name", "split", "mosaics"),
    [
        ("cifar100", "train", [f"cifar100_train_shuffled_{part}" for part in range(1, 6)]),
        ("cifar100", "test", ["cifar100_test"]),
        ("svhn", "test", ["svhn_test_first10k", "svhn_test_rest16032"]),
        ("tin-resize", "test", ["tinyimagenet_val_resize32"]),
        ("tin-crop-free", "test", ["tinyimagenet_test_crop32_5k"]),
        ("dtd", "test", ["dtd_10classes_resize32"]),
        ("scenes", "test", ["intelscenes_test_resize32"]),
        ("notmnist", "test", ["notmnist_10k"]),
    ],
)
def test_the_images_are_those_of_the_mosaics(name: str, split: Split, mosaics: list[str]) -> None:
    if not (MOSAICS / "INDEX.json").exists():
        pytest.skip("OFFAXIS_MOSAICS names no folder of mosaics")
    images = _load(name, split)
    expected = Counter(hashlib.blake2b(tile.tobytes(), digest_size=16).digest() for tile in _tiles(mosaics))
    assert _hashes(images) == expected


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_has_its_published_statistics(name: str) -> None:
    train = _load(name, "train")
    assert train.labels is not None
    per_class = len(train) // len(train.classes)
    assert train.labels.bincount().tolist() == [per_class] * len(train.classes)
    computed = Normalise.from_images(train)
    np.testing.assert_allclose(computed.mean, PUBLISHED[name].mean, atol=5e-4)
    np.testing.assert_allclose(computed.std, PUBLISHED[name].std, atol=5e-4)


def test_cifar10_is_the_official_binary_version() -> None:
    _load("cifar10", "test")
    path = ROOT / "cifar-10-batches-bin" / "test_batch.bin"
    if not path.exists():
        pytest.skip("CIFAR-10 lies here in another layout")
    assert hashlib.md5(path.read_bytes()).hexdigest() == "803d5f7f4d78ea53de84dbe85f74fb6d"


@pytest.mark.parametrize(("name", "mean"), [("mnist", 0.1307), ("fashion-mnist", 0.2860)])
@pytest.mark.parametrize("split", ["train", "test"])
def test_mnist_and_its_cousin_are_whole(name: str, mean: float, split: Split) -> None:
    images = _load(name, split)
    assert len(images) == CATALOGUE[name].counts[split]
    assert Normalise.from_images(images).mean[0] == pytest.approx(mean, abs=3e-3)
    assert images.labels is not None
    assert images.labels.bincount().min() >= (5400 if split == "train" else 890)


@pytest.mark.parametrize(
    ("name", "width"), [("tin-crop", 2), ("tin-crop-free", 0), ("tin-resize", 0), ("cifar10", 0), ("svhn", 0)]
)
def test_the_frame_is_found_where_it_is_and_nowhere_else(name: str, width: int) -> None:
    frame = inspect(_load(name, "test")).frame
    assert frame.is_frame == (width > 0)
    assert frame.width == width
