"""Which OOD images may guide decisions, and which are only reported; which classes are left out as unseen ones.

Fixed before any score of this study was computed. A score or a recipe is judged on the development sets alone; recipes of
trainings are chosen on the accuracy on held-out training images, without any OOD image. Small trials before this study
looked at vegetables, at unseen fruit and, with a fine-tuned ResNet-20, at CIFAR-100, SVHN, TinyImageNet and textures; what
they suggested is judged again on the development sets.
"""

import random

from study.sets import DEVELOPMENT as DEVELOPMENT_32
from study.sets import REPORTED as REPORTED_32

SEEDS = (0, 1, 2)
"""Of the trainings."""

DEVELOPMENT: dict[str, tuple[str, ...]] = {
    "cifar10": DEVELOPMENT_32,
    "cifar100": DEVELOPMENT_32,
    "fashion-mnist": DEVELOPMENT_32,
    "fruit": ("packages",),
    "clothing": ("packages",),
}
"""ID set -> OOD sets that may guide decisions: of 32x32 pixels, the first study's; of photographs, packaged goods."""

REPORTED: dict[str, tuple[str, ...]] = {
    "cifar10": REPORTED_32["cifar10"],
    "cifar100": REPORTED_32["cifar100"],
    "fashion-mnist": REPORTED_32["fashion-mnist"],
    "fruit": ("vegetables", "clothing"),
    "clothing": ("fruit", "vegetables"),
}
"""ID set -> OOD sets that are only reported. Vegetables are near to fruit: the same shops, shelves and camera."""

NEAR: dict[str, tuple[str, ...]] = {
    "cifar10": ("cifar100", "tin-resize", "tin-crop-free"),
    "cifar100": ("cifar10", "tin-resize", "tin-crop-free"),
    "fashion-mnist": ("mnist",),
    "fruit": ("vegetables",),
    "clothing": (),
}
"""ID set -> the near ones among the reported sets; noise (gaussian) is neither near nor far."""

NOISE = ("gaussian", "uniform")

CHOICES: dict[str, tuple[int, ...]] = {"fruit": (0, 1, 2, 3, 4), "clothing": (0, 1, 2, 3, 4), "cifar10": (0, 1, 2)}
"""ID set -> the choices of unseen classes that are reported."""
DEVELOPMENT_CHOICES = (101, 102)
"""Other choices of unseen classes, which may guide decisions."""
UNSEEN: dict[str, int] = {"fruit": 6, "clothing": 3, "cifar10": 3}
"""ID set -> how many classes are left out of training: of 19, of 10 and of 10."""
CLASSES: dict[str, int] = {"fruit": 19, "clothing": 10, "cifar10": 10}


def unseen_classes(id_name: str, choice: int) -> tuple[int, ...]:
    """Return the numbers of the classes that a choice leaves out of training.

    Example:
        >>> unseen_classes("cifar10", 0)
        (1, 6, 7)
    """
    drawn = random.Random(f"unseen {id_name} {choice}").sample(range(CLASSES[id_name]), UNSEEN[id_name])
    return tuple(sorted(drawn))


def is_development(id_name: str, ood: str) -> bool:
    """Tell whether an OOD set (``unseen-CHOICE`` for unseen classes) may guide decisions."""
    if ood.startswith("unseen-"):
        return int(ood.removeprefix("unseen-")) in DEVELOPMENT_CHOICES
    return ood in DEVELOPMENT[id_name]
