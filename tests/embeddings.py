"""Rows of embeddings, for tests of EmbeddingDetector."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
WIDTH, CLASSES = 16, 4


def draw(count: int, seed: int, ood: bool = False) -> tuple[Array, Array]:
    """Rows around the axes of some classes, or (OOD) around axes of others, with labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, count)
    rows = generator.normal(0, 0.5, (count, WIDTH))
    rows[np.arange(count), labels + (CLASSES if ood else 0)] += 4
    return rows, labels
