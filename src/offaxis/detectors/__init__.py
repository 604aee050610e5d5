"""Outputs of a network, or images where gradients are needed -> detection scores: one file per paper.

Larger scores = more out-of-distribution. ``DETECTORS`` holds every detector by name; ``register_detector`` adds one.
"""

from offaxis.names import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
