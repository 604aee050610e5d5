"""An epoch on photographs against a bare loop over the same decoded tensors, and what JPEG's own shrinking would change.

    python -m benchmarks.photo_epoch --photos FOLDER [--network FILE.py:FUNCTION]

The photographs lie in a folder per class. They are decoded into the cache beforehand, as every epoch after the first and every
further seed finds them. The bare loop has them in memory, cropped and normalised, and does nothing but forward, backward and
step. Ours reads bytes from the cache, takes random resized crops, flips, normalises, clips the gradient, checks the loss and
writes log and checkpoint. An epoch of ours and one of the bare loop take turns; the opening of the run is no part of an epoch.

The second part decodes JPEG files of telephone size with and without ``draft`` (decoding at a half, a quarter or an eighth of
the size, at least twice the size that is needed), and compares the change of the pixels with that of another filter, bicubic
in place of bilinear.
"""

import argparse
import io
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from benchmarks.paired import publish, ratio_of
from offaxis.data import Normalise, load_images
from offaxis.data.decode import decode
from offaxis.data.transforms import centre, fit
from offaxis.networks.classifier import Classifier
from offaxis.networks.open import open_network
from offaxis.training import Recipe, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="The network has learned next to nothing")
    compare_decoding(options.photos, options.size)
    measure_epoch(options)


def measure_epoch(options: argparse.Namespace) -> None:
    """Publish the throughput of an epoch as a share of that of a bare loop."""
    images = load_images(options.photos, "train", size=options.size, holdout=0.2)
    chosen = torch.linspace(0, len(images) - 1, options.images).long().unique()
    images = images.subset(chosen)
    assert images.labels is not None
    labels = images.labels
    normalise = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    recipe = Recipe(
        epochs=options.rounds + 1, batch_size=options.batch_size, learning_rate=0.001, crop=0, min_area=0.25
    )
    ours, bare = (open_network(options.network, num_classes=len(images.classes)).network for _ in range(2))
    assert isinstance(ours, Classifier)
    assert isinstance(bare, Classifier)
    bare.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    prepared = normalise(images.batch(torch.arange(len(images)))).contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        bare.parameter_groups(recipe.weight_decay), lr=recipe.learning_rate, momentum=recipe.momentum, nesterov=True
    )

    def bare_epoch() -> None:
        bare.train()
        for indices in torch.randperm(len(prepared)).split(options.batch_size):
            loss = F.cross_entropy(bare(prepared[indices]), labels[indices])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    clocks = {"elapsed": time.perf_counter, "processor": time.process_time}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in clocks}
    ended = {name: clock() for name, clock in clocks.items()}

    def after_epoch(epoch: int, _network: Classifier) -> None:
        nonlocal ended
        begun = {name: clock() for name, clock in clocks.items()}
        bare_epoch()
        now = {name: clock() for name, clock in clocks.items()}
        if epoch > 1:  # the first holds the opening of the run, and warms up
            for name in clocks:
                times[name].append((now[name] - begun[name], begun[name] - ended[name]))
        ended = now

    with tempfile.TemporaryDirectory() as folder:
        train(
            ours,
            images,
            recipe,
            normalise=normalise,
            out=Path(folder) / "run",
            after_epoch=after_epoch,
            quiet=True,
        )
    for name, pairs in times.items():
        ratio = ratio_of(pairs)
        title = f"throughput of an epoch on {len(images)} cached photographs over that of a bare loop, by {name} time"
        publish(title, ratio, "at least 0.95", ratio.median >= 0.95, network=options.network)


def compare_decoding(folder: Path, size: int, count: int = 24) -> None:
    """Print time and change of pixels of ``draft``; the photographs are enlarged to telephone size, with noise."""
    chance = np.random.default_rng(0)
    for side in (1000, 2000):
        times, changes, filters = [0.0, 0.0], [], []
        for path in sorted(folder.rglob("*.jpg"))[:count]:
            small = decode(path).convert("RGB")
            scale = side / min(small.size)
            large = small.resize((round(small.width * scale), round(small.height * scale)), Image.Resampling.LANCZOS)
            noisy = np.asarray(large) + chance.normal(0, 4, (large.height, large.width, 3))
            file = io.BytesIO()
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
            begun = time.process_time()
            full = decode(file.getvalue())
            plain = fit(full, (3, size, size), "crop").astype(int)
            times[0] += time.process_time() - begun
            begun = time.process_time()
            shrunk = Image.open(file)
            shrunk.draft("RGB", (2 * size, 2 * size))
            shrunk.load()
            drafted = fit(shrunk, (3, size, size), "crop").astype(int)
            times[1] += time.process_time() - begun
            changes.append(np.abs(plain - drafted))
            top, left, height, width = centre((full.height, full.width), (size, size))
            square = full.crop((left, top, left + width, top + height))
            bicubic = np.asarray(square.resize((size, size), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
            filters.append(np.abs(plain - bicubic.astype(int)))
        print(
            f"short side {side}: decoding and resizing {1000 * times[0] / count:.1f} ms, with draft "
            f"{1000 * times[1] / count:.1f} ms; draft changes pixels by {np.mean(changes):.2f} of 255 on average, "
            f"{np.max(changes)} at most; bicubic in place of bilinear by {np.mean(filters):.2f} and {np.max(filters)}"
        )


if __name__ == "__main__":
    main()
