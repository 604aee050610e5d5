"""Results on disk: files that are written once, whole, and never change.

::

    STORE/
      store.json                   the format's name and version
      networks/KEY-SET.json        a NetworkRecord
      sets/KEY.json, KEY.npz       a set's name, count and checksum; the indices of its validation and test images
      results/*.jsonl              Results, a line each; every call of ``add`` makes a file of its own; .gz is read too
      scores/NETWORK/SET/*.npz     the scores of the test images
      finished/*.json              commands that were run to their end, with the state of the files that they read
      grid_scores/NETWORK/SET/*.npz   values from which a grid's settings are scored; may be deleted

No file is ever appended to or replaced, and each gets its name only when it is complete. So any number of processes, on
any number of machines that share the folder, can write at once, and an interrupted one leaves only whole files.
"""

import gzip
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from offaxis.errors import StoreError
from offaxis.evaluation.records import NetworkRecord, Result, SetRecord
from offaxis.files import (
    is_regular,
    json_line,
    read_arrays,
    read_json,
    read_lines,
    write_arrays,
    write_json,
    write_text,
)

FORMAT = "offaxis-results"
VERSION = 3
UNCHECKED = 2
"""The older version that is read too; its files have no checksums."""
Array = NDArray[Any]
Record = TypeVar("Record")
_AGAIN = "remove it and evaluate again"
_MAX_RESULTS = 2**29  # bytes of a file of results, unpacked; a result takes about one thousand


class Store:
    """A folder of results.

    Args:
        path: the folder; made when something is first written to it.

    Raises:
        StoreError: the folder holds something else, or was written by another version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._about = self.path / "store.json"
        self._checked = True
        if self._about.exists():
            about = read_json(self._about, StoreError, _AGAIN, required=lambda values: values.get("version") == VERSION)
            if about.get("format") != FORMAT or not isinstance(about.get("version"), int):
                raise StoreError(f"Expected a results store in {self.path} but store.json is something else's.")
            self._checked = about["version"] != UNCHECKED
            if about["version"] not in (VERSION, UNCHECKED):
                newer = about["version"] > VERSION
                raise StoreError(
                    f"The results in {self.path} have version {about['version']} but this offaxis reads version {VERSION}: "
                    + ("install a newer one." if newer else "evaluate again into another folder.")
                )
        elif self._foreign() and not self._about.exists():  # another process may have begun it just now
            raise StoreError(
                f"Expected a results store or an empty folder but {self.path} holds something else. Name another folder."
            )

    @classmethod
    def existing(cls, path: str | Path) -> "Store":
        """Open a store that must be there already."""
        if not (Path(path) / "store.json").is_file():
            raise StoreError(
                f"There are no results in {path}: name the folder that `offaxis evaluate --out` was given."
            )
        return cls(path)

    # results -----------------------------------------------------------------------------------------------------------

    def add(self, results: Iterable[Result]) -> None:
        """Add some results; they appear together."""
        lines = [json_line(result.to_json()) for result in results]
        if lines:
            self._begin()
            write_text(self.path / "results" / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.jsonl", "".join(lines))

    def results(self) -> list[Result]:
        """Return all results in the order in which they were added, each once."""
        by_key: dict[str, Result] = {}
        for file in self._whole("results", "*.jsonl*"):
            for result in _results(file, file.stat().st_mtime_ns, self._checked):
                first = by_key.setdefault(result.key, result)
                if result.group != first.group:  # a set may have been called near since
                    by_key[result.key] = replace(first, group=result.group)
        return list(by_key.values())

    def add_network(self, record: NetworkRecord) -> None:
        """Add the record of a network."""
        self._keep_json(f"networks/{record.key}-{record.id_data}.json", record.to_json())

    def has_network(self, key: str, id_data: str) -> bool:
        """Return whether a network was evaluated on a set of ID images."""
        return (self.path / "networks" / f"{key}-{id_data}.json").exists()

    def networks(self) -> list[NetworkRecord]:
        """Return all networks, by label and seed; each once for an ID set, as it was evaluated on the most images."""
        found = [_parsed(NetworkRecord.from_json, self._json(file), file) for file in self._whole("networks", "*.json")]
        sizes = {key: about.get("images", 0) for key, about in self.sets().items()}
        found.sort(key=lambda record: sizes.get(record.id_data, 0))
        latest = {(record.weights, record.id): record for record in found}
        return sorted(latest.values(), key=lambda record: (record.id, record.label, record.seed))

    # sets ----------------------------------------------------------------------------------------------------------------

    def add_set(self, key: str, record: SetRecord) -> None:
        """Add the record of an image set."""
        self._keep_arrays(f"sets/{key}.npz", {"validation": record.validation, "test": record.test})
        self._keep_json(f"sets/{key}.json", record.about)

    def sets(self) -> dict[str, dict[str, Any]]:
        """Return what is recorded of every set, by key: name, images, fingerprint, rule."""
        return {file.stem: self._json(file) for file in self._whole("sets", "*.json")}

    def indices(self, key: str, part: str = "test") -> Array:
        """Return int64 (T,): which images of a set were tested, in the order of their scores (or "validation")."""
        return self._array(f"sets/{key}.npz", part)

    # arrays --------------------------------------------------------------------------------------------------------------

    def has_scores(self, reference: str) -> bool:
        """Return whether ``scores`` would find something."""
        return (self.path / reference.partition("#")[0]).exists()

    def add_scores(self, scores: Mapping[str, Array]) -> None:
        """Add the scores (T,) of sets' test images by reference, ``FILE#NAME``; those of one file together."""
        files: dict[str, dict[str, Array]] = {}
        for reference, values in scores.items():
            file, _, name = reference.partition("#")
            files.setdefault(file, {})[name] = narrow(values)
        for file, arrays in files.items():
            self._keep_arrays(file, arrays)

    def scores(self, reference: str) -> Array:
        """Return (T,) in float32 or float64, larger = more out-of-distribution, in the order of the set's test indices."""
        file, _, name = reference.partition("#")
        scores = self._array(file, name)
        return scores.astype(np.float32) if scores.dtype == np.float16 else scores

    def add_grid_scores(self, network: str, set_key: str, name: str, arrays: Mapping[str, Array]) -> None:
        """Add arrays over all images of a set, from which scores at a grid's settings are made."""
        self._keep_arrays(str(self._grid_file(network, set_key, name).relative_to(self.path)), arrays)

    def has_grid_scores(self, network: str, set_key: str, name: str) -> bool:
        """Return whether ``grid_scores`` would find something."""
        return self._grid_file(network, set_key, name).exists()

    def grid_scores(self, network: str, set_key: str, name: str) -> dict[str, Array]:
        """Return the arrays that ``add_grid_scores`` was given."""
        return read_arrays(self._grid_file(network, set_key, name), StoreError, _AGAIN, required=self._checked)

    # -----------------------------------------------------------------------------------------------------------------------

    def _whole(self, folder: str, pattern: str) -> list[Path]:
        """Return the whole files of a folder, in order; names of unfinished ones begin with a dot."""
        return sorted(file for file in (self.path / folder).glob(pattern) if not file.name.startswith("."))

    def _grid_file(self, network: str, set_key: str, name: str) -> Path:
        return self.path / "grid_scores" / network / set_key / f"{name}.npz"

    def _foreign(self) -> bool:
        """Return whether the folder holds something else; a store begins with store.json under a temporary name."""
        if not self.path.is_dir():
            return self.path.exists()
        return any(not file.name.endswith(".part") for file in self.path.iterdir())

    def _begin(self) -> None:
        if not self._about.exists():
            write_json(self._about, {"format": FORMAT, "version": VERSION})

    def _keep_json(self, name: str, values: Mapping[str, Any]) -> None:
        self._begin()
        if not (self.path / name).exists():
            write_json(self.path / name, values)

    def _keep_arrays(self, name: str, arrays: Mapping[str, Array]) -> None:
        self._begin()
        if not (self.path / name).exists():
            write_arrays(self.path / name, arrays, durable=False)  # hundreds of them, each with a checksum

    def _json(self, file: Path) -> dict[str, Any]:
        return read_json(file, StoreError, _AGAIN, required=self._checked)

    def _array(self, file: str, name: str) -> Array:
        found = _arrays(self.path / file, self._checked)
        if name not in found:
            raise StoreError(f"{self.path / file} holds nothing named {name!r}: {_AGAIN}.")
        return found[name]


def narrow(scores: Array) -> Array:
    """Return the scores in float32 where that changes none of them, else in float64.

    Rounding could make an ID and an OOD image tie that do not, which metrics would count as half an error.
    """
    narrowed = scores.astype(np.float32)
    return scores if scores.dtype == np.float64 and not np.array_equal(narrowed, scores) else narrowed


def _parsed(make: Callable[[dict[str, Any]], Record], values: Any, file: Path) -> Record:
    try:
        return make(values)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise StoreError(f"{file} does not hold whole records ({error}): remove it and evaluate again.") from error


@lru_cache(maxsize=64)  # a file of results never changes, and tables read a store again and again
def _results(file: Path, _: int, checked: bool) -> tuple[Result, ...]:
    if not is_regular(file):
        raise StoreError(f"{file} is no plain file: {_AGAIN}.")
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as source:
            content = source.read(_MAX_RESULTS + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(f"{file} is damaged ({error}): {_AGAIN}.") from None
    if len(content) > _MAX_RESULTS:
        raise StoreError(f"{file} holds more than {_MAX_RESULTS:,} bytes of results: {_AGAIN}.")
    lines = read_lines(content.splitlines(), file, StoreError, _AGAIN, required=checked)
    return tuple(_parsed(Result.from_json, values, file) for values in lines)


@lru_cache(maxsize=64)
def _arrays(file: Path, checked: bool) -> dict[str, Array]:
    return read_arrays(file, StoreError, _AGAIN, required=checked)
