"""Make the networks and the images that golden values are pinned on, and tell what their bits depend on."""

import hashlib
import json
import math
import platform
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

import offaxis
from offaxis import Classifier, Paired, Recipe
from offaxis.data import Normalise
from offaxis.data.embedded import letters, small_digits
from offaxis.heads import CosineHead, make_head
from offaxis.networks import densenet_bc
from offaxis.networks.combine import Ensemble, LeaveOutEnsemble, folds
from offaxis.training.leave_out import MarginEntropyLoss

ROOT = Path(__file__).parents[2]
VALUES = Path(__file__).parent / "values"
Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
Json = Any
"""What JSON can hold."""


# where the numbers come from -----------------------------------------------------------------------------------------


def surroundings() -> dict[str, str]:
    """Return what bits depend on besides the code."""
    versions = {name: metadata.version(name) for name in ("numpy", "scipy", "scikit-learn")}
    return {"torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability(), **versions}


def about() -> dict[str, str]:
    """Return the surroundings with what else is worth knowing of a recording."""
    return {**surroundings(), "python": platform.python_version()}


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread and in float32, without warnings, so that bits do not depend on the caller."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    with warnings.catch_warnings(), threadpool_limits(1), torch.random.fork_rng(devices=()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)


def checksum(module: nn.Module) -> str:
    """Return a hash of all weights and buffers that knows neither their names nor their order."""
    tensors = (t.detach().contiguous() for t in module.state_dict().values())
    each = sorted(
        hashlib.sha256(f"{tuple(t.shape)} {t.dtype}".encode() + t.numpy().tobytes()).digest() for t in tensors
    )
    return hashlib.sha256(b"".join(each)).hexdigest()


# networks and images -------------------------------------------------------------------------------------------------

CLASSES = 4
TOYS = {
    "linear": ("linear", 0, None), "cosine": ("cosine", 0, None), "cosine-1": ("cosine", 1, None),
    "deconf-c": ("deconf-c", 0, None), "deconf-i": ("deconf-i", 0, None), "deconf-e": ("deconf-e", 0, None),
    "isomax": ("isomax", 0, None), "leave-out-0": ("linear", 0, 0), "leave-out-1": ("linear", 1, 1),
}  # fmt: skip
"""Name -> head, seed, and the fold that is left out of a training in two folds."""
DIGITS = {"digits-cosine": ("cosine", 0), "digits-cosine-1": ("cosine", 1), "digits-linear": ("linear", 0)}
"""Name -> head and seed of a small DenseNet-BC for digits of 8x8 pixels."""


def stripes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images (count, 1, 8, 8) of stripes in four directions, and their classes."""
    random = np.random.Generator(np.random.Philox(seed))
    labels = np.arange(count) % CLASSES
    angle = (labels * math.pi / CLASSES)[:, None, None]
    phase = random.uniform(0, 2 * math.pi, (count, 1, 1))
    grid = np.arange(8.0)
    waves = np.sin(1.6 * (grid[None, None] * np.cos(angle) + grid[None, :, None] * np.sin(angle)) + phase)
    images = waves + 0.1 * random.standard_normal((count, 8, 8))
    return torch.tensor(images[:, None], dtype=torch.float32), torch.tensor(labels)


def noise(count: int, seed: int) -> Tensor:
    """Return images (count, 1, 8, 8) of Gaussian noise."""
    random = np.random.Generator(np.random.Philox(seed))
    return torch.tensor(0.8 * random.standard_normal((count, 1, 8, 8)), dtype=torch.float32)


PAPER_HEAD = partial(CosineHead, start="paper")
"""The head that the scores of cosine networks are pinned on, and that the paper's recipes train."""


def untrained(name: str) -> Classifier:
    """Return a network of ``TOYS`` or ``DIGITS`` with its first weights."""
    if name in DIGITS:
        kind, seed = DIGITS[name]
        head: Any = PAPER_HEAD if kind == "cosine" else kind
        torch.manual_seed(seed)
        return densenet_bc(depth=10, growth=6, num_classes=10, head=head, in_channels=1)
    kind, seed, _ = TOYS[name]
    head = PAPER_HEAD if kind == "cosine" else kind
    torch.manual_seed(seed)
    backbone = nn.Sequential(
        OrderedDict(
            first=nn.Conv2d(1, 8, 3, padding=1),
            norm=nn.BatchNorm2d(8),
            relu=nn.ReLU(),
            second=nn.Conv2d(8, 24, 3, padding=1, stride=2),
            relu2=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
        )
    )
    return Classifier(backbone, make_head(head, 24, CLASSES), layers=("first", "second"))


def trained(name: str) -> Classifier:
    """Return the network after a training; done once, for the file of weights."""
    network = untrained(name)
    if name in DIGITS:
        recipe = Recipe(epochs=6, batch_size=32, crop=0, flip=False)
        return offaxis.train(network, small_digits("train"), recipe, seed=DIGITS[name][1], quiet=True).classifier.eval()
    fold = TOYS[name][2]
    loss = None if fold is None else MarginEntropyLoss(folds(CLASSES, 2)[fold], CLASSES)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    network.train()
    for i in range(150):
        images, labels = stripes(64, 1000 + i)
        outputs = network.outputs(images)
        value = F.cross_entropy(outputs.logits, labels) if loss is None else loss(outputs, labels)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return network.eval()


def networks() -> Arrays:
    """Compute the weights of every network that scores are pinned on, by name and place, whatever they are called."""
    found = {}
    for name in (*TOYS, *DIGITS):
        for place, tensor in enumerate(trained(name).state_dict().values()):
            found[f"{name}/{place:03}"] = tensor.numpy()
    return found


@cache
def _weights() -> Arrays:
    with np.load(VALUES / "networks.npz") as file:
        return dict(file)


@cache
def network(name: str) -> Any:
    """Return a network with the weights that are kept, or one that is made of several."""
    if name == "ensemble":
        return Ensemble([network("cosine"), network("cosine-1")])
    if name == "digits-ensemble":
        return Ensemble([network("digits-cosine"), network("digits-cosine-1")])
    if name == "paired":
        return Paired(network("linear"), network("cosine"))
    if name == "leave-out":
        return LeaveOutEnsemble([network("leave-out-0"), network("leave-out-1")], folds(CLASSES, 2)).eval()
    made = untrained(name)
    with torch.no_grad():
        for place, tensor in enumerate(made.state_dict().values()):
            kept = torch.tensor(_weights()[f"{name}/{place:03}"])
            assert kept.shape == tensor.shape, f"weight {place} of {name}"
            tensor.copy_(kept)
    return made.eval()


@cache
def digits_images() -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    training, normalise = small_digits("train"), digits_normalise()
    assert training.labels is not None
    first = torch.arange(400)
    fitted = normalise(training.batch(first)), training.labels[first]
    known, strange = small_digits("test").batch(torch.arange(32)), letters(32, 8).batch(torch.arange(32))
    return list(zip(*(part.split(100) for part in fitted), strict=True)), normalise(known), normalise(strange)


def digits_normalise() -> Normalise:
    """Return the normalisation of the training digits, in plain numbers."""
    return Normalise((0.305,), (0.376,))


def plain(value: Any) -> Json:
    """Return a value as JSON gives it back: tuples are lists, keys are words."""
    return json.loads(json.dumps(value, default=lambda v: v.tolist()))
