"""Compute the golden trainings: recipes, first weights and what two epochs make of them."""

from collections.abc import Callable
from typing import Any

import torch

import offaxis
from offaxis import Classifier, Recipe
from offaxis.data import ImageSet, TensorSet
from offaxis.data.embedded import digits, small_digits
from offaxis.heads import HeadLike
from offaxis.networks import densenet_bc, wide_resnet
from offaxis.training import RECIPES

from .subjects import PAPER_HEAD, Json, checksum, plain


def _wide(head: HeadLike) -> Classifier:
    return wide_resnet(depth=10, width=1, head=head, in_channels=1, stem_stride=2)


def _dense(head: HeadLike) -> Classifier:
    return densenet_bc(depth=10, growth=6, head=head, in_channels=1)


TRAININGS: dict[str, tuple[Callable[[HeadLike], Classifier], HeadLike, Callable[[], Recipe]]] = {
    "default, cosine": (_wide, "cosine", lambda: Recipe(epochs=2, batch_size=64)),
    "default, linear": (_wide, "linear", lambda: Recipe(epochs=2, batch_size=64)),
    "default, deconf-c": (_wide, "deconf-c", lambda: Recipe(epochs=2, batch_size=64)),
    "default, isomax": (_wide, "isomax", lambda: Recipe(epochs=2, batch_size=64)),
    "decayed head, norm clipped": (
        _wide, "cosine", lambda: Recipe(epochs=2, batch_size=64, clip=None, max_norm=1.0, decay_head=True, crop=1, flip=False)
    ),
    "laptop": (_wide, "cosine", lambda: RECIPES["laptop"]().replace(epochs=2)),
    "short": (_wide, "cosine", lambda: RECIPES["short"]().replace(epochs=2)),
    "paper-wide-resnet, cosine": (_wide, PAPER_HEAD, lambda: RECIPES["paper-wide-resnet"]().replace(epochs=2)),
    "paper-wide-resnet, linear": (_wide, "linear", lambda: RECIPES["paper-wide-resnet"]().replace(epochs=2)),
    "paper-densenet, cosine": (_dense, PAPER_HEAD, lambda: RECIPES["paper-densenet"]().replace(epochs=2)),
    "paper-densenet, linear": (_dense, "linear", lambda: RECIPES["paper-densenet"]().replace(epochs=2)),
}  # fmt: skip
"""Name -> network, head and recipe, cut to two epochs."""


def training(name: str) -> Json:
    """Compute a training on the 8x8 digits: checksums before and after, and what each epoch logged."""
    make, head, recipe = TRAININGS[name]
    return _trained(make, head, recipe(), small_digits("train"))


def large_digits_training() -> Json:
    """Compute a training on 512 MNIST digits."""
    data = digits("train")
    assert data.labels is not None
    few = TensorSet("few-digits", data.images[:512], data.labels[:512], data.classes)
    return _trained(_wide, "cosine", Recipe(epochs=2, batch_size=64, crop=2, flip=False), few)


def _trained(make: Callable[[HeadLike], Classifier], head: HeadLike, recipe: Recipe, data: ImageSet) -> Json:
    torch.manual_seed(0)
    made = make(head)
    first = checksum(made)
    done = offaxis.train(made, data, recipe, seed=0, quiet=True)
    epochs = [{key: e[key] for key in ("loss", "accuracy", "scale", "learning_rate")} for e in done.history]
    mean, std = done.normalise.mean, done.normalise.std
    return plain({"first": first, "last": checksum(done.classifier), "epochs": epochs, "mean": mean, "std": std})


def trainings() -> Json:
    """Compute every training."""
    return {**{name: training(name) for name in TRAININGS}, "digits": large_digits_training()}


def recipes() -> Json:
    """Compute the numbers of every recipe by name, and the learning rates of a hundred steps."""
    found = {}
    for name, make in RECIPES.items():
        rates = [make().learning_rate_at(step, 100) for step in range(100)]
        found[name] = {"recipe": make().to_json(), "learning_rates": rates}
    return plain(found)


HEADS_THEN = ("cosine", "linear", "deconf-c", "deconf-i", "deconf-e", "isomax", "logitnorm", "t2fnorm", "elogitnorm")
"""Those that there were when the weights were recorded."""


def first_weights() -> Json:
    """Compute the checksum of the first weights of both kinds of networks with every head, and two of the paper's."""
    found = {}
    heads: list[Any] = [*HEADS_THEN]
    for head in heads:
        for name, make in (("wide_resnet", _wide), ("densenet_bc", _dense)):
            torch.manual_seed(5)
            found[f"{name}, {head}"] = checksum(make(head))
    for name, make in (("wide_resnet", _wide), ("densenet_bc", _dense)):
        torch.manual_seed(5)
        found[f"{name}, cosine, paper's start"] = checksum(make(PAPER_HEAD))
    torch.manual_seed(5)
    found["densenet_bc of the paper"] = checksum(densenet_bc(num_classes=100, head=PAPER_HEAD))
    torch.manual_seed(5)
    found["wide_resnet, colour, dropout"] = checksum(wide_resnet(16, 4, 100, "linear", dropout=0.3))
    return found
