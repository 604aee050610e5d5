"""A results store small enough to be kept with a project: the same results, fewer and smaller arrays."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from offaxis.errors import StoreError
from offaxis.evaluation.results import digest
from offaxis.evaluation.store import Array, Store
from offaxis.files import replacing


def compact(store: Store, out: str | Path, images: int | None = None) -> Store:
    """Copy a store: every result with its exact metrics; scores in 16 bits, of some images of each set, one file a network.

    Tables are those of the whole store. Histograms, curves and the strangest images are made from the scores that are
    kept. Evidence stays behind, so new tuned results need the network again.

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
        copy.add_set(key, {**about, "scores_kept": len(kept[key])}, store.indices(key, "validation"), test[kept[key]])
    files: dict[str, dict[str, Array]] = {}
    results = []
    for result in store.results():
        references = []
        for key, reference in zip((result.id_data, result.ood_data), result.scores, strict=True):
            name = f"{key}-{digest(reference)}"
            arrays = files.setdefault(result.weights, {})
            if name not in arrays:
                arrays[name] = narrow(store.scores(reference)[kept[key]])
            references.append(f"scores/{result.weights}.npz#{name}")
        results.append(replace(result, scores=(references[0], references[1])))
    for network, arrays in files.items():
        path = copy.path / "scores" / f"{network}.npz"
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    with (
        replacing(copy.path / "results" / "all.jsonl.gz") as temporary,
        gzip.GzipFile(temporary, "wb", mtime=0) as file,
    ):
        file.writelines(json.dumps(result.to_json()).encode() + b"\n" for result in results)
    return copy


def narrow(scores: Array) -> Array:
    """The scores in 16 bits where few become equal by it, else in 32."""
    with np.errstate(over="ignore"):  # what is too large for 16 bits becomes infinite, and is seen below
        half = scores.astype(np.float16)
    if np.isfinite(half).all() and len(np.unique(half)) >= 0.5 * len(np.unique(scores)):
        return half
    return scores.astype(np.float32)


def _spread(count: int, wanted: int | None) -> Array:
    if wanted is None or count <= wanted:
        return np.arange(count)
    return np.linspace(0, count - 1, wanted).round().astype(np.int64)
