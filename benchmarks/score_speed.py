"""``offaxis score`` against a bare loop that does the least: Pillow decodes in two threads while the network predicts.

    python -m benchmarks.score_speed BUNDLE FOLDER [ROUNDS]

The bare loop opens every file with Pillow, converts and resizes it, runs the same engine in batches of 64 and keeps nothing but
the scores; it knows no archives, no damaged or turned files, no journal, no p-values and no rows. Rounds alternate; the ratio
is the median over rounds of files a second, of score over the bare loop. Prints JSON, with the memory after each round of
score, its peak, and the load of the machine.
"""

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import offaxis
from benchmarks.load_test import resident
from offaxis import Model
from offaxis.data import Preprocessing
from offaxis.data.transforms import fit
from offaxis.onnx import with_engine
from offaxis.options import ScoreOptions
from offaxis.score import score_images

BATCH = 64


def bare(model: Model, paths: list[Path]) -> int:
    """Decode in two threads, three batches ahead, and run the network."""
    scored = 0
    with ThreadPoolExecutor(2) as pool:
        decoded = _ahead(pool, model, paths)
        while part := list(islice(decoded, BATCH)):
            pixels = torch.from_numpy(np.stack(part))
            if model.engine is not None:
                scored += len(model.engine(pixels)[0])
            else:
                with torch.no_grad():
                    outputs = model.network.outputs(model.preprocessing.normalise(pixels))
                    scored += len(model.detector.score(outputs))
    return scored


def _ahead(pool: ThreadPoolExecutor, model: Model, paths: list[Path]) -> Iterator[NDArray[Any]]:
    waiting: list[Future[Any]] = []
    wanted = model.preprocessing
    assert isinstance(wanted, Preprocessing)
    for path in paths:
        waiting.append(pool.submit(_pixels, wanted, path))
        if len(waiting) > 3 * BATCH:
            yield waiting.pop(0).result()
    yield from (future.result() for future in waiting)


def _pixels(wanted: Preprocessing, path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return fit(image.convert("L" if wanted.shape[0] == 1 else "RGB"), wanted.shape, wanted.resize)


def main(bundle: str, folder: str, rounds: str = "5", network: str | None = None) -> None:
    torch.set_num_threads(1)
    model = with_engine(offaxis.load(bundle, network), "auto")
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    times: dict[str, list[float]] = {"bare": [], "score": []}
    memory = []
    bare(model, paths[:BATCH])
    for number in range(int(rounds)):
        for name in ("bare", "score") if number % 2 else ("score", "bare"):
            with tempfile.TemporaryDirectory() as room:
                began = time.perf_counter()
                if name == "bare":
                    assert bare(model, paths) == len(paths)
                else:
                    options = ScoreOptions(bundle=Path(bundle), out=str(Path(room) / "x.csv"), quiet=True, top=0)
                    assert score_images(model, options, [folder])["images"] == len(paths)
                    memory.append(resident(os.getpid()) // 2**20)
                times[name].append(time.perf_counter() - began)
    ratio = np.median(np.array(times["bare"]) / np.array(times["score"]))
    rates = {name: round(len(paths) / float(np.median(values)), 1) for name, values in times.items()}
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    about = {"files": len(paths), "files_a_second": rates, "score_over_bare": round(float(ratio), 2)}
    about |= {"engine": "torch" if model.engine is None else "onnx", "megabytes": memory, "peak_megabytes": megabytes}
    print(json.dumps(about))
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
