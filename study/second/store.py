"""The results of the second study, committed: a folder of rows for each step, a file for each head; exact metrics, a line each.

A row says what was judged (``id``, ``network``, ``head``, ``seed``, ``unseen``: the choice of unseen classes or None), by
what (``detector``) and beside what (``ood``), and has every metric. A row without a detector is of a network: its accuracy.

Of the first seed of each network the scores of six detectors are kept too, in 16 bits, of up to 1,000 images of each set:
enough for histograms.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offaxis.files import replacing, write_text
from study.archive import quantise

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]
KEY = ("id", "network", "head", "seed", "unseen")
"""What tells networks apart."""
KEPT_SCORES = ("two-cosines", "cosine", "mahalanobis++", "knn", "energy", "max-softmax")
KEPT_IMAGES = 1000


def path_of(step: str, network: Mapping[str, Any]) -> Path:
    """Return the file of the rows of networks with the same ID set and head."""
    return RESULTS / step / (f"{network['id']}-{network['head']}".replace(" ", "-") + ".jsonl")


def read(step: str) -> list[Row]:
    """Read the rows of a step, in an order that does not depend on runs; none where it has not run."""
    return sorted((row for path in (RESULTS / step).glob("*.jsonl") for row in _read_file(path)), key=_order)


def _read_file(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def networks(step: str) -> set[tuple[Any, ...]]:
    """Return the keys of the networks whose rows are complete."""
    return {tuple(row[k] for k in KEY) for row in read(step) if "accuracy" in row}


def replace(step: str, network: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Put the rows of one network into its file, in place of earlier ones, in an order that does not depend on runs."""
    key = tuple(network[k] for k in KEY)
    path = path_of(step, network)
    kept = [row for row in _read_file(path) if tuple(row[k] for k in KEY) != key]
    every = sorted([*kept, *({**network, **row} for row in rows)], key=_order)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(row) + "\n" for row in every))


def scores_path(step: str, network: Mapping[str, Any]) -> Path:
    """Return the file of a network's kept scores."""
    words = [step, *(str(network[k]) for k in ("id", "network", "head"))]
    return RESULTS / "scores" / ("-".join(words).replace(" ", "-") + ".npz")


def keep_scores(step: str, network: Mapping[str, Any], scores: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> None:
    """Keep the scores of six detectors, ``scores[set][detector]``, where the network is a first seed that knows all classes.

    A set is ``id`` or the name of an OOD set.
    """
    if network["seed"] != 0 or network["unseen"] is not None:
        return
    kept = {}
    for name, by_detector in scores.items():
        for detector, values in by_detector.items():
            if detector in KEPT_SCORES:
                spread = np.linspace(0, len(values) - 1, min(len(values), KEPT_IMAGES)).round().astype(int)
                kept[f"{detector}/{name}"] = quantise(values[spread])
    path = scores_path(step, network)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **kept)


def kept_scores(step: str, network: Mapping[str, Any], detector: str) -> dict[str, NDArray[np.float64]]:
    """Read a detector's kept scores, by set."""
    with np.load(scores_path(step, network)) as file:
        names = [name for name in file.files if name.startswith(f"{detector}/")]
        return {name.partition("/")[2]: file[name].astype(np.float64) for name in names}


def _order(row: Row) -> tuple[str, ...]:
    return tuple(str(row.get(k, "")) for k in (*KEY, "detector", "ood"))


def select(rows: Sequence[Row], **fields: Any) -> Iterator[Row]:
    """Iterate over the rows that have these values; a tuple of values means any of them."""
    for row in rows:
        if all(row.get(k) in v if isinstance(v, tuple) else row.get(k) == v for k, v in fields.items()):
            yield row
