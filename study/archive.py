"""Make the small copy of the results that is kept with the project: ``python -m study.archive``."""

import gzip
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offaxis.errors import StoreError
from offaxis.evaluation import Store
from offaxis.evaluation.records import SetRecord
from offaxis.files import digest, json_line, replacing, write_arrays
from study.steps import KEPT, WORK

Array = NDArray[Any]
IMAGES = 800
"""Test images of each set whose scores are kept: all of them."""


def main() -> None:
    """Replace the copy by one of the present results."""
    copy = WORK / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    archive_store(Store.existing(WORK / "results"), copy, IMAGES)
    shutil.rmtree(KEPT / "results", ignore_errors=True)
    copy.rename(KEPT / "results")


def archive_store(store: Store, out: str | Path, images: int | None = None) -> Store:
    """Copy a store: every result with its exact metrics; scores in 16 bits, of some images of each set, one file a network.

    Tables are those of the whole store. Histograms, curves and the images with the lowest and highest scores are made
    from the scores that are kept. Grid scores are left out, so new tuned results need the network again.

    Args:
        store: what to copy.
        out: a folder that is not there yet.
        images: test images of each set whose scores are kept, evenly spread; None keeps all.
    """
    if Path(out).exists():
        raise StoreError(f"Expected a folder that is not there yet for the copy but {out} is there.")
    copy = Store(out)
    for record in store.networks():
        copy.add_network(record)
    kept: dict[str, Array] = {}
    for key, about in store.sets().items():
        test = store.indices(key)
        kept[key] = _spread(len(test), images)
        about = {**about, "scores_kept": len(kept[key])}
        copy.add_set(key, SetRecord(about, store.indices(key, "validation"), test[kept[key]]))
    files: dict[str, dict[str, Array]] = {}
    results = []
    for result in store.results():
        references = []
        for key, reference in zip((result.id_data, result.ood_data), result.scores, strict=True):
            name = f"{key}-{digest(reference)}"
            arrays = files.setdefault(result.weights, {})
            if name not in arrays:
                arrays[name] = quantise(store.scores(reference)[kept[key]])
            references.append(f"scores/{result.weights}.npz#{name}")
        results.append(replace(result, scores=(references[0], references[1])))
    for network, arrays in files.items():
        write_arrays(copy.path / "scores" / f"{network}.npz", arrays)
    with (
        replacing(copy.path / "results" / "all.jsonl.gz") as temporary,
        gzip.GzipFile(temporary, "wb", mtime=0) as file,
    ):
        file.writelines(json_line(result.to_json()).encode() for result in results)
    return copy


def quantise(scores: Array) -> Array:
    """Return the scores in 16 bits where few become equal by it, else in 32."""
    with np.errstate(over="ignore"):  # values too large for 16 bits become infinite, which is checked below
        half = scores.astype(np.float16)
    if np.isfinite(half).all() and len(np.unique(half)) >= 0.5 * len(np.unique(scores)):
        return half
    return scores.astype(np.float32)


def _spread(count: int, limit: int | None) -> Array:
    if limit is None or count <= limit:
        return np.arange(count)
    return np.linspace(0, count - 1, limit).round().astype(np.int64)


if __name__ == "__main__":
    main()
