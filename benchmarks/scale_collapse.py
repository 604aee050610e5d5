"""Does the predicted scale collapse? Many short trainings on small digits, counted.

    python -m benchmarks.scale_collapse                     # 200 trainings with the default recipe's clipping
    python -m benchmarks.scale_collapse --compare           # without clipping, and with others, beside it
    python -m benchmarks.scale_collapse --start paper       # with the scale started as the paper's authors did

A training counts as collapsed when its mean training loss over the second half is above 0.9 ln C, or when training
itself stopped because of it. Batch sizes 64 and 32, learning rates from 0.03 to 0.3, every training with its own seed.
"""

import argparse
import json
import math
import statistics
import time
import warnings
from functools import partial
from pathlib import Path

import torch

from offaxis.data.embedded import small_digits
from offaxis.errors import NotFiniteError, ScaleCollapseError
from offaxis.heads import CosineHead
from offaxis.heads.cosine import Start
from offaxis.networks import wide_resnet
from offaxis.training import Recipe, train

RATES = (0.03, 0.055, 0.1, 0.17, 0.3)
BATCHES = (64, 32)
CURES: dict[str, dict[str, float | None]] = {
    "relative, 1.5 (ours)": {"clip": 1.5},
    "none": {"clip": None},
    "norm 1": {"clip": None, "max_norm": 1.0},
    "relative, 2": {"clip": 2.0},
    "relative, 3": {"clip": 3.0},
    "norm 5": {"clip": None, "max_norm": 5.0},
}


def second_half_loss(recipe: Recipe, seed: int, start: Start) -> tuple[float, float, bool]:
    """Mean loss of the second half, last loss, and whether training stopped itself."""
    torch.manual_seed(seed)
    losses: list[float] = []

    def loss(out, labels):  # type: ignore[no-untyped-def]
        value = torch.nn.functional.cross_entropy(out.logits, labels)
        losses.append(value.item())
        return value

    network = wide_resnet(depth=10, width=1, in_channels=1, head=partial(CosineHead, start=start))
    try:
        train(network, small_digits("train"), recipe, seed=seed, loss=loss, quiet=True)
    except (ScaleCollapseError, NotFiniteError):
        return math.inf, math.inf, True
    half = losses[len(losses) // 2 :]
    return statistics.fmean(half), statistics.fmean(half[-len(half) // 6 :]), False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", type=int, default=200, help="trainings of each cure")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--compare", action="store_true", help="all cures, not only the default")
    parser.add_argument("--cure", action="append", choices=CURES, help="these cures; may be given several times")
    parser.add_argument("--start", choices=("sizes", "paper"), default="sizes", help="where the scale starts")
    parser.add_argument("--json", type=Path, help="write the counts here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chance = math.log(10)
    names = list(CURES) if options.compare else options.cure or ["relative, 1.5 (ours)"]
    cures = {name: CURES[name] for name in names}
    results = []
    for name, cure in cures.items():
        begun, collapsed, stopped, finals = time.monotonic(), 0, 0, []
        for seed in range(options.trainings):
            rate = RATES[seed % len(RATES)]
            batch = BATCHES[seed // len(RATES) % len(BATCHES)]
            recipe = Recipe(options.epochs, batch, learning_rate=rate, crop=0, flip=False, **cure)  # type: ignore[arg-type]
            half, final, itself = second_half_loss(recipe, seed, options.start)
            collapsed += half > 0.9 * chance
            stopped += itself
            finals.append(final)
        finals.sort()
        row = {
            "cure": name,
            "start": options.start,
            "trainings": options.trainings,
            "collapsed": collapsed,
            "stopped": stopped,
            "median_loss": round(statistics.median(finals), 3),
            "p90_loss": round(finals[int(0.9 * len(finals))], 3),
            "seconds": round(time.monotonic() - begun),
        }
        results.append(row)
        print(
            f"{name:20s} collapsed {collapsed:3d} of {options.trainings}, of which training stopped itself {stopped:3d}; "
            f"last loss: median {row['median_loss']}, 90 % below {row['p90_loss']}  ({row['seconds']} s)",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
