"""Standard output that cannot be written: a sentence and exit code 2, or silence where the reader has gone."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from offaxis.__main__ import start
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


LONG = """
import sys
from offaxis.cli import main
for words in (["data", "inspect", 300 * "a"], ["score", 300 * "a", "x.png"], ["report", 300 * "a", "--out", "x"]):
    sys.argv = ["offaxis", *words]
    try:
        main()
    except SystemExit as end:
        print(end.code)
"""


def test_a_name_that_cannot_be_opened_is_told() -> None:
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2", "2", "2"]
    assert "Traceback" not in done.stderr
    assert " ".join(done.stderr.split()).count("cannot be opened (File name too long): check its name") == 3


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_that_the_output_cannot_hold_are_escaped(encoding: str) -> None:
    environment = {**os.environ, "OFFAXIS_DATA": "caf\udce9\u2713", "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "offaxis", "data", "list"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert rb"Root: caf\udce9" in done.stdout


def test_a_reader_that_has_gone_is_no_error_to_speak_of() -> None:
    program = f"{sys.executable} -m offaxis data list | true"
    done = subprocess.run(["bash", "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("words", ["--version", "--help", "data list"])
def test_streams_that_are_closed_are_told(words: str) -> None:
    program = f"{sys.executable} -m offaxis {words}"
    done = subprocess.run(["bash", "-c", f"{program} >&-"], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: Standard output cannot be written (it is closed): redirect it to a file.")
    assert "Traceback" not in done.stderr
    done = subprocess.run(["bash", "-c", f"{program} 2>&- <&-"], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout


FAILS = "import sys\nimport offaxis.cli.paper as paper\nfrom offaxis.cli import main\n" + (
    "def fail(*_):\n    raise OSError({})\npaper.show_table = fail\nsys.argv = ['offaxis', 'paper']\nmain()"
)


def test_an_error_that_names_no_file_is_not_blamed_on_standard_output() -> None:
    def failing(arguments: str) -> subprocess.CompletedProcess[str]:
        program = FAILS.format(arguments)
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    limit = failing("24, 'Too many open files'")
    assert limit.returncode == 2
    assert limit.stderr.startswith("error: No more files can be opened (Too many open files): raise the limit")
    other = failing("'libcudart.so.12: cannot open shared object file'")
    assert other.returncode == 1
    assert other.stderr.endswith("OSError: libcudart.so.12: cannot open shared object file\n")  # with its traceback
    for done in (limit, other):
        assert "Standard output" not in done.stderr


@needs_full
def test_a_device_is_never_replaced_by_a_file() -> None:
    with pytest.raises(StorageError, match="no plain file"):
        write_text(FULL, "x")
    assert FULL.is_char_device()


def test_ctrl_c_that_turns_into_another_error_gives_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that is cut off can leave a module half made, which then fails in a way of its own."""

    def half_made() -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr("offaxis.cli.main", half_made)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as left:
            start()
    finally:
        signal.signal(signal.SIGINT, before)
    assert left.value.code == 130


def test_another_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr("offaxis.cli.main", broken)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(RecursionError):
            start()
    finally:
        signal.signal(signal.SIGINT, before)
