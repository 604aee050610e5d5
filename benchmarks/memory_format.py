"""Is a training step faster with channels last? The ratio of the two, for each network, on this machine.

    python -m benchmarks.memory_format
    python -m benchmarks.memory_format --photographs

With ``--photographs``: 64 images of 224x224 through EfficientNet-lite0, without gradients, at once over in parts of 10, as the
inference loop takes them on a CPU.
"""

import argparse
from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.paired import paired, publish
from offaxis.networks import by_name
from offaxis.networks.classifier import Classifier
from offaxis.networks.open import open_network
from offaxis.networks.run import memory_parts, run_batch, to_network

NETWORKS = ("wrn-10-1-half", "wrn-10-4-half", "densenet-22-12-half", "wrn-16-2")


def step(name: str, batch_size: int, layout: torch.memory_format) -> Callable[[], None]:
    network = by_name(name)().to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.randn(batch_size, 3, 32, 32).contiguous(memory_format=layout)
    labels = torch.arange(batch_size) % 10
    return lambda: F.cross_entropy(network(images), labels).backward()


def compare_parts(rounds: int) -> None:
    """Publish the time of one large batch of photographs over that of the same images in parts."""
    network = open_network("efficientnet-lite0", num_classes=19).network
    assert isinstance(network, Classifier)
    images = to_network(network, torch.randn(64, 3, 224, 224))
    parts = memory_parts(images)

    def run(batches: tuple[torch.Tensor, ...]) -> None:
        for batch in batches:
            run_batch(network, batch)

    ratio = paired(lambda: run((images,)), lambda: run(parts), rounds)
    publish(f"64 photographs at once over parts of {len(parts[0])}", ratio, "above 1", ratio.median > 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--photographs", action="store_true")
    options = parser.parse_args()
    if options.photographs:
        compare_parts(options.rounds)
        return
    for name in NETWORKS:
        torch.manual_seed(0)
        first, last = (
            step(name, options.batch_size, layout) for layout in (torch.contiguous_format, torch.channels_last)
        )
        ratio = paired(first, last, options.rounds)
        publish(f"a training step, channels first over channels last, {name}", ratio, "above 1", ratio.median > 1)


if __name__ == "__main__":
    main()
