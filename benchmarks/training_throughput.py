"""Our training loop against a bare PyTorch loop: images a second, as a ratio, with the same network.

    python -m benchmarks.training_throughput

The bare loop has its images in memory, normalised beforehand, and does nothing but forward, backward and step. Ours starts
from bytes, crops, normalises, clips the gradient, checks the loss and the scale, and writes a log.
"""

import argparse
import tempfile
import warnings
from pathlib import Path

import torch
from torch.nn import functional as F

from benchmarks.paired import paired, publish
from offaxis.data import Normalise, TensorSet
from offaxis.networks import by_name
from offaxis.training import Recipe, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="wrn-10-4-half")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument(
        "--steps", type=int, default=24, help="batches of an epoch, after which a checkpoint is written"
    )
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="The network has learned next to nothing")
    count = options.batch_size * options.steps
    pixels = torch.randint(0, 256, (count, options.channels, options.size, options.size), dtype=torch.uint8)
    labels = torch.arange(count) % 10
    data = TensorSet("random", pixels, labels, [str(i) for i in range(10)])
    normalise = Normalise((0.5,) * options.channels, (0.25,) * options.channels)
    recipe = Recipe(epochs=1, batch_size=options.batch_size)
    torch.manual_seed(0)
    ours = by_name(options.network)(in_channels=options.channels)
    bare = by_name(options.network)(in_channels=options.channels).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    prepared = normalise(pixels).contiguous(memory_format=torch.channels_last)

    def our_loop() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(ours, data, recipe, normalise=normalise, out=Path(folder) / "run", quiet=True)

    def bare_loop() -> None:
        bare.train()
        optimizer = torch.optim.SGD(
            bare.parameter_groups(recipe.weight_decay), lr=recipe.learning_rate, momentum=recipe.momentum, nesterov=True
        )
        order = torch.randperm(count)
        for indices in order.split(options.batch_size):
            loss = F.cross_entropy(bare(prepared[indices]), labels[indices])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    ratio = paired(bare_loop, our_loop, options.rounds)
    title = f"throughput of our loop over that of a bare loop, {options.network}, {options.steps} steps of {options.batch_size}"
    publish(title, ratio, "at least 0.97", ratio.median >= 0.97)


if __name__ == "__main__":
    main()
