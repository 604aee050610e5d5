"""Files that are written whole or not at all."""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offaxis.errors import StorageError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path``: what is written there takes the place of ``path`` when the block ends well.

    The data is on the disk before the name changes, so that neither an error, nor a full disk, nor ``kill -9``, nor a
    power cut leaves anything but the old file or the new one.

    Raises:
        StorageError: the disk is full or the folder cannot be written to; the old file is as it was.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise StorageError(_explain(path, error)) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def digest(values: Any) -> str:
    """16 hexadecimal digits for anything that JSON can hold."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _explain(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full: {path} was not written, and what was there before is untouched. Free some space and go on."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"{path.parent} cannot be written to ({error.strerror}): choose another folder, or change its permissions."
        )
    return f"{path} could not be written ({error.strerror or error}); what was there before is untouched."
