"""Files that are written whole or not at all, with checksums; digests of values; Python files of the user's.

A file that offaxis reads again holds, at some place, ``offaxis-sha256:`` and 64 hexadecimal digits: the SHA-256 of the file's
own bytes with these digits set to zero. The format stays what it is: in a safetensors file the text stands among the metadata,
in a JSON file under ``checksum``, in an npz file in the comment of the zip file. ``sealed`` writes such a file and
``check_seal`` checks it; ``write_json``, ``write_arrays`` and their readers do both. Files that grow line by line, such as logs
and journals, have a checksum in every line: ``json_line`` and ``read_lines``.
"""

import errno
import filecmp
import glob
import hashlib
import importlib.util
import json
import mmap
import os
import re
import secrets
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from offaxis.errors import ArgumentError, OffaxisError, StorageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNSEALED = "offaxis-sha256:" + 64 * "0"
"""What a block of ``sealed`` writes somewhere into its file; the zeros become the checksum."""
_SEAL = re.compile(rb"offaxis-sha256:([0-9a-f]{64})")
_LINE = re.compile(rb'(.*), "checksum": "([0-9a-f]{16})"\}', re.DOTALL)
_MAX_JSON = 2**28  # bytes

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""What writing to an open file fails with; such an error names no file."""


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary file beside ``path`` that replaces ``path`` when the block ends without an error.

    The data is flushed to disk before the file is renamed, so that an error, a full disk, ``kill -9`` or a power cut leaves
    either the old file or the new one, complete. Errors of the block that are not about this file pass unchanged.

    Args:
        path: the file to write; missing folders are created.
        durable: wait until the data is on the disk. Without, a power cut may leave a damaged file, which a checksum tells;
            for files that are many and can be made again.

    Raises:
        StorageError: the file cannot be written (disk full, no permission); the old file is unchanged.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not is_regular(path):
            raise StorageError(f"{path} is there already and is no plain file: name another one.")
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        yield temporary
        if durable:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.chmod(mode)  # the block may have put another file in its place
        temporary.replace(path)
    except OSError as error:
        if isinstance(error, StorageError) or not _concerns(error, {temporary, path, *path.parents}):
            raise
        raise StorageError(_explain(path, error)) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def remove_left(path: Path) -> None:
    """Remove the temporary files that killed processes have left beside ``path``; none may be writing it now."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.{8 * '[0-9a-f]'}.part"):
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a text file atomically, as UTF-8; see ``replacing`` for ``durable``."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def sealed(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary file as ``replacing`` does, and put the checksum where the block wrote ``UNSEALED`` into it.

    Raises:
        StorageError: the file cannot be written; the old file is unchanged.
    """
    with replacing(path, durable=durable) as temporary:
        yield temporary
        place, _, digest = _seal(temporary)
        with temporary.open("rb+") as file:
            file.seek(place)
            file.write(digest)


def is_regular(path: Path) -> bool:
    """Return whether a path is a plain file, or a link to one: reading a pipe or a device may never end."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def check_plain(path: Path, most: int | None = None) -> None:
    """Raise OSError where a path is there and no plain file, or is one of more than ``most`` bytes."""
    if path.exists() and not is_regular(path):
        raise OSError(errno.EINVAL, "it is no plain file")
    if most is not None and path.stat().st_size > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")


def check_seal(path: Path, error: type[OffaxisError], remedy: str, *, required: bool = True) -> None:
    """Raise ``error`` where a file is not, byte for byte, what ``sealed`` wrote.

    Args:
        path: the file.
        error: the exception to raise; its message names the file and ends with ``remedy``.
        remedy: what to do, as in ``"train again, or restore the file"``.
        required: refuse a file without a checksum too; files of older versions and of other programs have none.
    """
    try:
        check_plain(path)
        _, stated, actual = _seal(path)
    except OSError as problem:
        raise error(f"{path} cannot be read ({problem.strerror or problem}): {remedy}.") from problem
    if stated != actual and (stated or required):
        what = "its checksum is wrong" if stated else "it has no checksum"
        raise error(f"{path} is damaged, {what}: {remedy}.")


def write_json(path: Path, values: Mapping[str, Any], *, ensure_ascii: bool = True) -> None:
    """Write a JSON object with a checksum, whole or not at all."""
    text = json.dumps({"checksum": UNSEALED, **values}, indent=1, ensure_ascii=ensure_ascii)
    with sealed(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(
    path: Path, error: type[OffaxisError], remedy: str, *, required: bool | Callable[[dict[str, Any]], bool] = True
) -> dict[str, Any]:
    """Read what ``write_json`` wrote.

    Args:
        path: the file.
        error: the exception to raise where the file is missing, damaged or no JSON object.
        remedy: what to do then.
        required: whether a file without a checksum is refused too, or a function that tells so from the values.
    """
    try:
        check_plain(path, _MAX_JSON)
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise error(f"{path} is damaged ({problem}): {remedy}.") from problem
    if not isinstance(values, dict):
        raise error(f"{path} is damaged (it holds {values!r:.40} where an object was expected): {remedy}.")
    needed = "checksum" in values or (required(values) if callable(required) else required)
    check_seal(path, error, remedy, required=needed)
    values.pop("checksum", None)
    return values


def write_arrays(
    path: Path, arrays: "Mapping[str, NDArray[Any]]", *, name: str = "", compress: bool = True, durable: bool = True
) -> None:
    """Write arrays by name as an npz file with a checksum, whole or not at all; see ``replacing`` for ``durable``.

    ``name`` tells the file from others of its kind, and ``read_arrays`` checks it.
    """
    import numpy as np

    with sealed(path, durable=durable) as temporary:
        with temporary.open("wb") as file:
            (np.savez_compressed if compress else np.savez)(file, **dict(arrays))  # type: ignore[arg-type]
        with zipfile.ZipFile(temporary, "a") as pack:
            pack.comment = f"{UNSEALED} {name}".encode()


def read_arrays(
    path: Path, error: type[OffaxisError], remedy: str, *, name: str = "", required: bool = True
) -> "dict[str, NDArray[Any]]":
    """Read what ``write_arrays`` wrote, under the same name or, by older versions, none.

    ``error``, ``remedy`` and ``required`` are those of ``check_seal``.
    """
    import numpy as np

    check_seal(path, error, remedy, required=required)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            stated, found = arrays.zip.comment.decode().partition(" ")[2], dict(arrays)
    except Exception as problem:  # whatever numpy and zipfile stumble over
        raise error(f"{path} is damaged ({str(problem)[:200] or type(problem).__name__}): {remedy}.") from problem
    if name and stated not in ("", name):
        raise error(f"{path} holds what was written as {stated}: {remedy}.")
    return found


def json_line(record: Mapping[str, Any]) -> str:
    """Return a line of a log or a journal: the record as JSON with a checksum of the line."""
    text = json.dumps(record)[:-1]
    return f'{text}, "checksum": "{hashlib.sha256(text.encode()).hexdigest()[:16]}"}}\n'


def read_lines(
    lines: Iterable[bytes], path: Path, error: type[OffaxisError], remedy: str, *, required: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield the records of lines that ``json_line`` made.

    Args:
        lines: the lines, with or without their ends.
        path: the file that they come from, for the message.
        error: the exception to raise for a damaged line; its message gives the number of the line.
        remedy: what to do then.
        required: whether a line without a checksum is refused too.
    """
    for number, line in enumerate(lines, 1):
        try:
            yield _parse_line(line.rstrip(b"\r\n"), required)
        except (ValueError, RecursionError) as problem:
            raise error(f"Line {number} of {path} is damaged ({problem}): {remedy}.") from None


def lock(file: IO[Any]) -> bool:
    """Lock an open file for this process until it is closed, however the process ends.

    Returns:
        False where another process has it; True too on systems and network disks without locks.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


def unlock(file: IO[Any]) -> None:
    """Close a file that ``lock`` has locked; its lock ends though forked processes may have inherited the file."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)
    file.close()


def digest(values: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a JSON-serialisable value."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _parse_line(line: bytes, required: bool) -> dict[str, Any]:
    """Return the record of a line without its checksum; raise ValueError where the line is damaged."""
    found = _LINE.fullmatch(line)
    if found is None and (required or b'"checksum"' in line):
        raise ValueError("it has no checksum" if line.endswith(b"}") else "it is cut off")
    if found is not None and hashlib.sha256(found[1]).hexdigest()[:16] != found[2].decode():
        raise ValueError("its checksum is wrong")
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError(f"it holds {record!r:.40} where an object was expected")
    record.pop("checksum", None)
    return record


def _seal(path: Path) -> tuple[int, bytes, bytes]:
    """Return where the digits of a file's checksum stand, these digits, and those that are right; (0, b"", ...) without."""
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        if path.stat().st_size == 0:  # cannot be mapped
            return 0, b"", hashed.hexdigest().encode()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            found = _SEAL.search(content)
            start, end = found.span(1) if found else (0, 0)
            stated = bytes(content[start:end])
            del found  # it holds the map open
            for part in (view[:start], b"0" * len(stated), view[end:]):
                hashed.update(part)
                if isinstance(part, memoryview):
                    part.release()
    return start, stated, hashed.hexdigest().encode()


@contextmanager
def running_python(file: Path, purpose: str) -> Iterator[ModuleType]:
    """Run a Python file of the user's and yield it as a module; inside the block, modules beside it can be imported.

    It stays imported, so that its objects can be pickled. Modules beside it are Python's as any others: a process that runs
    files of two folders cannot tell a module of one from another module of the same name in the other, and says so.

    Args:
        file: the Python file.
        purpose: what it is needed for, a noun such as ``"network"``, for messages.

    Raises:
        ArgumentError: there is no such file, it or the block fails with an error that is not one of this package, or a module
            beside it has the name of another one beside a file that ran before.
    """
    if not file.is_file():
        raise ArgumentError(f"Expected a Python file that makes a {purpose} but {file} is not there.")
    folder = file.resolve().parent
    for beside in folder.iterdir():
        origin = Path(getattr(sys.modules.get(beside.stem), "__file__", None) or os.devnull)
        other = origin.parent.parent if origin.name == "__init__.py" else origin.parent
        if other in _FOLDERS - {folder} and not (beside.is_file() and filecmp.cmp(beside, origin, shallow=False)):
            raise ArgumentError(
                f"Expected the modules beside {file} to have names of their own, but {beside.stem} was imported from {other} "
                "before: rename one of the two, or use the files in two processes."
            )
    _FOLDERS.add(folder)
    spec = importlib.util.spec_from_file_location(f"offaxis_{purpose}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    importlib.invalidate_caches()  # a module may have been written a moment ago
    sys.modules[spec.name] = module  # where dataclasses and pickle look for it
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
        yield module
    except OffaxisError:
        raise
    except Exception as error:
        raise ArgumentError(f"{file} could not make the {purpose}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(folder))


_FOLDERS: set[Path] = set()  # of the files that ran


def _concerns(error: OSError, paths: set[Path]) -> bool:
    """Return whether an error is about one of these paths: it names it, or it names none and is an error of the disk."""
    if isinstance(error.filename, str):
        return Path(error.filename) in paths
    return error.filename is None and error.errno in DISK_ERRORS


def _explain(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk is full: {path} was not written, and the previous file is unchanged. Free some space and resume."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"{path.parent} cannot be written to ({error.strerror}): choose another folder, or change its permissions."
        )
    return f"{path} could not be written ({error.strerror or error}); the previous file is unchanged."
