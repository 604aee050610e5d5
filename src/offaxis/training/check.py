"""Whether a training teaches a network anything: the guard inside the loop, and what ``Classifier.check_training`` measures."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.data import Normalise
from offaxis.data.adapt import LoaderBatches, as_batches
from offaxis.errors import DataError, NotFiniteError, ScaleCollapseError
from offaxis.heads.base import at_least_float32
from offaxis.networks.classifier import Classifier
from offaxis.networks.run import run, widest

LEAST_SCALE = 0.05
"""Below this mean scale no logit is larger than 0.05, so the loss is within 0.1 of ln C whatever the network does."""
BEHIND = 0.1
"""A head whose accuracy is this far below that of its own features' class means has not caught up with them."""


@dataclass(frozen=True, kw_only=True)
class TrainingCheck:
    """What ``Classifier.check_training`` found on N labelled images.

    Attributes:
        images: N.
        accuracy: of the network, in [0, 1].
        loss: its mean cross-entropy.
        guessing: the accuracy of always naming the most frequent class.
        guessing_loss: the cross-entropy of naming the classes by their frequency.
        class_means: the accuracy of the nearest class mean, by the cosine, of the same features, each image apart from
            its own class's mean; what the features allow without a trained head.
        scale: the mean scale; None where the head has none.
        problems: what is wrong, a sentence each; empty where nothing is.
    """

    images: int
    accuracy: float
    loss: float
    guessing: float
    guessing_loss: float
    class_means: float
    scale: float | None
    problems: tuple[str, ...] = ()


def learned_nothing(*, accuracy: float, loss: float, guessing: float, guessing_loss: float) -> bool:
    """Tell whether a network is next to no better than guessing: less than twice as often right, or a loss as large.

    With few classes, where guessing is often right, a tenth of the way from there to all is asked for instead.
    """
    return accuracy < min(2 * guessing, guessing + 0.1 * (1 - guessing)) or loss > 0.9 * guessing_loss


class CollapseGuard:
    """Stops a training whose loss is not finite or whose scale has collapsed.

    Args:
        num_classes: C; guessing gives the loss ln C.
        window: how many steps in a row a collapsed scale is given to recover.
        clip: the recipe's gradient clipping, for the advice.
        learning_rate: the recipe's, for the advice.
    """

    def __init__(self, num_classes: int, window: int, clip: float | None, learning_rate: float) -> None:
        self.chance, self.window, self.clip, self.learning_rate = math.log(num_classes), window, clip, learning_rate
        self.collapsed: list[int] = []

    def check(self, step: int, steps: int, loss: float, scale: float | None) -> None:
        """Check the mean loss and the mean scale of the last ``steps`` steps, which ended with ``step``.

        Raises:
            NotFiniteError: the loss is NaN or infinite.
            ScaleCollapseError: the scale has been near zero for a whole window, with the loss at chance.
        """
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"The loss became {loss} within the {steps} steps before step {step}. Common causes: a learning rate that "
                f"is too high (it was {self.learning_rate:g}), NaN or infinite pixels, or 16-bit precision. Try a tenth of "
                f"the learning rate{'' if self.clip else ', gradient clipping (clip=1.5)'}, or precision 32-true."
            )
        if scale is None or abs(scale) >= LEAST_SCALE or loss < 0.9 * self.chance:
            self.collapsed.clear()
            return
        self.collapsed.append(steps)
        if sum(self.collapsed) >= self.window:
            clips = "Clip the gradient (clip=1.5 in the recipe, --clip 1.5 in the shell), which prevents this. "
            cure = f"{'' if self.clip else clips}Lower the learning rate (it was {self.learning_rate:g})."
            raise ScaleCollapseError(
                f"The scale collapsed: its mean was {scale:.2g} over the last {sum(self.collapsed)} steps before step {step} "
                f"and the loss is {loss:.3f}, at chance (ln C = {self.chance:.3f}). Every gradient is proportional to the "
                f"scale, so training would stay there. {cure} docs/scale-collapse.md explains how it comes about."
            )

    def check_end(self, loss: float, accuracy: float, *, by_accuracy: bool = False) -> None:
        """Warn where loss or accuracy of the last epoch are next to no better than guessing.

        Args:
            loss: the mean over the epoch.
            accuracy: likewise.
            by_accuracy: accuracy alone decides, as the loss cannot be compared with ln C: it is not the plain cross-entropy,
                or that of logits of a fixed size (LogitNorm), which is large before the classes are learned.
        """
        guessing = math.exp(-self.chance)
        compared, chance = (0.0, "") if by_accuracy else (loss, f"ln C = {self.chance:.3f} and ")
        if learned_nothing(accuracy=accuracy, loss=compared, guessing=guessing, guessing_loss=self.chance):
            warnings.warn(
                f"The network has learned next to nothing: its training ended with the loss {loss:.3f} and the accuracy "
                f"{accuracy:.1%}, and guessing gives {chance}{guessing:.1%}. More epochs, another "
                "learning rate, or a look at the labels may help.",
                UserWarning,
                stacklevel=3,
            )


def check_training(network: Classifier, data: Any, normalise: Normalise | None = None) -> TrainingCheck:
    """Compare a network with guessing and with what its features allow; warn of each problem.

    Args:
        network: in train or eval mode; it is run in eval mode and left as it was.
        data: as in ``Classifier.check_training``.
        normalise: likewise.

    Raises:
        DataError: there are no images, or no labels.
        BadOutputsError: the network gives NaN or infinite numbers.
    """
    if normalise is None and isinstance(data, list):
        batches: Any = LoaderBatches(data, labels=True, num_classes=network.num_classes)
    else:
        batches = as_batches(data, normalise, 256, labels=True, num_classes=network.num_classes)
    features, labels, hits, loss, scale = [], [], 0, 0.0, 0.0
    for out, _, given in run(network, batches, labels=True):
        assert given is not None
        features.append(F.normalize(widest(at_least_float32(out.features)), dim=1))
        labels.append(given)
        hits += int((out.logits.argmax(1) == given).sum())
        loss += float(F.cross_entropy(widest(at_least_float32(out.logits)), given, reduction="sum"))
        scale += 0.0 if out.scale is None else float(out.scale.sum())
    if not labels:
        raise DataError("Expected images to check a training on but got none.")
    of_class = torch.cat(labels)
    count, scaled = len(of_class), getattr(network.head, "scale", None) is not None
    shares = torch.bincount(of_class, minlength=network.num_classes).cpu().double() / count
    entropy = -float((shares[shares > 0] * shares[shares > 0].log()).sum())
    found = TrainingCheck(
        images=count,
        accuracy=hits / count,
        loss=loss / count,
        guessing=float(shares.max()),
        guessing_loss=entropy,
        class_means=_class_mean_accuracy(torch.cat(features), of_class, network.num_classes),
        scale=scale / count if scaled else None,
    )
    problems = tuple(_problems(found, network.num_classes))
    for problem in problems:
        warnings.warn(problem, UserWarning, stacklevel=3)
    return replace(found, problems=problems)


def _class_mean_accuracy(features: Tensor, labels: Tensor, num_classes: int) -> float:
    """Compute how often the nearest mean direction is that of an image's class, its own features left out of it."""
    sums = features.new_zeros(num_classes, features.shape[1]).index_add_(0, labels, features)
    lengths = sums.norm(dim=1)
    cosine = F.linear(features, sums) / lengths.clamp_min(1e-12)
    cosine[:, lengths == 0] = -math.inf  # classes without an image
    others = sums[labels] - features
    own = (features * others).sum(1) / others.norm(dim=1).clamp_min(1e-12)
    cosine[torch.arange(len(labels), device=labels.device), labels] = own
    return float((cosine.argmax(1) == labels).cpu().double().mean())


def _problems(found: TrainingCheck, num_classes: int) -> Iterable[str]:
    """Yield a sentence for each thing that is wrong, with what helps."""
    if found.scale is not None and abs(found.scale) < LEAST_SCALE:
        yield (
            f"The scale has collapsed: its mean is {found.scale:.2g}, so every logit is near 0 and nothing is learned any "
            "more. Start anew with a lower learning rate, or clip the gradient. docs/scale-collapse.md explains it."
        )
    elif found.guessing == 1:
        yield (
            f"Nothing can be told from {found.images} images of one class: check the training on images of all classes, "
            "shuffled."
        )
    elif learned_nothing(
        accuracy=found.accuracy, loss=found.loss, guessing=found.guessing, guessing_loss=found.guessing_loss
    ):
        yield (
            f"The network has learned next to nothing: {found.accuracy:.1%} of {found.images} images are right and guessing "
            f"gives {found.guessing:.1%}; the loss is {found.loss:.3f} and that of guessing {found.guessing_loss:.3f}. "
            "More epochs, another learning rate, or a look at the labels and at the normalisation may help."
        )
    elif found.class_means > found.accuracy + BEHIND and found.images >= 10 * num_classes:
        yield (
            f"The head is behind its features: {found.accuracy:.1%} of {found.images} images are right, while the nearest "
            f"class mean of the same features is right for {found.class_means:.1%}. Train it for longer or with a larger "
            'learning rate; a cosine head with start="paper" learns slowly under Adam (docs/head-start.md).'
        )
