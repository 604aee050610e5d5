"""What a command line says of the images a network is trained on."""

from pathlib import Path
from typing import Literal

from offaxis.datasets import ImageSet, embedded
from offaxis.errors import ArgumentError

EMBEDDED = {"digits": embedded.digits, "small-digits": embedded.small_digits}


def load_id_set(name: str, split: Literal["train", "test"], root: Path | None) -> ImageSet:
    """The images that a name or a folder stands for."""
    del root
    if name not in EMBEDDED:
        raise ArgumentError(f"Expected --id to be one of {', '.join(EMBEDDED)} but got {name!r}.")
    return EMBEDDED[name](split)


def may_be_mirrored(name: str) -> bool:
    """Whether an image and its mirror image mean the same: not for digits, letters and signs."""
    return name not in ("digits", "small-digits", "mnist", "kmnist", "notmnist", "svhn", "gtsrb")
