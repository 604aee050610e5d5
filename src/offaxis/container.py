"""The files of a bundle in one zip file or one folder, with checksums: written whole or not at all, read with checks."""

import hashlib
import json
import os
import struct
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offaxis.errors import BundleError, StorageError
from offaxis.files import check_plain, is_regular, replacing

FORMAT = "offaxis-bundle"
VERSION = 2
MANIFEST = "bundle.json"
FILES = ("network.safetensors", "detector.safetensors", "calibration.safetensors", "used.safetensors")
LEFT_BY_SYSTEMS = (".DS_Store", "Thumbs.db", "desktop.ini")
MAX_MANIFEST = 8 * 2**20
MAX_BYTES = 16 * 2**30
_END = struct.Struct("<4s4H2IH")  # the last record of a zip file
_DIRECTORY = 2**16


def write_container(path: Path, meta: Mapping[str, Any], files: Mapping[str, bytes], folder: bool = False) -> None:
    """Write a bundle, whole or not at all; the same content gives the same bytes.

    Raises:
        StorageError: it cannot be written, or a folder would replace one that holds more than a bundle.
    """
    assert set(files) == set(FILES)
    manifest = {"format": FORMAT, "version": VERSION, **meta}
    manifest["files"] = {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in files.items()}
    manifest["sha256"] = _of_manifest(manifest)
    whole = {MANIFEST: json.dumps(manifest, indent=1).encode(), **files}
    if folder:
        _write_folder(path, whole)
        return
    if path.is_dir():
        raise StorageError(f"{path} is a folder: name a file, or write a folder (folder=True, --folder).")
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as pack:
        for name, data in whole.items():
            pack.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)


def read_container(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read the manifest and the files of a bundle and check every byte.

    Raises:
        BundleError: it is absent, damaged, foreign or of another version.
    """
    if not path.exists():
        raise BundleError(
            f"There is no bundle at {path}: make one with `offaxis bundle RUN --calibrate IMAGES --out {path}`."
        )
    try:
        return _read_folder(path) if path.is_dir() else _read_file(path)
    except BundleError:
        raise
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror or error}).") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError) as error:
        raise BundleError(
            f"{path} is damaged or truncated ({_short(error)}): copy it again, or make it again."
        ) from error


def bundle_checksum(path: Path) -> str:
    """Return the SHA-256 that stands for everything in a bundle, which is checked first.

    Raises:
        BundleError: as for ``read_container``.
    """
    manifest, _ = read_container(path)
    return str(manifest["sha256"])


def _write_folder(path: Path, whole: Mapping[str, bytes]) -> None:
    """Fill a new folder beside the old one, then put it in its place."""
    check_replaceable(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as room:
            new, old = Path(room) / "new", Path(room) / "old"
            new.mkdir()
            for name, data in whole.items():
                with (new / name).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())  # on the disk before the old ones go
            try:
                if path.exists():
                    path.replace(old)
                new.replace(path)
            except BaseException:
                if old.exists():
                    old.replace(path)  # else it would go with the room
                raise
    except OSError as error:
        raise StorageError(f"{path} could not be written ({error.strerror or error}).") from error


def check_replaceable(path: Path) -> None:
    """Refuse to replace, and so to delete, what is no bundle or more than a bundle, such as a clone of a repository."""
    if not path.exists():
        return
    try:
        check_plain(path / MANIFEST, MAX_MANIFEST)
        manifest = json.loads((path / MANIFEST).read_bytes())
        own = (MANIFEST, *FILES, *LEFT_BY_SYSTEMS)
        foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in own)
    except (OSError, ValueError, RecursionError):
        manifest, foreign = None, []
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StorageError(f"{path} is there already and is no bundle: name another place.")
    if foreign:
        others = ", ".join(foreign[:5]) + (", ..." if len(foreign) > 5 else "")
        raise StorageError(
            f"Expected nothing but a bundle in the folder {path}, which is replaced as a whole, but got {others} beside it: "
            "name another folder, and copy the files of the bundle from there."
        )


def _read_folder(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    if not (path / MANIFEST).is_file():
        run = " It is a training run, of which `offaxis bundle RUN --calibrate IMAGES --out x.oax` makes one."
        hint = run if (path / "run.json").is_file() else ""
        raise BundleError(f"Expected a bundle but the folder {path} has no {MANIFEST}.{hint}")

    def member(name: str, most: int) -> bytes:
        file = path / name
        if not is_regular(file) or file.stat().st_size > most:
            raise BundleError(f"{path} is damaged: {name} is absent, no plain file or too large.")
        return file.read_bytes()

    return _checked(path, member)


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    if not is_regular(path):
        raise BundleError(f"Expected a bundle of offaxis but {path} is no plain file.")
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            raise BundleError(f"Expected a bundle of offaxis but {path} is no zip file.")
        file.seek(max(0, file.seek(0, os.SEEK_END) - _END.size))
        end = file.read()
    if len(end) != _END.size or not end.startswith(b"PK\x05\x06"):
        raise BundleError(f"{path} is damaged or truncated: it does not end as a bundle does. Copy it again.")
    _, _, _, _, members, directory, _, _ = _END.unpack(end)
    if members > len(FILES) + 1 or directory > _DIRECTORY:
        raise BundleError(f"Expected the {len(FILES) + 1} files of a bundle but {path} holds {members:,}.")
    with zipfile.ZipFile(path) as pack:
        infos = {info.filename: info for info in pack.infolist()}
        if MANIFEST not in infos:
            raise BundleError(
                f"Expected a bundle of offaxis but {path} is another kind of zip file: it has no {MANIFEST}."
            )
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos.values()):
            raise BundleError(f"{path} is refused: the files of a bundle are stored, not compressed.")

        def member(name: str, most: int) -> bytes:
            if name not in infos or infos[name].file_size > min(most, path.stat().st_size):
                raise BundleError(f"{path} is damaged: {name} is absent or too large.")
            return pack.read(infos[name])

        return _checked(path, member)


def _checked(path: Path, member: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    try:
        manifest = json.loads(member(MANIFEST, MAX_MANIFEST))
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is damaged: {MANIFEST} is no JSON ({_short(error)}).") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"Expected a bundle of offaxis but {path} was written by something else.")
    version = manifest.get("version")
    if isinstance(version, int) and version < VERSION:
        raise BundleError(
            f"{path} is a bundle of version {version}, of an older offaxis; this one reads version {VERSION}. Make it "
            "again with `offaxis bundle`."
        )
    if version != VERSION:
        raise BundleError(
            f"{path} is a bundle of version {version!r} but this offaxis reads version {VERSION}: install a newer offaxis."
        )
    try:
        intact = manifest.get("sha256") == _of_manifest(manifest)
    except RecursionError:
        intact = False
    if not intact:
        raise BundleError(f"{path} is damaged: {MANIFEST} has been changed or cut. Copy it again, or make it again.")
    listed, files = manifest.get("files"), {}
    for name in FILES:
        entry = listed.get(name) if isinstance(listed, dict) else None
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int:
            raise BundleError(f"{path} is damaged: {MANIFEST} does not say how long {name} is. Make the bundle again.")
        data = member(name, min(entry["bytes"], MAX_BYTES))
        if len(data) != entry["bytes"] or _sha256(data) != entry.get("sha256"):
            raise BundleError(f"{path} is damaged: the checksum of {name} is wrong. Copy it again, or make it again.")
        files[name] = data
    return manifest, files


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _of_manifest(manifest: Mapping[str, Any]) -> str:
    """Return the checksum of everything in the manifest but itself."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return _sha256(json.dumps(rest, sort_keys=True).encode())


def _short(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:200]
