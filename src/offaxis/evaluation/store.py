"""The scores and records of evaluations: in memory, and in a folder of files that are written once, whole, and never change.

::

    STORE/
      store.json                   the format's name and version
      networks/KEY-SET.json        a NetworkRecord
      sets/KEY.json, KEY.npz       a set's name, count and checksum; the indices of its validation and test images
      results/*.jsonl              Results, a line each; every call of ``add`` makes a file of its own; .gz is read too
      scores/NETWORK/SET/*.npz     the scores of the test images
      grid_scores/NETWORK/SET/*.npz   values from which a grid's settings are scored; may be deleted

No file is ever appended to, and each gets its name only when it is complete. So any number of processes, on any number of
machines that share the folder, can write at once, and an interrupted one leaves only whole files. The checksum of arrays
names their file, so that they are not taken for those of another. What is damaged is set aside by the next evaluation
(``.NAME.damaged``) and, like what is missing, computed again.
"""

import gzip
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from offaxis.errors import StoreError
from offaxis.evaluation.records import NetworkRecord, Result, SetRecord
from offaxis.files import json_line, read_arrays, read_json, read_lines, write_arrays, write_json, write_text

FORMAT, VERSION = "offaxis-results", 3
UNCHECKED = 2
"""The older version that is read too; its files may have no checksums."""
_FOLDERS = {"networks", "sets", "results", "scores", "grid_scores", "finished"}
Array = NDArray[Any]
Record = TypeVar("Record", NetworkRecord, Result)
_AGAIN = "evaluate again, which computes what is damaged or missing"


class Store:
    """Scores in memory and, with a folder, results, records and scores on disk.

    Args:
        path: the folder; made when something is first written to it. None keeps scores in memory and records nothing.

    Attributes:
        folder: the folder; None where scores are in memory alone.
        arrays: by reference, the scores that were added here; they are not read from the disk again.

    Raises:
        StoreError: the folder holds something else, or was written by another version.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.folder = None if path is None else Path(path)
        self.arrays: dict[str, Array] = {}
        self._checked = True
        if self.folder is None:
            return
        found = {file.name for file in self.folder.glob("*") if not file.name.endswith(".part")}
        if (self.folder / "store.json").exists():  # another process may have begun it just now
            self._checked = self._read_version(self.folder / "store.json") == VERSION
        elif (self.folder.exists() and not self.folder.is_dir()) or found - _FOLDERS:
            raise StoreError(
                f"Expected a results store or an empty folder but {path} holds something else. Name another."
            )
        elif found:  # store.json was removed, and nobody knows which version wrote the files
            self._checked = False

    @staticmethod
    def _read_version(file: Path) -> int:
        again = "remove it and evaluate again"
        about = read_json(file, StoreError, again, required=lambda values: values.get("version") == VERSION)
        version = about.get("version")
        if about.get("format") != FORMAT or version not in (VERSION, UNCHECKED):
            raise StoreError(
                f"Expected a results store of version {VERSION} but {file} is of {about.get('format')!r}, version {version}: "
                "install a newer offaxis, or evaluate again into another folder."
            )
        return int(version)

    @classmethod
    def existing(cls, path: str | Path) -> "Store":
        """Open a store that must be there already."""
        if not (Path(path) / "store.json").is_file() and not (Path(path) / "results").is_dir():
            raise StoreError(
                f"There are no results in {path}: name the folder that `offaxis evaluate --out` was given."
            )
        return cls(path)

    @property
    def path(self) -> Path:
        """Return the folder, where there is one."""
        assert self.folder is not None
        return self.folder

    def mend(self) -> list[str]:
        """Set aside what is damaged of results and records, so that it is computed again; return what was wrong with it."""
        readers: dict[str, Callable[[Path], object]] = {
            "results/*.jsonl*": lambda file: _results(file, file.stat().st_mtime_ns, self._checked),
            "networks/*.json": self._network,
            "sets/*.json": self._set,
            "sets/*.npz": lambda file: self.indices(file.stem),
        }
        wrong = []
        for pattern, read in readers.items():
            for file in self._whole(*pattern.split("/")):
                try:
                    read(file)
                except StoreError as error:
                    _set_aside(file)
                    wrong.append(str(error))
        return wrong

    def check_complete(self, results: Iterable[Result]) -> None:
        """Raise StoreError where a record that results refer to is missing; of a network, any will do."""
        known = {file.name.partition("-")[0] for file in self._whole("networks", "*.json")}
        needed = {f"networks/{r.weights}-{r.id_data}.json": None for r in results if r.weights not in known}
        for key in dict.fromkeys(key for r in results for key in (r.id_data, r.ood_data)):
            needed |= {f"sets/{key}.json": None, f"sets/{key}.npz": None}
        for name in needed:
            if not self._is_there(name):
                raise StoreError(f"{self.path / name} is missing: {_AGAIN}.")

    # records -----------------------------------------------------------------------------------------------------------

    def add(self, results: Iterable[Result]) -> None:
        """Add some results; they appear together."""
        lines = [json_line(result.to_json()) for result in results]
        if lines:
            file = self._new(f"results/{time.time_ns()}-{uuid.uuid4().hex[:8]}.jsonl")
            if file is not None:
                write_text(file, "".join(lines))

    def results(self) -> list[Result]:
        """Return all results in the order in which they were added, each once, as it was added last."""
        files = self._whole("results", "*.jsonl*")
        every = (result for file in files for result in _results(file, file.stat().st_mtime_ns, self._checked))
        return list({result.key: result for result in every}.values())

    def add_network(self, record: NetworkRecord) -> None:
        """Add the record of a network."""
        self._add_json(f"networks/{record.key}-{record.id_data}.json", record.to_json())

    def network(self, key: str, id_data: str) -> NetworkRecord | None:
        """Return the record of a network as it was evaluated on a set of ID images; None where it was not."""
        name = f"networks/{key}-{id_data}.json"
        return self._network(self.path / name) if self._is_there(name) else None

    def networks(self) -> list[NetworkRecord]:
        """Return all networks, by label and seed; each once for an ID set, as it was evaluated on the most images."""
        found = [self._network(file) for file in self._whole("networks", "*.json")]
        sizes = {key: about.get("images", 0) for key, about in self.sets().items()}
        found.sort(key=lambda record: sizes.get(record.id_data, 0))
        latest = {(record.weights, record.id): record for record in found}
        return sorted(latest.values(), key=lambda record: (record.id, record.label, record.seed))

    def _network(self, file: Path) -> NetworkRecord:
        record = _parsed(NetworkRecord, self._json(file), file)
        if file.stem != f"{record.key}-{record.id_data}":
            raise StoreError(f"{file} is the record of another network: {_AGAIN}.")
        return record

    def _set(self, file: Path) -> dict[str, Any]:
        about = self._json(file)
        if about.pop("key", file.stem) != file.stem:
            raise StoreError(f"{file} is the record of another set: {_AGAIN}.")
        return about

    def add_set(self, key: str, record: SetRecord) -> None:
        """Add the record of an image set."""
        self._add_arrays(f"sets/{key}.npz", {"validation": record.validation, "test": record.test})
        self._add_json(f"sets/{key}.json", {**record.about, "key": key})

    def sets(self) -> dict[str, dict[str, Any]]:
        """Return what is recorded of every set, by key: name, images, fingerprint, rule."""
        return {file.stem: self._set(file) for file in self._whole("sets", "*.json")}

    def indices(self, key: str, part: str = "test") -> Array:
        """Return int64 (T,): which images of a set were tested, in the order of their scores (or "validation")."""
        return self._array(f"sets/{key}.npz", part)

    # scores, by reference: FILE#NAME -----------------------------------------------------------------------------------

    def has_scores(self, reference: str) -> bool:
        """Return whether there are whole scores; a damaged file is set aside."""
        name = reference.partition("#")[0]
        if reference in self.arrays or not self._is_there(name):
            return reference in self.arrays
        try:
            self.scores(reference)
        except StoreError:
            _set_aside(self.path / name)
            return False
        return True

    def add_scores(self, reference: str, scores: Array) -> None:
        """Add the scores (T,) of a set's test images, or (N, S, ...) of all its images over a grid."""
        self.arrays[reference] = scores
        file, _, name = reference.partition("#")
        self._add_arrays(file, {name: scores})

    def forget_grids(self) -> None:
        """Free the memory of scores over grids, which are large."""
        self.arrays = {name: array for name, array in self.arrays.items() if name.startswith("scores/")}

    def scores(self, reference: str) -> Array:
        """Return scores in float32 or float64, larger = more out-of-distribution, in the order of the set's test indices."""
        if reference in self.arrays:
            return self.arrays[reference]
        scores = self._array(*reference.split("#"))
        return scores.astype(np.float32) if scores.dtype == np.float16 else scores

    # files -------------------------------------------------------------------------------------------------------------

    def _whole(self, folder: str, pattern: str) -> list[Path]:
        """Return the whole files of a folder, in order; names of unfinished ones begin with a dot."""
        found = [] if self.folder is None else (self.folder / folder).glob(pattern)
        return sorted(file for file in found if not file.name.startswith("."))

    def _is_there(self, name: str) -> bool:
        return self.folder is not None and (self.folder / name).exists()

    def _new(self, name: str) -> Path | None:
        """Return a file that is to be written, in a store that has begun; None where it is there, or there is no folder."""
        if self.folder is None or self._is_there(name):
            return None
        if not self._is_there("store.json"):
            version = VERSION if self._checked else UNCHECKED
            write_json(self.folder / "store.json", {"format": FORMAT, "version": version})
        return self.folder / name

    def _add_json(self, name: str, values: Mapping[str, Any]) -> None:
        file = self._new(name)
        if file is not None:
            write_json(file, values)

    def _add_arrays(self, name: str, arrays: Mapping[str, Array]) -> None:
        file = self._new(name)
        if file is not None:
            write_arrays(file, arrays, name=name, durable=False)  # hundreds of them, each with a checksum

    def _json(self, file: Path) -> dict[str, Any]:
        return read_json(file, StoreError, _AGAIN, required=self._checked)

    def _array(self, name: str, array: str) -> Array:
        found = _arrays(self.path / name, name, self._checked)
        if array not in found:
            raise StoreError(f"{self.path / name} holds nothing named {array!r}: {_AGAIN}.")
        return found[array]


def narrow(scores: Array) -> Array:
    """Return the scores in float32 where that changes none of them, else in float64.

    Rounding could make an ID and an OOD image tie that do not, which metrics would count as half an error.
    """
    narrowed = scores.astype(np.float32)
    return scores if scores.dtype == np.float64 and not np.array_equal(narrowed, scores) else narrowed


@lru_cache(maxsize=64)  # a file of results never changes, and tables read a store again and again
def _results(file: Path, _: int, checked: bool) -> tuple[Result, ...]:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as source:
            lines = source.read().splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(f"{file} is damaged ({error}): {_AGAIN}.") from None
    every = read_lines(lines, file, StoreError, _AGAIN, required=checked)
    return tuple(_parsed(Result, values, file) for values in every)


def _parsed(kind: type[Record], values: dict[str, Any], file: Path) -> Record:
    try:
        return kind.from_json(values)
    except TypeError as error:
        raise StoreError(f"{file} does not hold whole records ({error}): {_AGAIN}.") from error


@lru_cache(maxsize=64)
def _arrays(file: Path, name: str, checked: bool) -> dict[str, Array]:
    return read_arrays(file, StoreError, _AGAIN, name=name, required=checked)


def _set_aside(file: Path) -> None:
    with suppress(FileNotFoundError):  # by another process
        file.replace(file.with_name(f".{file.name}.damaged"))
