"""Is this checkout as fast as another one? The commands of both in turn, and requests to a service of each.

    python -m benchmarks.two_trees ../old            # the root of the other checkout; about ten minutes
    python -m benchmarks.two_trees ../old --rounds 5

Each command is a process of its own with ``PYTHONPATH`` set to the checkout's ``src``; its time counts from start to end,
imports included. The service of each checkout has a bundle of its own and takes the same PNG files from four clients. A ratio
is the time of the other checkout over ours, the median over rounds: above 1 this one is faster. Prints JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from benchmarks.load_test import free_port
from benchmarks.paired import paired

ROOT = Path(__file__).parents[1]
CLIENTS, REQUESTS, FILES = 4, 100, 1500


def offaxis(tree: Path, folder: Path, *words: str) -> list[str]:
    """Return a command of a checkout."""
    return ["env", f"--chdir={folder}", f"PYTHONPATH={tree / 'src'}", sys.executable, "-m", "offaxis", *words]


def run(command: list[str]) -> None:
    """Run a command to its end."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def images(folder: Path) -> None:
    """Write noisy stripes of ten directions as PNG files of 32x32, a folder a class."""
    random = np.random.default_rng(0)
    across = np.arange(32)
    for number in range(FILES):
        label = number % 10
        angle = np.pi * label / 10
        wave = np.sin((across[:, None] * np.sin(angle) + across * np.cos(angle)) + random.uniform(0, 6))
        pixels = (128 + 60 * wave[..., None] + random.normal(0, 30, (32, 32, 3))).clip(0, 255).astype(np.uint8)
        file = folder / ("test" if number % 3 else "train") / f"stripes{label}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)


def start(tree: Path, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the service of a checkout."""
    port = free_port()
    process = subprocess.Popen(
        offaxis(tree, folder, "serve", "own.oax", "--port", str(port)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    address = f"http://127.0.0.1:{port}"
    for _ in range(300):
        with suppress(httpx.HTTPError):
            if httpx.get(f"{address}/readyz").status_code == 200:
                return process, address
        time.sleep(0.2)
    raise SystemExit(f"The service of {tree} did not start.")


def requests(address: str, files: list[bytes]) -> None:
    """Send every client's requests, eight files each, and wait for all answers."""

    def client(number: int) -> None:
        with httpx.Client(timeout=60) as http:
            for each in range(REQUESTS // CLIENTS):
                chosen = [files[(8 * (each + number) + i) % len(files)] for i in range(8)]
                forms = [("files", (f"{i}.png", content, "image/png")) for i, content in enumerate(chosen)]
                http.post(f"{address}/v1/predict", files=forms).raise_for_status()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="root of the other checkout")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    trees = {"other": options.other.resolve(), "own": ROOT}
    with tempfile.TemporaryDirectory() as room, ExitStack() as stack:
        folders = {name: Path(room) / name for name in trees}
        for name, folder in folders.items():
            images(folder / "images")
            new = ("train", "--id", "images", "--network", "resnet20-cifar", "--epochs", "2", "--out", "own", "--quiet")
            run(offaxis(trees[name], folder, *new))
            run(offaxis(trees[name], folder, "bundle", "own", "--calibrate", "images", "--out", "own.oax"))
        frozen = ["train", "--id", "images", "--from", "own", "--freeze", "--epochs", "20", "--quiet", "--out"]
        evaluate = ("evaluate", "own", "--ood", "uniform,letters", "--detectors", "cosine,two-cosines,knn,energy,odin")
        tasks = {
            "--help": ("--help",),
            "train --freeze": (*frozen, "frozen{}"),
            "evaluate": (*evaluate, "--out", "{}"),
            "bundle": ("bundle", "own", "--calibrate", "images", "--out", "{}.oax"),
            "score": ("score", "own.oax", "images", "--out", "{}.csv"),
        }
        numbers = iter(range(10**6))
        found = {}
        for task, words in tasks.items():

            def once(name: str, words: tuple[str, ...] = words) -> None:
                run(offaxis(trees[name], folders[name], *(word.format(f"{next(numbers)}") for word in words)))

            found[task] = paired(lambda: once("other"), lambda: once("own"), options.rounds, 1)
            print(task, found[task], file=sys.stderr, flush=True)
        served = {}
        for name, tree in trees.items():
            process, served[name] = start(tree, folders[name])
            stack.callback(process.wait)
            stack.callback(process.terminate)
        files = [path.read_bytes() for path in sorted((folders["own"] / "images").rglob("*.png"))[:200]]
        ratio = paired(
            lambda: requests(served["other"], files), lambda: requests(served["own"], files), options.rounds, 1
        )
        found["serve"] = ratio
        print("serve", ratio, file=sys.stderr, flush=True)
    print(json.dumps({task: ratio._asdict() for task, ratio in found.items()}, indent=2))


if __name__ == "__main__":
    main()
