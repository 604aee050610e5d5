"""Features -> points on a plane."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offaxis.errors import ArgumentError

Points = NDArray[np.float64]


def subsample(count: int, limit: int, seed: int) -> NDArray[np.int64]:
    """At most ``limit`` of ``count`` places, in rising order; the same for the same seed."""
    if count <= limit:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, limit, replace=False))


def tsne(groups: Sequence[ArrayLike], seed: int = 0) -> list[Points]:
    """Put all groups (n_i, d) on one plane by one t-SNE; returns (n_i, 2) for each. The same seed gives the same points.

    Groups that are embedded together can be compared; those of two calls cannot.
    """
    from sklearn.manifold import TSNE  # takes a second to import, which other figures need not wait for

    arrays = [np.asarray(group, dtype=np.float64) for group in groups]
    for array in arrays:
        if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] != arrays[0].shape[1]:
            raise ArgumentError(
                f"Expected groups of features of shape (n, d) with one d but got {', '.join(str(a.shape) for a in arrays)}."
            )
        if not np.isfinite(array).all():
            raise ArgumentError("Expected finite features but some are NaN or infinite.")
    together = np.concatenate(arrays)
    if len(together) < 4:
        raise ArgumentError(f"Expected at least 4 images to put on a plane but got {len(together)}.")
    spread = together.std()
    if spread == 0:
        points = np.zeros((len(together), 2))
    else:
        # a common scale keeps squared distances of tiny or huge features within floating-point range
        scaled = ((together - together.mean(axis=0)) / spread).astype(np.float32)
        init = "pca" if together.shape[1] > 1 else "random"
        perplexity = min(30.0, (len(together) - 1) / 3)
        from sklearn.manifold import TSNE  # slow to import

        points = TSNE(2, perplexity=perplexity, init=init, random_state=seed, n_jobs=1).fit_transform(scaled)
    ends = np.cumsum([len(array) for array in arrays])[:-1]
    return [part.astype(np.float64) for part in np.split(points, ends)]
