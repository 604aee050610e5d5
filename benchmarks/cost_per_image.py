"""Processor time of each step of scoring, per image: decoding, network, score with p-value and row.

    python -m benchmarks.cost_per_image BUNDLE FOLDER [COUNT]
    python -m benchmarks.cost_per_image BUNDLE FOLDER 300 file.py:function   # a bundle whose network must be given
    python -m benchmarks.cost_per_image BUNDLE FOLDER ray 500   # images a second of Ray Data with one and two workers

Prints JSON. Processor time of one thread, which other programs on the machine change little; the least of three rounds. Of Ray
time counts from the first rows on, when a quarter of the images is done, without the start of workers and of the model: images
a second by the clock, for a machine that has nothing else to do, and processor time of the driver, of Ray and of the workers.
"""

import importlib
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offaxis
from offaxis.networks.run import run_batch, to_network
from offaxis.onnx import with_engine
from offaxis.options import ScoreOptions
from offaxis.score.images import files, score_with_ray
from offaxis.score.rows import row_of


def main(bundle: str, folder: str, count: str = "300", network: str | None = None) -> None:
    if count == "ray":
        print(json.dumps(ray_rates(Path(bundle), folder, int(network or "500"))))
        return
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


def ray_rates(bundle: Path, folder: str, count: int) -> dict[str, Any]:
    """Images a second of one and of two workers on this machine, and the efficiency of the second."""
    import ray

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")  # one is the driver's
    work = list(itertools.islice(itertools.cycle(sorted(files([folder]))), count))
    times = {workers: _seconds(bundle, work, workers) for workers in (1, 2)}
    ray.shutdown()
    return {
        "images_a_second": {workers: round(0.75 * count / clock, 1) for workers, (clock, _) in times.items()},
        "efficiency": round(times[1][0] / (2 * times[2][0]), 2),
        "processor_ms": {workers: round(1e3 * busy / (0.75 * count), 2) for workers, (_, busy) in times.items()},
    }


def _seconds(bundle: Path, work: list[str], workers: int) -> tuple[float, float]:
    """Seconds and processor seconds from the first row to the last; Ray divides the work into four parts for each worker."""
    rows = score_with_ray(work, ScoreOptions(bundle=bundle, batch=32, workers=workers))
    next(rows)
    began = time.perf_counter(), _processor_seconds()
    assert 1 + sum(map(len, rows)) == len(work)
    return time.perf_counter() - began[0], _processor_seconds() - began[1]


def _processor_seconds() -> float:
    """Return the processor time of this process and of all that it started."""
    here = importlib.import_module("psutil").Process()
    return sum(sum(process.cpu_times()[:2]) for process in [here, *here.children(recursive=True)])


def _outputs(model: offaxis.Model, batch: torch.Tensor) -> Any:
    images = to_network(model.network, model.preprocessing.normalise(batch))
    return run_batch(model.network, images, model.detector.layers)


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
