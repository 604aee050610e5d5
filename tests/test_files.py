"""Files are whole or not there."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from offaxis.errors import StorageError
from offaxis.files import replacing, write_text


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
    ("number", "said"), [(errno.ENOSPC, "disk is full"), (errno.EACCES, "another folder"), (errno.EIO, "untouched")]
)
def test_what_the_system_refuses_is_explained(tmp_path: Path, number: int, said: str) -> None:
    with pytest.raises(StorageError, match=said), replacing(tmp_path / "x"):
        raise OSError(number, os.strerror(number))


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


CHILD = """
import resource, signal, sys, torch
from pathlib import Path
from offaxis.training import checkpoint
from offaxis.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
small = checkpoint.Checkpoint(1, {}, {}, {"w": torch.zeros(10)}, {})
checkpoint.save(path, small)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoint.save(path, checkpoint.Checkpoint(2, {}, {}, {"w": torch.zeros(100_000)}, {}))
except StorageError as error:
    print("refused:", error)
print("step", checkpoint.load(path).step, sorted(p.name for p in path.parent.iterdir()))
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
