"""Head, the base class of output layers, and the Outputs that they compute; heads by name, described and made again."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import ArgumentError, HeadError
from offaxis.files import running_python
from offaxis.names import HEADS, HeadName, alike

OWN_HEAD = re.compile(r"(.+\.py):(\w+)", re.DOTALL)
"""The name of a head of the user's: a Python file and a class, or a function, in it."""


class Outputs(NamedTuple):
    """The outputs of a classifier for N images.

    Attributes:
        features: (N, d), the input of the head (with ``hidden``, the output of its extra layer).
        logits: (N, C), ready for cross-entropy.
        cosine: (N, C) in [-1, 1], the cosine between features and class axes; None where the head has none.
        scale: (N,), positive where predicted, what the cosine (or the linear logit) was multiplied by; None when unscaled.
        layers: pooled features (N, d_l) of inner layers by name; None unless they were requested.
        score_logits: (N, C), the logits that OOD scores are taken of, where a method classifies with others (T2FNorm);
            None where ``logits`` serve both.
    """

    features: Tensor
    logits: Tensor
    cosine: Tensor | None = None
    scale: Tensor | None = None
    layers: dict[str, Tensor] | None = None
    score_logits: Tensor | None = None

    @property
    def detection_logits(self) -> Tensor:
        """The logits (N, C) that detectors read: ``score_logits`` where the head has such, else ``logits``."""
        return self.logits if self.score_logits is None else self.score_logits

    def detached(self) -> "Outputs":
        """Return the same values without a graph for gradients."""
        layers = None if self.layers is None else {name: layer.detach() for name, layer in self.layers.items()}
        plain = {name: value.detach() for name, value in self._asdict().items() if isinstance(value, Tensor)}
        return self._replace(**plain, layers=layers)


class Head(nn.Module, ABC):
    """The output layer of a classifier, a drop-in for ``nn.Linear``.

    Attributes:
        in_features: d, the size of the features it takes.
        num_classes: C, the number of logits it gives.
        undecayed: names of its parameters without weight decay, unless the recipe sets ``decay_head``.
        linear_in: what its logits at test are linear in, but for the scale of an image: the ``features`` of its outputs, by
            ``weight`` and ``bias``; their directions, by the directions of ``weight``; None for neither.
        arguments: its arguments besides the sizes, as JSON can hold them.
        scores_apart: whether ``score_logits`` are other logits than those that classify.
        normalises_logits: whether logits have a fixed size in train mode, so that a loss above ln C, that of guessing, says
            nothing.
    """

    arguments: dict[str, Any]
    undecayed: tuple[str, ...] = ()
    linear_in: Literal["features", "directions"] | None = None
    scores_apart: bool = False
    normalises_logits: bool = False

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        for name, value, least in (("in_features", in_features, 1), ("num_classes", num_classes, 2)):
            if not isinstance(value, int) or value < least:
                raise ArgumentError(
                    f"Expected argument `{name}` to be a whole number of at least {least} but got {value!r}."
                )
        self.in_features = in_features
        self.num_classes = num_classes
        self.arguments = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "arguments":  # of which a head of one's own may make a property
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)

    @abstractmethod
    def outputs(self, features: Tensor) -> Outputs:
        """Compute logits (N, C) and everything else that the head has, of features (N, d)."""

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits (N, C), ready for cross-entropy, of features (N, d)."""
        return self.outputs(features).logits

    def loss(self, out: Outputs, labels: Tensor) -> Tensor:
        """Compute what a training of this head minimises, from its outputs and labels (N,): the mean cross-entropy."""
        return F.cross_entropy(out.logits, labels)

    def _check(self, features: Tensor) -> None:
        if features.dim() != 2 or features.shape[1] != self.in_features:
            raise HeadError(
                f"Expected features of shape (N, {self.in_features}) but got {tuple(features.shape)}. The head must be "
                "made for the size of the features that the network gives it; a single image needs a batch around it, "
                "image.unsqueeze(0)."
            )

    def extra_repr(self) -> str:
        """Return the sizes, as ``nn.Linear`` shows them."""
        return f"in_features={self.in_features}, num_classes={self.num_classes}"


def linear_parameters(in_features: int, out_features: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Make a weight (out, in) and a bias (out,) with the default initialisation of ``nn.Linear``."""
    weight = nn.Parameter(torch.empty(out_features, in_features))
    bias = nn.Parameter(torch.empty(out_features))
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    bound = 1 / math.sqrt(in_features)
    nn.init.uniform_(bias, -bound, bound)
    return weight, bias


_LARGEST = 1e15  # its square fits into float32 with room for a sum


def bounded(features: Tensor, training: bool) -> Tensor:
    """Return features (N, d); in eval mode limited, so that no product or square of them overflows in float32."""
    if training or features.dtype == torch.float16:  # whose numbers are all smaller
        return features
    return features.clamp(-_LARGEST, _LARGEST)


def finite(logits: Tensor, training: bool) -> Tensor:
    """Return logits (N, C); in eval mode an infinite one becomes the largest number of its type."""
    largest = torch.finfo(logits.dtype).max
    return logits if training else logits.clamp(-largest, largest)


def at_least_float32(features: Tensor) -> Tensor:
    """Return the features in float32, or float64 if they are: norms and exponentials overflow in half precision."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


LARGEST_FEATURE = 1e30  # beyond it, a sum of products could overflow to inf - inf
LARGEST_EXPONENT = 60.0  # exp(60) is 1e26: no trained scale comes near it, and s * cos stays finite


HeadLike = HeadName | Callable[[int, int], Head]
"""A name out of HEADS, or a callable (in_features, num_classes) -> Head such as ``partial(CosineHead, scale=16.0)``."""


def make_head(head: HeadLike | str, in_features: int, num_classes: int) -> Head:
    """Make the head of a name or a callable for these sizes."""
    return (head if callable(head) else find_head(head))(in_features, num_classes)


def find_head(name: str) -> Callable[..., Head]:
    """Return the constructor of a name of HEADS, or of ``file.py:Class``, which is among HEADS from then on.

    Raises:
        ArgumentError: there is no such head.
    """
    if name not in HEADS and (own := OWN_HEAD.fullmatch(name)):
        with running_python(Path(own[1]), "head") as module:
            HEADS[name] = getattr(module, own[2])
    if name not in HEADS:
        raise ArgumentError(
            f"Expected argument `head` to be one of {', '.join(map(repr, HEADS))}, file.py:Class in the shell, or a callable "
            f"(in_features, num_classes) -> Head but got {name!r}.{alike(name, HEADS)}"
        )
    return HEADS[name]


def head_maker(description: Mapping[str, Any]) -> Callable[[int, int], Head]:
    """Return what makes the head of a ``describe_head``, (in_features, num_classes) -> Head.

    Raises:
        ArgumentError: this version has no such head.
    """
    arguments = complete_description(description)
    name = arguments.pop("name")
    if name not in HEADS:
        raise ArgumentError(
            f"Expected a head out of {', '.join(HEADS)} but got {name!r}. It may be of a newer version of offaxis; one of your "
            "own is put among offaxis.heads.HEADS first, HEADS[name] = Class."
        )
    return partial(HEADS[name], **arguments)


def complete_description(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded description of a head with what old records leave out: they mean the paper's start."""
    return {**({"start": "paper"} if description.get("name") == "cosine" else {}), **description}


def describe_head(head: Head) -> dict[str, Any] | None:
    """Return the name and the arguments of a head, as JSON can hold them; None for a head that is not in HEADS."""
    for name, made in HEADS.items():
        kind: Any = getattr(made, "func", made)
        given: dict[str, Any] = getattr(made, "keywords", {})
        if kind is type(head) and given.items() <= head.arguments.items():
            return {"name": name, **head.arguments}
    return None
