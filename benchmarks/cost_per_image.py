"""Processor time of each step of scoring, per image: decoding, network, score with p-value and row.

    python -m benchmarks.cost_per_image BUNDLE FOLDER [COUNT]
    python -m benchmarks.cost_per_image BUNDLE FOLDER 300 file.py:function   # a bundle whose network must be given

Processor time of one thread, which other programs on the machine change little; the least of three rounds. Prints JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offaxis
from offaxis.deploy.engine import with_engine
from offaxis.deploy.scoring.rows import row_of


def main(bundle: str, folder: str, count: str = "300", network: str | None = None) -> None:
    torch.set_num_threads(1)
    model = offaxis.load(bundle, network)
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())[: int(count)]
    pixels = torch.from_numpy(np.stack([model.preprocessing.pixels(path) for path in paths]))
    batches = pixels.split(64)
    fast = with_engine(model, "auto", threads=1)
    result = {
        "images": len(paths),
        "bytes_a_file": round(sum(path.stat().st_size for path in paths) / len(paths)),
        "decode_ms": cost(lambda: [model.preprocessing.pixels(path) for path in paths], len(paths)),
        "torch_ms": cost(lambda: [_outputs(model, batch) for batch in batches], len(paths)),
    }
    if fast.engine is not None:
        engine = fast.engine
        result["onnxruntime_ms"] = cost(lambda: [engine(batch) for batch in batches], len(paths))
        outputs = [engine(batch) for batch in batches]
        rows = cost(lambda: [row_of("x.png", p) for out in outputs for p in fast._predictions(*out)], len(paths))
        result["score_and_row_ms"] = rows
    print(json.dumps(result))


def _outputs(model: offaxis.Model, batch: torch.Tensor) -> Any:
    with torch.no_grad():
        return model.network.outputs(model.preprocessing.normalise(batch))


def cost(work: Callable[[], Any], count: int) -> float:
    """Milliseconds of processor time per image: the least of three rounds after a warm-up."""
    work()
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return round(1e3 * min(times) / count, 4)


if __name__ == "__main__":
    main(*sys.argv[1:])
