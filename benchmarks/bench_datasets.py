"""How fast datasets load and how much memory they take.

    python -m benchmarks.bench_datasets [--data ROOT] [--repeats 5]

Prints JSON: for every dataset on this machine, the seconds of each load (in a process of its own) and the memory that the
process gained, against the raw bytes of the pixels.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch

from offaxis.data import CATALOGUE
from offaxis.data.catalogue import data_root

_ONE = """
import json, resource, sys, time
from offaxis.data import load_images
import scipy.io, sklearn.datasets  # so that neither their time nor their memory counts
name, split, root = sys.argv[1:]
def resident():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * resource.getpagesize()
before, start = resident(), time.perf_counter()
images = load_images(name, split, root=root)
seconds, gained = time.perf_counter() - start, resident() - before
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
channels, height, width = images.shape
print(json.dumps([seconds, gained, peak, len(images), len(images) * channels * height * width]))
"""


def measure(name: str, split: str, root: Path, repeats: int) -> dict[str, Any]:
    """Median and spread over fresh processes; the first one fills the disk cache and is not counted."""
    command = [sys.executable, "-c", _ONE, name, split, str(root)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats + 1)]
    seconds = [run[0] for run in runs[1:]]
    raw = runs[0][4]
    return {
        "images": runs[0][3],
        "seconds_first": round(runs[0][0], 3),
        "seconds_median": round(statistics.median(seconds), 3),
        "seconds_range": [round(min(seconds), 3), round(max(seconds), 3)],
        "raw_bytes": raw,
        "resident_over_raw": round(statistics.median(run[1] for run in runs) / raw, 3),
        "peak_over_raw": round(statistics.median(run[2] for run in runs) / raw, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=None)
    arguments = parser.parse_args()
    root = data_root(arguments.data)
    results = {
        f"{name} {split}": measure(name, split, root, arguments.repeats)
        for name, entry in CATALOGUE.items()
        if entry.kind != "noise" and (arguments.only is None or name in arguments.only)
        for split in entry.available(root)
    }
    versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    versions |= {"pillow": PIL.__version__, "machine": platform.machine()}
    print(json.dumps({"versions": versions, "results": results}, indent=2))


if __name__ == "__main__":
    main()
