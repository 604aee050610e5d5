"""Does fitting Mahalanobis on more images take more memory, or more than one pass?

    python -m benchmarks.mahalanobis_memory                  # 5,000 and 50,000 images, a few minutes on one core

Each number of images has a process of its own. Images are made batch by batch and go through a small network with four
layers; what is counted is how many of them the network sees, and the peak of the memory (Linux: VmHWM) before and after.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offaxis.detectors import Mahalanobis
from offaxis.networks import by_name

BATCH = 100


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Noise with ten labels, (BATCH, 3, 32, 32) at a time; nothing is kept."""
    generator = torch.Generator().manual_seed(0)
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        yield torch.randn(size, 3, 32, 32, generator=generator), torch.arange(start, start + size) % 10


def peak_mb() -> float:
    """The most memory that this process ever had; getrusage would count what its parent had, too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measure(name: str, count: int) -> dict[str, Any]:
    """One fit in this process."""
    torch.manual_seed(0)
    network = by_name(name)(head="linear").eval()
    Mahalanobis().fit(network, batches(BATCH))  # what the libraries set aside at their first use
    seen = 0

    def tally(_module: object, inputs: tuple[Tensor, ...], _out: object) -> None:
        nonlocal seen
        seen += len(inputs[0])

    network.backbone.register_forward_hook(tally)
    before, start = peak_mb(), time.perf_counter()
    detector = Mahalanobis().fit(network, batches(count))
    return {
        "images": count,
        "images_through_the_network": seen,
        "seconds": round(time.perf_counter() - start, 1),
        "peak_mb_before": round(before, 1),
        "peak_mb": round(peak_mb(), 1),
        "features_mb": round(count * sum(detector.sizes().values()) * 4 / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="wrn-10-1-half")
    parser.add_argument("--images", type=int, nargs=2, default=(5_000, 50_000))
    parser.add_argument("--measure", type=int, help="one fit in this process, printed as JSON (used by the comparison)")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.network, options.measure)))
        return
    command = [sys.executable, "-m", "benchmarks.mahalanobis_memory", "--network", options.network, "--measure"]
    few, many = (
        json.loads(subprocess.run([*command, str(count)], capture_output=True, text=True, check=True).stdout)
        for count in options.images
    )
    print(f"Mahalanobis.fit, {options.network}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    for key in few:
        print(f"{key.replace('_', ' '):28}{few[key]:>12,}{many[key]:>12,}")
    one_pass = all(run["images_through_the_network"] == run["images"] for run in (few, many))
    grown, kept = many["peak_mb"] - few["peak_mb"], many["features_mb"] - few["features_mb"]
    flat = grown < kept / 4
    print(f"one pass: {'yes' if one_pass else 'NO'}")
    print(
        f"the peak grew by {grown:.1f} MB; keeping the features alone would have taken {kept:.1f} MB; expected at most a "
        f"quarter of that: {'yes' if flat else 'NO'}"
    )


if __name__ == "__main__":
    main()
