"""Which image sets may guide decisions, and which are only reported.

This split was fixed before any score of any of these sets had been looked at. Whatever was tried to make a detector
better was judged on the development sets alone; the recipe of the trainings was chosen on the accuracy on held-out
training images, without any OOD image.
"""

DEVELOPMENT = ("dtd", "notmnist", "uniform")
"""Textures, glyphs, noise: one of each kind."""

REPORTED = {
    "cifar10": ("cifar100", "tin-resize", "tin-crop-free", "svhn", "scenes", "mnist", "fashion-mnist", "gaussian"),
    "cifar100": ("cifar10", "tin-resize", "tin-crop-free", "svhn", "scenes", "mnist", "fashion-mnist", "gaussian"),
    "fashion-mnist": ("cifar10", "cifar100", "tin-resize", "tin-crop-free", "svhn", "scenes", "mnist", "gaussian"),
}
"""By ID set. The digits are SVHN re-cropped from its full-number images; `scenes` are Intel's, not LSUN."""

CONTROLS = ("tin-crop",)
"""Not in any mean: the same crops as tin-crop-free inside a black frame, which alone gives them away."""
