"""Is a training step faster with channels last? The ratio of the two, for each network, on this machine.

python -m benchmarks.memory_format
"""

import argparse
from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.paired import paired, publish
from offaxis.networks import by_name

NETWORKS = ("wrn-10-1-half", "wrn-10-4-half", "densenet-22-12-half", "wrn-16-2")


def step(name: str, batch_size: int, layout: torch.memory_format) -> Callable[[], None]:
    network = by_name(name)().to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.randn(batch_size, 3, 32, 32).contiguous(memory_format=layout)
    labels = torch.arange(batch_size) % 10
    return lambda: F.cross_entropy(network(images), labels).backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    for name in NETWORKS:
        torch.manual_seed(0)
        first, last = (
            step(name, options.batch_size, layout) for layout in (torch.contiguous_format, torch.channels_last)
        )
        ratio = paired(first, last, options.rounds)
        publish(f"a training step, channels first over channels last, {name}", ratio, "above 1", ratio.median > 1)


if __name__ == "__main__":
    main()
