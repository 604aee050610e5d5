"""Decoded pixels on disk: a folder's images are decoded once, and later epochs, seeds and commands read no JPEG.

A cache is one file: the pixels, uint8 (N, c, h, w), which are mapped into memory; then one line of JSON with their shape, the
files that were left out and a checksum of it all; then the length of that line. Its name is a checksum of everything that the
pixels depend on: the files with their sizes and times, the size of the images and the rule that brings them to it.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import torch

from offaxis.data.catalogue import cache_folder
from offaxis.data.decode import printable
from offaxis.data.folder import Files, Reading, attempts, labelled, some_left, stopped_by
from offaxis.data.images import Skipped, TensorSet
from offaxis.errors import DataError, StorageError
from offaxis.files import UNSEALED, check_seal, digest, sealed

DECODER = 1
"""Counts changes of what ``decode`` and ``fit`` give for a file: older caches are not used then."""
ROOMS = ("pixels", "features", "unpacked", "onnx")
"""Folders of the cache that ``offaxis data clean`` empties; image sets that were downloaded stay."""
_LENGTH = 8


def cache_file(files: Files, reading: Reading) -> Path:
    """Return where the pixels of these files are kept, whether they are there or not."""
    states = [(printable(path.absolute()), *_state(path)) for path in files.paths]
    key = digest([DECODER, reading.shape, reading.resize, reading.native, reading.trim, states])
    return cache_folder() / "pixels" / f"{key}.pixels"


def _state(path: Path) -> tuple[int, int]:
    """Return size and time of a file; zeros where it cannot be read, which is told when it is decoded."""
    try:
        state = path.stat()
    except OSError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


def read_cached(name: str, files: Files, reading: Reading, skip_bad: bool, make: bool) -> TensorSet | None:
    """Return the images of these files from the cache; None where they are not in it, or damaged, and are not to be.

    Args:
        name: of the set.
        files: the files.
        reading: how each becomes an image.
        skip_bad: leave out files that cannot be read.
        make: decode the files into the cache where they are not in it.

    Raises:
        DataError: a file is bad and ``skip_bad`` is False, or all are bad.
        StorageError: the pixels do not fit on the disk.
    """
    path = cache_file(files, reading)
    found = _open(path, name, files, reading, skip_bad)
    if found is not None or not make:
        return found
    _write(path, name, files, reading, skip_bad)
    made = _open(path, name, files, reading, skip_bad)
    assert made is not None, f"{path} was written a moment ago"
    return made


def clean() -> dict[str, tuple[int, int]]:
    """Empty the cache: decoded pixels, features and unpacked archives; return (files, bytes) of each that was there."""
    removed: dict[str, tuple[int, int]] = {}
    for room in ROOMS:
        folder = cache_folder() / room
        sizes = [file.lstat().st_size for file in folder.rglob("*") if not file.is_dir()]
        if folder.is_dir():
            try:
                shutil.rmtree(folder)
            except OSError as error:
                raise StorageError(f"{folder} cannot be removed ({error.strerror}): remove it by hand.") from error
            removed[room] = (len(sizes), sum(sizes))
    return removed


def _open(path: Path, name: str, files: Files, reading: Reading, skip_bad: bool) -> TensorSet | None:
    try:
        check_seal(path, DataError, "decode the images again")
        with path.open("rb") as file:
            file.seek(-_LENGTH, os.SEEK_END)
            length = int.from_bytes(file.read(_LENGTH), "big")
            file.seek(-_LENGTH - length, os.SEEK_END)
            about = json.loads(file.read(length))
    except (DataError, OSError, ValueError):
        return None  # it is not there, or damaged: decoding the files gives the same
    skipped = [Skipped(*bad) for bad in about["skipped"]]
    if skipped and not skip_bad:
        return None
    left = files.without(skipped) if skipped else files
    pixels = np.memmap(path, np.uint8, "c", 0, (len(left.paths), *reading.shape))  # "c": changes stay in memory
    return labelled(name, torch.from_numpy(pixels), left)


def _write(path: Path, name: str, files: Files, reading: Reading, skip_bad: bool) -> None:
    needed = len(files.paths) * int(np.prod(reading.shape))
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise StorageError(
            f"The decoded pixels of {name} take {needed / 1e9:.1f} GB but {path.parent} has {free / 1e9:.1f} GB left: free "
            "some space (offaxis data clean), or leave out --cache."
        )
    bad: list[Skipped] = []
    with sealed(path) as temporary, temporary.open("wb") as file:
        for source, result in zip(files.paths, attempts(files, reading), strict=True):
            if not isinstance(result, DataError):
                file.write(result.data)
            elif skip_bad:
                bad.append(Skipped(printable(source), str(result)))
            else:
                raise stopped_by(result)
        some_left(name, files, bad)
        about = {"checksum": UNSEALED, "shape": list(reading.shape), "skipped": [[b.path, b.reason] for b in bad]}
        line = json.dumps(about).encode() + b"\n"
        file.write(line + len(line).to_bytes(_LENGTH, "big"))
