"""onnxruntime against eager PyTorch on this CPU: images a second from uint8 pixels to p-values, one thread each.

    python -m benchmarks.onnx_speed

Both do the same work: normalise, network, cosine score, p-value. Median and spread of rounds; prints JSON.
"""

import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offaxis import Model, networks
from offaxis.data import Normalise, Preprocessing, TensorSet
from offaxis.onnx import INPUT, Graph, export_onnx, output_names

CASES = (("wrn-10-2-half", (1, 28, 28)), ("wrn-16-4", (3, 32, 32)), ("densenet-22-12", (3, 32, 32)))
BATCHES = (1, 32)


def main(seconds: float = 3.0) -> None:
    import onnxruntime

    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    rows = []
    for name, shape in CASES:
        model = random_model(name, shape)
        with tempfile.TemporaryDirectory() as room:
            difference = export_onnx(model, Path(room) / "x.onnx")
            session = onnxruntime.InferenceSession(
                str(Path(room) / "x.onnx"), options, providers=["CPUExecutionProvider"]
            )
        graph, wanted = Graph(model).eval(), output_names(model)
        for batch in BATCHES:
            pixels = torch.randint(0, 256, (batch, *shape), dtype=torch.uint8)
            with torch.inference_mode():
                eager = rounds(lambda pixels=pixels, graph=graph: graph(pixels), batch, seconds)  # type: ignore[misc]
            feed = {INPUT: pixels.numpy()}
            runtime = rounds(lambda s=session, o=wanted, f=feed: s.run(o, f), batch, seconds)  # type: ignore[misc]
            ratio = runtime["median"] / eager["median"]
            rows.append(
                {"network": name, "batch": batch, "eager": eager, "onnxruntime": runtime, "ratio": round(ratio, 2)}
            )
        rows[-1]["largest_difference"] = difference
    versions = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__, "machine": platform.machine()}
    print(json.dumps({"images_a_second": rows, **versions}, indent=2))


def random_model(name: str, shape: tuple[int, int, int]) -> Model:
    torch.manual_seed(0)
    network = networks.by_name(name)(num_classes=10, in_channels=shape[0]).eval()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = TensorSet("random", torch.randint(0, 256, (500, *shape), dtype=torch.uint8))
    normalise = Normalise((0.5,) * shape[0], (0.25,) * shape[0])
    return Model.calibrated(network, images, preprocessing=Preprocessing(shape, normalise))


def rounds(work: Callable[[], Any], batch: int, seconds: float) -> dict[str, float]:
    for _ in range(3):
        work()
    rates, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        work()
        rates.append(batch / (time.perf_counter() - began))
    low, median, high = np.percentile(rates, [10, 50, 90])
    return {"median": round(float(median), 1), "p10": round(float(low), 1), "p90": round(float(high), 1)}


if __name__ == "__main__":
    main()
