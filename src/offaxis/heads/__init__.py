"""Heads, the output layers of classifiers: features -> Outputs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from offaxis.errors import ArgumentError
from offaxis.heads.base import Head, Outputs
from offaxis.heads.cosine import CosineHead
from offaxis.heads.elogitnorm import ELogitNormHead
from offaxis.heads.generalized_odin import DeConfHead
from offaxis.heads.isomax import IsoMaxHead
from offaxis.heads.linear import LinearHead
from offaxis.heads.logitnorm import LogitNormHead
from offaxis.heads.t2fnorm import T2FNormHead

HEADS: dict[str, Callable[[int, int], Head]] = {
    "cosine": CosineHead,
    "linear": LinearHead,
    "deconf-c": partial(DeConfHead, similarity="cosine"),
    "deconf-i": partial(DeConfHead, similarity="inner"),
    "deconf-e": partial(DeConfHead, similarity="euclid"),
    "isomax": IsoMaxHead,
    "logitnorm": LogitNormHead,
    "t2fnorm": T2FNormHead,
    "elogitnorm": ELogitNormHead,
}

HeadLike = str | Callable[[int, int], Head]
"""A name out of HEADS, or a callable (in_features, num_classes) -> Head such as ``partial(CosineHead, scale=16.0)``."""


def make_head(head: HeadLike, in_features: int, num_classes: int) -> Head:
    """Make the head of a name or a callable for these sizes."""
    if callable(head):
        return head(in_features, num_classes)
    if head not in HEADS:
        raise ArgumentError(
            f"Expected argument `head` to be one of {', '.join(map(repr, HEADS))} or a callable "
            f"(in_features, num_classes) -> Head but got {head!r}."
        )
    return HEADS[head](in_features, num_classes)


def head_maker(description: Mapping[str, Any]) -> Callable[[int, int], Head]:
    """Return what makes the head of a ``describe_head``, (in_features, num_classes) -> Head.

    Raises:
        ArgumentError: this version has no such head.
    """
    arguments = complete_description(description)
    name = arguments.pop("name")
    if name not in HEADS:
        raise ArgumentError(f"Expected a head out of {', '.join(HEADS)} but got {name!r}.")
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


__all__ = [
    "HEADS",
    "CosineHead",
    "DeConfHead",
    "ELogitNormHead",
    "Head",
    "HeadLike",
    "IsoMaxHead",
    "LinearHead",
    "LogitNormHead",
    "Outputs",
    "T2FNormHead",
    "complete_description",
    "describe_head",
    "head_maker",
    "make_head",
]
