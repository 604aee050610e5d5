"""Files are whole or not there."""

import errno
import hashlib
import os
import pickle
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offaxis.errors import ArgumentError, DataError, StorageError
from offaxis.files import (
    UNSEALED,
    check_seal,
    json_line,
    read_arrays,
    read_json,
    read_lines,
    replacing,
    running_python,
    sealed,
    write_arrays,
    write_json,
    write_text,
)
from tests.hostile.damage import flipped


def _write_half(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise KeyError


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file.txt"
    write_text(path, "old")
    with pytest.raises(KeyError):
        _write_half(path)
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file.txt"]  # noqa: PTH208
    write_text(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    ("number", "named", "message"),
    [
        (errno.ENOSPC, True, "disk is full"),
        (errno.ENOSPC, False, "disk is full"),
        (errno.EACCES, True, "another folder"),
        (errno.EIO, True, "previous file is unchanged"),
        (errno.EIO, False, "previous file is unchanged"),
    ],
)
def test_what_the_system_refuses_is_explained(tmp_path: Path, number: int, named: bool, message: str) -> None:
    """Opening a file fails with its name, writing to an open one without."""
    with pytest.raises(StorageError, match=message), replacing(tmp_path / "x") as temporary:
        raise OSError(number, os.strerror(number), *([str(temporary)] if named else []))
    assert list(tmp_path.iterdir()) == []


def test_an_error_about_another_file_passes_unchanged(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "old")
    with pytest.raises(FileNotFoundError) as missing, replacing(tmp_path / "x"):
        (tmp_path / "other").read_text()
    assert not isinstance(missing.value, StorageError)
    assert missing.value.filename == str(tmp_path / "other")
    with pytest.raises(PermissionError), replacing(tmp_path / "x"):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "other"))
    with pytest.raises(ConnectionResetError), replacing(tmp_path / "x"):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    with pytest.raises(StorageError, match="^inner$"), replacing(tmp_path / "x"):
        raise StorageError("inner")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a device of Linux")
def test_a_device_that_is_full_is_told(tmp_path: Path) -> None:
    """The real error of a write, which names no file."""
    with (
        pytest.raises(StorageError, match="disk is full"),
        replacing(tmp_path / "x"),
        Path("/dev/full").open("wb", buffering=0) as file,
    ):
        file.write(b"x")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="could not be written"):
        write_text(tmp_path / "file" / "x", "")


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
    with replacing(tmp_path / "ours") as temporary:  # also where the block puts another file in its place
        (tmp_path / "private").touch(0o600)
        (tmp_path / "private").replace(temporary)
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_umask_of_the_process_is_never_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that make files meanwhile would get other permissions."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask was changed"))
    write_text(tmp_path / "x", "text")
    assert (tmp_path / "x").read_text() == "text"


CHILD = """
import resource, signal, sys, torch
from pathlib import Path
from offaxis.training import record as checkpoint
from offaxis.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
small = checkpoint.Checkpoint(step=1, progress={}, weights={"w": torch.zeros(10)}, momentum={})
checkpoint.save_checkpoint(path, small)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    large = {"w": torch.zeros(100_000)}
    checkpoint.save_checkpoint(path, checkpoint.Checkpoint(step=2, progress={}, weights=large, momentum={}))
except StorageError as error:
    print("refused:", error)
print("step", checkpoint.load_checkpoint(path).step, sorted(p.name for p in path.parent.iterdir()))
"""


def test_a_checkpoint_that_does_not_fit_leaves_the_last_one(tmp_path: Path) -> None:
    """A real write that the operating system refuses half-way, as on a full disk."""
    assert resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "c.safetensors")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "refused:" in done.stdout
    assert "step 1 ['c.safetensors']" in done.stdout


def test_the_checksum_is_that_of_the_bytes_with_zeros_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for before in (0, 5, 2**20 - 40, 2**20 + 3):  # also across the border of what is read at once
        with sealed(path) as temporary:
            temporary.write_bytes(b"a" * before + UNSEALED.encode() + b"b" * 100)
        found = path.read_bytes()
        digits = found[before + 15 : before + 79]
        assert found == b"a" * before + b"offaxis-sha256:" + digits + b"b" * 100
        assert hashlib.sha256(found.replace(digits, b"0" * 64)).hexdigest() == digits.decode()
        check_seal(path, DataError, "make it again")
        path.write_bytes(found[:-1])
        with pytest.raises(DataError, match=r"x is damaged, its checksum is wrong: make it again\."):
            check_seal(path, DataError, "make it again")
    path.write_bytes(b"plain")
    check_seal(path, DataError, "make it again", required=False)
    with pytest.raises(DataError, match="it has no checksum"):
        check_seal(path, DataError, "make it again")
    with pytest.raises(DataError, match="cannot be read"):
        check_seal(tmp_path / "absent", DataError, "make it again")


def test_json_and_arrays_come_back_or_are_refused(tmp_path: Path) -> None:
    values = {"a": [1, 2.5, None], "b": {"ä": "ö"}}
    arrays = {"x": np.arange(30.0), "y": np.zeros((2, 0), np.uint8)}
    write_json(tmp_path / "v.json", values)
    write_arrays(tmp_path / "a.npz", arrays)
    assert read_json(tmp_path / "v.json", DataError, "r") == values
    found = read_arrays(tmp_path / "a.npz", DataError, "r")
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    with np.load(tmp_path / "a.npz") as plain:  # a plain npz file
        assert plain.files == ["x", "y"]
    chance = random.Random(0)
    readers: dict[str, Callable[[Path], object]] = {
        "v.json": lambda path: read_json(path, DataError, "r"),
        "a.npz": lambda p: read_arrays(p, DataError, "r"),
    }
    for name, read in readers.items():
        whole = (tmp_path / name).read_bytes()
        for _ in range(300):
            (tmp_path / name).write_bytes(flipped(whole, chance))
            with pytest.raises(DataError, match=name):
                read(tmp_path / name)
    for text in ("", "{", "[]", "null", "[" * 100_000, "{}", '{"checksum": "x"}'):
        (tmp_path / "v.json").write_text(text)
        with pytest.raises(DataError, match="v.json"):
            read_json(tmp_path / "v.json", DataError, "r", required=lambda _: True)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe.*no plain file"):
        read_json(tmp_path / "pipe", DataError, "r")
    with pytest.raises(DataError, match="pipe.*no plain file"):
        read_arrays(tmp_path / "pipe", DataError, "r")
    with pytest.raises(StorageError, match="no plain file"):
        write_text(tmp_path / "pipe", "")


def test_lines_come_back_or_are_refused(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"step": 1, "loss": 0.1}, {"path": "ä\n", "checksum of": None}]
    lines = [json_line(record).encode() for record in records]
    assert list(read_lines(lines, tmp_path, DataError, "r")) == records
    chance = random.Random(0)
    for _ in range(300):
        changed = flipped(lines[1], chance, end=len(lines[1]) - 1)
        with pytest.raises(DataError, match=r"Line 2 of .* is damaged"):
            list(read_lines([lines[0], changed], tmp_path, DataError, "r"))
    for line in (b"", b"{", b'{"a": 1}', b"[" * 100_000, b"3", lines[0][:-5]):
        with pytest.raises(DataError, match="Line 1 of"):
            list(read_lines([line], tmp_path, DataError, "r"))
    assert list(read_lines([b'{"a": 1}'], tmp_path, DataError, "r", required=False)) == [{"a": 1}]


def test_a_file_of_the_users_may_define_dataclasses_and_objects_that_can_be_pickled(tmp_path: Path) -> None:
    file = tmp_path / "own_net.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from own_layers import Layer\n"
        "@dataclass\n"
        "class Net:\n"
        "    width: int = 3\n"
    )
    (tmp_path / "own_layers.py").write_text("class Layer:\n    pass\n")
    with running_python(file, "network") as module:
        made = module.Net(), module.Layer()
    again = pickle.loads(pickle.dumps(made))  # noqa: S301
    assert again[0] == made[0]
    assert type(again[1]) is type(made[1])
    assert str(tmp_path) not in sys.path


def test_modules_of_one_name_beside_files_of_two_folders_are_told(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder / "own_parts").mkdir(parents=True)
        (tmp_path / folder / "own_parts" / "__init__.py").write_text(f"FOLDER = {folder!r}\n")
        (tmp_path / folder / "own_net.py").write_text("from own_parts import FOLDER\n")
    for _ in range(2):
        with running_python(tmp_path / "a" / "own_net.py", "network") as module:
            assert module.FOLDER == "a"
    with (
        pytest.raises(ArgumentError, match="own_parts was imported from .*a before: rename"),
        running_python(tmp_path / "b" / "own_net.py", "network"),
    ):
        pass
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "own_net.py").write_text("FOLDER = 'c'\n")
    with running_python(tmp_path / "c" / "own_net.py", "network") as module:
        assert module.FOLDER == "c"


def test_copies_of_one_module_beside_files_of_two_folders_are_one(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own_copied.py").write_text("WIDTH = 3\n")
        (tmp_path / folder / "own_net.py").write_text(f"from own_copied import WIDTH\nFOLDER = {folder!r}\n")
        with running_python(tmp_path / folder / "own_net.py", "network") as module:
            assert folder == module.FOLDER
            assert module.WIDTH == 3


def test_a_file_that_fails_says_how(tmp_path: Path) -> None:
    file = tmp_path / "own_bad.py"
    file.write_text("raise ValueError(3)\n")
    with (
        pytest.raises(ArgumentError, match="could not make the network: ValueError: 3"),
        running_python(file, "network"),
    ):
        pass
    assert str(tmp_path) not in sys.path
