"""Standard output that cannot be written: a sentence and exit code 2, or silence where the reader has gone."""

import subprocess
import sys
from pathlib import Path

import pytest

from offaxis.errors import StorageError
from offaxis.files import write_text

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="/dev/full is a device of Linux")


@needs_full
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["data", "list"], ["paper", "one-vs-one"]])
def test_a_full_disk_is_told(words: list[str]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "offaxis", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: Standard output cannot be written (No space left on device)")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    "words", [["data", "inspect", 300 * "a"], ["score", 300 * "a", "x.png"], ["report", 300 * "a", "--out", "x"]]
)
def test_a_name_that_cannot_be_opened_is_told(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "offaxis", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "cannot be opened (File name too long): check its name" in " ".join(done.stderr.split())


def test_a_reader_that_has_gone_is_no_error_to_speak_of() -> None:
    program = f"{sys.executable} -m offaxis data list | true"
    done = subprocess.run(["bash", "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == ""


@needs_full
def test_a_device_is_never_replaced_by_a_file() -> None:
    with pytest.raises(StorageError, match="no plain file"):
        write_text(FULL, "x")
    assert FULL.is_char_device()
