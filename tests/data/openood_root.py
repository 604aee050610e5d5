"""A small folder with OpenOOD's real layout: lists under benchmark_imglist, files under images_classic."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def write_root(
    root: Path, images: Mapping[str, Sequence[Pixels]], labels: Mapping[str, Sequence[int]], id: str = "cifar10"
) -> Path:
    """Write lists and PNG files.

    Args:
        root: the folder.
        images: by list (``train_cifar10``, ``test_mnist``): images (h, w) or (h, w, 3).
        labels: of the lists of the ID set; other lists have -1, and one of them other numbers, as some of OpenOOD's do.
        id: the ID set.
    """
    lists = root / "benchmark_imglist" / id
    lists.mkdir(parents=True)
    for name, own in images.items():
        part, _, set_name = name.partition("_")
        lines = []
        for number, pixels in enumerate(own):
            label = labels[name][number] if name in labels else (7 if set_name == "svhn" else -1)
            place = CLASSES[label] if name in labels else "images"
            file = Path(set_name) / part / place / f"{number:04d}.png"
            target = root / "images_classic" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(target)
            lines.append(f"{file.as_posix()} {label}\n")
        (lists / f"{name}.txt").write_text("".join(lines))
    return root


def noise_root(root: Path, count: int = 12, seed: int = 0, id: str = "cifar10") -> Path:
    """A root of random images, of several sizes and modes: quick to write."""
    draw = np.random.default_rng(seed)

    def some(number: int, *size: int) -> list[Pixels]:
        return list(draw.integers(0, 256, (number, *size), dtype=np.uint8))

    sizes = {f"train_{id}": 40, f"val_{id}": 10, f"test_{id}": 20}
    images = {name: some(number, 32, 32, 3) for name, number in sizes.items()}
    labels = {name: [i % 10 for i in range(number)] for name, number in sizes.items()}
    images |= {
        "val_tin": some(count, 64, 64, 3),
        "test_tin": some(count, 64, 64, 3),
        f"test_{'cifar100' if id == 'cifar10' else 'cifar10'}": some(count, 32, 32, 3),
    }
    images |= {"test_mnist": some(count, 28, 28), "test_svhn": some(count, 32, 32, 3)}
    images |= {"test_texture": some(count, 50, 37, 3), "test_places365": some(count, 33, 32, 3)}
    return write_root(root, images, labels, id)
