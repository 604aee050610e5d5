"""Fuzzers of the publishers' formats: MATLAB, pickles, IDX and archives. Each input is read or refused with a sentence."""

import gzip
import io
import pickle
import random
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from offaxis.data.containers import read_each, unpack
from offaxis.data.publishers import read_cifar10_pickled, read_idx_pair, read_svhn
from offaxis.errors import OffaxisError
from tests.hostile.damage import Counts, damaged, try_inputs


def try_each(inputs: Callable[[random.Random], bytes], read: Callable[[Path], object], count: int, seed: int) -> Counts:
    """Read ``count`` inputs from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"

        def make(chance: random.Random) -> tuple[Path, str]:
            data = inputs(chance)
            path.write_bytes(data)
            return path, data[:300].hex()

        return try_inputs(make, read, count, seed)


# MATLAB ---------------------------------------------------------------------------------------------------------------


def mat_file(compressed: bool, images: int = 3) -> bytes:
    from scipy.io import savemat

    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, images), np.uint8)
    savemat(out, {"X": pixels, "y": np.arange(images)[:, None] % 10}, do_compression=compressed)
    return out.getvalue()


def fuzz_mat(count: int, seed: int) -> Counts:
    """Damage uncompressed files, compressed ones, and the content of compressed ones."""
    plain, packed = mat_file(False), mat_file(True)

    def inputs(chance: random.Random) -> bytes:
        kind = chance.randrange(4)
        if kind == 0:
            return damaged(packed, chance)
        found = bytearray(plain)
        for _ in range(chance.choice((1, 2, 5))):  # numbers of the elements' heads
            position = chance.choice(
                (128, 132, 136, 144, 152, 156, 160, 176, 180, 184, 188, 9384 + chance.randrange(80))
            )
            size = min(4, len(found) - position)
            number = chance.choice((chance.randrange(64), chance.randrange(2**32), 2**31 - 1, 2**32 - 1))
            found[position : position + size] = struct.pack("<I", number)[:size]
        if kind == 1:
            return damaged(bytes(found), chance)
        return bytes(found) if kind == 2 else bytes(found[:128]) + recompressed(bytes(found[128:]))

    return try_each(inputs, lambda path: read_svhn([path]), count, seed)


def recompressed(elements: bytes) -> bytes:
    content = zlib.compress(elements)
    return struct.pack("<II", 15, len(content)) + content


def element_types(first: int, last: int) -> Counts:
    """Set the type of the first array's numbers to each value in turn, in an uncompressed file."""
    plain = mat_file(False)
    values = iter(range(first, last))

    def inputs(_: random.Random) -> bytes:
        return plain[:184] + struct.pack("<I", next(values)) + plain[188:]

    return try_each(inputs, lambda path: read_svhn([path]), last - first, 0)


def bomb() -> Counts:
    """A file of about 1.8 megabytes that is two gigabytes when it is inflated."""
    images = 2 * 2**30 // 3072
    flags, dimensions = struct.pack("<IIII", 6, 8, 9, 0), struct.pack("<II4i", 5, 16, 32, 32, 3, images)
    head = flags + dimensions + struct.pack("<HH", 1, 1) + b"X\0\0\0" + struct.pack("<II", 2, images * 3072)
    packer, first, zeros = zlib.compressobj(9), struct.pack("<II", 14, len(head) + images * 3072) + head, bytes(2**24)
    content, check = packer.compress(first) + packer.flush(zlib.Z_FULL_FLUSH), zlib.adler32(first)
    block = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)  # refers to nothing before it: can be repeated
    for _ in range(images * 3072 // 2**24):
        content, check = content + block, zlib.adler32(zeros, check)
    content += packer.flush()[:-4] + struct.pack(">I", check)
    assert len(content) < 3 * 2**20
    header = b"MATLAB 5.0".ljust(124) + b"\x00\x01IM"
    data = header + struct.pack("<II", 15, len(content)) + content
    return try_each(lambda _: data, lambda path: read_svhn([path]), 1, 0)


# pickles --------------------------------------------------------------------------------------------------------------


def hostile_pickles() -> list[bytes]:
    """Small files that take all memory of the unpickler in C, and relatives of theirs."""
    return [
        b"\x80\x02Nr\xff\xff\xff\x07.",  # kept as number 134217727: a table of 2 gigabytes
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"Np99999999\n.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a frame of 2**63 bytes
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # bytes of that length
        b"\x80\x05\x96\x00\x00\x00\x40\x00\x00\x00\x00" + bytes(99) + b".",  # a bytearray of a gigabyte
        b"\x80\x02T\xff\xff\xff\x7f.",
        b"\x80\x02" + b"(" * 100_000 + b".",
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x02}" + b"]" * 100_000 + b"a" * 99_999 + b"K\x01s.",
        b"\x80\x02\x8b\x00\x00\x00\x01" + b"\xff" * 2**24 + b".",
        b"I" + b"9" * 100_000 + b"\n.",
        b"\x80\x02\x8f(" + b"K\x01" * 1000 + b"\x90.",  # a set
    ]


def pickle_file(protocol: int) -> bytes:
    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [3, 1], b"filenames": [b"a", b"b"]}
    return pickle.dumps(content, protocol)


def fuzz_pickles(count: int, seed: int) -> Counts:
    """The hostile ones, then damaged CIFAR batches, then random instructions."""
    ready = [*hostile_pickles()]
    whole = [pickle_file(protocol) for protocol in range(6)]

    def inputs(chance: random.Random) -> bytes:
        if ready:
            return ready.pop()
        if chance.random() < 0.3:
            codes = b"()]}KNqhRbtuasec0123d\x85\x86\x87\x8f\x90\x91\x92\x93\x94\x95\x8c\x8eTUXgjlopr"
            return b"\x80" + bytes([chance.randrange(6)]) + bytes(chance.choice(codes) for _ in range(200)) + b"."
        data = bytearray(chance.choice(whole))
        if chance.random() < 0.7:  # outside of the pixels
            for _ in range(chance.choice((1, 3))):
                edge = chance.randrange(200)
                data[edge if chance.random() < 0.5 else -edge - 1] = chance.randrange(256)
            return bytes(data)
        return damaged(bytes(data), chance)

    return try_each(inputs, lambda path: read_cifar10_pickled([path]), max(count, len(ready)), seed)


# IDX ------------------------------------------------------------------------------------------------------------------


def fuzz_idx(count: int, seed: int) -> Counts:
    """Damaged IDX files, plain and gzipped."""
    images = b"\x00\x00\x08\x03" + struct.pack(">III", 4, 28, 28) + bytes(4 * 784)
    labels = b"\x00\x00\x08\x01" + struct.pack(">I", 4) + bytes(4)

    def inputs(chance: random.Random) -> bytes:
        data = bytearray(images)
        if chance.random() < 0.5:
            data[chance.randrange(16)] = chance.choice((0, 1, 3, 0x7F, 0xFF, chance.randrange(256)))
        found = bytes(data) if chance.random() < 0.6 else damaged(bytes(data), chance)
        return gzip.compress(found) if chance.random() < 0.3 else found

    def read(path: Path) -> None:
        beside = path.with_name("labels")
        beside.write_bytes(labels)
        read_idx_pair([path, beside], list("0123456789"))

    return try_each(inputs, read, count, seed)


# archives -------------------------------------------------------------------------------------------------------------


def archive(kind: str, chance: random.Random) -> bytes:
    out, members = io.BytesIO(), {f"a/{n}.txt": chance.randbytes(50) for n in range(4)}
    if chance.random() < 0.3:
        members[chance.choice(("../out", "/etc/x", "a\\..\\b", "c:x", "", "a/../../x"))] = b"escape"
    if kind == "zip":
        with zipfile.ZipFile(out, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as pack:
            for name, data in members.items():
                pack.writestr(name or "x", data)
        return out.getvalue()
    with tarfile.open(fileobj=out, mode=chance.choice(("w", "w:gz", "w:bz2", "w:xz"))) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name or "x")
            info.size = len(data)
            if chance.random() < 0.05:
                info.type, info.size, info.linkname = tarfile.SYMTYPE, 0, "/etc"
            tar.addfile(info, io.BytesIO(data if info.size else b""))
    return out.getvalue()


def fuzz_archives(count: int, seed: int) -> Counts:
    """Damaged and escaping archives: nothing is written outside of the folder."""
    chance, total = random.Random(seed), {"read": 0, "refused": 0}
    for kind in ("zip", "tar"):

        def inputs(inner: random.Random, kind: str = kind) -> bytes:
            whole = archive(kind, inner)
            return damaged(whole, inner) if inner.random() < 0.8 else whole

        def read(path: Path, kind: str = kind) -> None:
            named = path.with_name(f"input.{kind}")
            named.write_bytes(path.read_bytes())
            with tempfile.TemporaryDirectory(dir=path.parent) as outer:
                try:
                    unpack(named, Path(outer) / "inner" / "folder")
                    assert sum(1 for _ in read_each(named, 2**20)) >= 0
                except OffaxisError as error:
                    raise type(error)(f"{path} {error}") if str(named) in str(error) else AssertionError from error
                finally:
                    allowed = Path(outer) / "inner"
                    assert all(found == allowed for found in Path(outer).iterdir())
                    assert all(found.name == "folder" for found in allowed.iterdir())

        counts: dict[str, Any] = try_each(inputs, read, count // 2, chance.randrange(2**31))
        total = {name: total[name] + counts[name] for name in total}
    return total
