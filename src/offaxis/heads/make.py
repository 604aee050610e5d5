"""Heads by name: made for given sizes, described for records, and made again from a description."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from offaxis.errors import ArgumentError
from offaxis.heads.base import Head
from offaxis.names import HEADS

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
