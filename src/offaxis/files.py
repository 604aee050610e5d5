"""Atomic writing of files, digests of values, and Python files of the user's."""

import errno
import hashlib
import importlib.util
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from offaxis.errors import ArgumentError, OffaxisError, StorageError

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""What writing to an open file fails with; such an error names no file."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path`` that replaces ``path`` when the block ends without an error.

    The data is flushed to disk before the file is renamed, so that an error, a full disk, ``kill -9`` or a power cut leaves
    either the old file or the new one, complete. Errors of the block that are not about this file pass unchanged.

    Args:
        path: the file to write; missing folders are created.

    Raises:
        StorageError: the file cannot be written (disk full, no permission); the old file is unchanged.
    """
    with _storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, mode = _create_beside(path)
    try:
        try:
            yield temporary
        except OSError as error:
            if not _concerns(error, temporary, path):
                raise
            raise StorageError(_explain(path, error)) from error
        with _storage_errors(path):
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.chmod(mode)  # the block may have put another file in its place
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, as UTF-8."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def digest(values: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a JSON-serialisable value."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def running_python(file: Path, purpose: str) -> Iterator[ModuleType]:
    """Run a Python file of the user's and yield it as a module; inside the block, modules beside it can be imported.

    Args:
        file: the Python file.
        purpose: what it is needed for, a noun such as ``"network"``, for messages.

    Raises:
        ArgumentError: there is no such file, or it or the block fails with an error that is not one of this package.
    """
    if not file.is_file():
        raise ArgumentError(f"Expected a Python file that makes a {purpose} but {file} is not there.")
    spec = importlib.util.spec_from_file_location(f"offaxis_{purpose}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
        yield module
    except OffaxisError:
        raise
    except Exception as error:
        raise ArgumentError(f"{file} could not make the {purpose}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(folder)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError about ``path``."""
    try:
        yield
    except OSError as error:
        raise StorageError(_explain(path, error)) from error


def _create_beside(path: Path) -> tuple[Path, int]:
    """Create an empty temporary file in the folder of ``path``; return it and the mode of a new file (0o666 & ~umask)."""
    while True:
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
        try:
            handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except FileExistsError:
            continue
        try:
            return temporary, os.fstat(handle).st_mode & 0o7777
        finally:
            os.close(handle)


def _concerns(error: OSError, *paths: Path) -> bool:
    """Return whether an error is about one of the files: it names it, or it names none and is an error of the disk."""
    if error.filename is None:
        return error.errno in DISK_ERRORS
    if isinstance(error.filename, int):  # a file descriptor
        return False
    named = Path(os.fsdecode(error.filename)).absolute()
    return any(named == path.absolute() for path in paths)


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
