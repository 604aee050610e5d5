r"""Deep nearest neighbours (Sun, Ming, Zhu, Li 2022, https://arxiv.org/abs/2204.06507).

.. math:: S(x) = \lVert \hat f - \hat f_{(k)} \rVert, \qquad \hat f = f / \lVert f \rVert

the distance from an image's unit features to the k-th nearest of the training images', or with ``average`` the mean cosine
distance to the k nearest (Kuan, Mueller 2022, https://arxiv.org/abs/2207.03061), as cleanlab has it. The search is exact, in
blocks, so that memory does not grow with the product of both sets; with faiss installed, its flat index finds the neighbours.
Of more than 50,000 training images a uniform sample is kept.
"""

import importlib.util
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors.base import Detector
from offaxis.detectors.statistics import Reservoir
from offaxis.errors import ArgumentError, MissingPackageError, NotFittedError, at_least_one, true_or_false
from offaxis.heads import Outputs
from offaxis.heads.base import at_least_float32
from offaxis.networks.run import Network

QUERIES, ENTRIES = 1024, 8192  # a block of products has this many rows and columns: 32 MB in float32
SEARCHES = ("auto", "blocks", "faiss")


def nearest(queries: Tensor, bank: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Find the largest inner products of queries (N, d) with the rows of a bank (M, d), and which rows: both (N, most).

    They are sorted, the largest first. Blocks of at most N x ENTRIES products are in memory.
    """
    if torch.compiler.is_compiling():  # one plain graph, for export: blocks would fix the size of the batch
        values, places = (queries @ bank.T).topk(most, 1)
        return values, places
    best = queries.new_empty(len(queries), 0)
    where = torch.empty(len(queries), 0, dtype=torch.long, device=queries.device)
    for start in range(0, len(bank), ENTRIES):
        products = queries @ bank[start : start + ENTRIES].T
        values, places = products.topk(min(most, products.shape[1]), 1)
        best, where = torch.cat([best, values], 1), torch.cat([where, places + start], 1)
        best, order = best.topk(min(most, best.shape[1]), 1)
        where = where.gather(1, order)
    return best, where


def kth_neighbours(queries: Tensor, bank: Tensor, ks: Sequence[int]) -> Tensor:
    """Find the index (N, K) of the k-th nearest row of a bank (M, d) for each query (N, d) and each k; unit lengths."""
    columns = torch.tensor(ks, device=queries.device) - 1
    parts = [queries] if torch.compiler.is_compiling() else queries.split(QUERIES)
    return torch.cat([nearest(rows, bank, max(ks))[1][:, columns] for rows in parts])


def unit(features: Tensor) -> Tensor:
    """Divide features (N, d) by their lengths, in at least float32."""
    return F.normalize(at_least_float32(features), dim=1)


def knn_score(features: Tensor, neighbours: Tensor) -> Tensor:
    """Compute the distances of unit features (N, d) to their k-th neighbours (N, d): (N,) in [0, 2], larger = more OOD."""
    distance: Tensor = torch.linalg.vector_norm(features - neighbours, dim=1)
    return distance


class Neighbours(Detector):
    """Compares images with the k most similar training images; a subclass says what is kept of each of them in ``rows``.

    Args:
        k: how many neighbours, or which.
    """

    needs_fit = True
    tunable = ("k",)
    wide = "bank"

    bank: Tensor

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = at_least_one("k", k)
        self.expect("bank")

    @abstractmethod
    def rows(self, outputs: Outputs) -> Tensor:
        """Compute what is kept (N, d) of N training images."""

    def begin(self, network: Network) -> None:  # noqa: ARG002 - the contract's
        """Start the bank."""
        self._sample = Reservoir()

    def update(self, outputs: Outputs, labels: Tensor) -> None:  # noqa: ARG002 - the contract's
        """Add the rows of a batch; labels are not needed."""
        self._sample.add(self.rows(outputs))

    def finish(self) -> None:
        """Keep the bank (M, d), M at most 50,000."""
        self.bank = self._sample.rows()
        del self._sample

    def check_fitted(self) -> None:
        """Raise NotFittedError unless there are at least k training images."""
        super().check_fitted()
        if len(self.bank) < self.k:
            raise NotFittedError(
                f"Expected at least k = {self.k} training images but {self.name} has {len(self.bank)}: fit it with more (it "
                "keeps 50,000 at most), or choose a smaller k."
            )


class KNN(Neighbours):
    """The distance to the k-th nearest training image, or to the k nearest on average.

    Args:
        k: which neighbour; 50 is the paper's for CIFAR-10 (200 for CIFAR-100, 1000 for ImageNet).
        search: ``"blocks"`` by matrix products, ``"faiss"``, or ``"auto"``: faiss where it is installed and the bank is
            in float32 on the CPU.
        average: score by the mean cosine distance to the k nearest images instead of the distance to the k-th.
    """

    name = "knn"
    paper = "https://arxiv.org/abs/2204.06507"
    uses = ("features",)
    options = ("search", "average")

    def __init__(self, k: int = 50, search: str = "auto", average: bool = False) -> None:
        super().__init__(k)
        if search not in SEARCHES:
            raise ArgumentError(f"Expected argument `search` to be one of {', '.join(SEARCHES)} but got {search!r}.")
        self.search, self.average = search, true_or_false("average", average)
        self._index: Any = None

    @property
    def grid(self) -> dict[str, tuple[int, ...]]:
        """Return the paper's values, up to the number of training images."""
        values = (1, 10, 20, 50, 100, 200, 500, 1000, 3000, 5000)
        bank = self._buffers["bank"]
        return {"k": tuple(k for k in values if bank is None or k <= len(bank))}

    def rows(self, outputs: Outputs) -> Tensor:
        """Return the unit features (N, d)."""
        return unit(outputs.features)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        return self._scores(outputs, (self.k,))[:, 0]

    @torch.no_grad()
    def scores_of_fitted(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images that it was fitted on, none of which is its own neighbour."""
        self.check_fitted()
        near = self._distances(outputs, range(1, min(self.k + 1, len(self.bank)) + 1))
        if near.shape[1] > 1:  # the image itself is the nearest, unless the bank is a sample that it is not part of
            near = torch.where(near[:, :1] == 0, near[:, 1:], near[:, :-1])
        return near.square().mean(1) / 2 if self.average else near[:, -1]

    @torch.no_grad()
    def grid_scores(self, outputs: Outputs) -> Tensor:
        """Compute scores (N, S) at every k from one search."""
        self.check_fitted()
        self.check_outputs(outputs)
        return self._scores(outputs, [setting["k"] for setting in self.settings])

    def _distances(self, outputs: Outputs, ks: Sequence[int]) -> Tensor:
        x = unit(outputs.features).to(self.bank.dtype)
        where = self._by_faiss(x, ks) if self._uses_faiss() else kth_neighbours(x, self.bank, ks)
        return torch.stack([knn_score(x, self.bank[column]) for column in where.unbind(1)], 1)

    def _scores(self, outputs: Outputs, ks: Sequence[int]) -> Tensor:
        """Compute scores (N, K) at each k."""
        if not self.average:
            return self._distances(outputs, ks)
        cosine_distances = self._distances(outputs, range(1, max(ks) + 1)).square() / 2
        means: Tensor = torch.stack([cosine_distances[:, :k].mean(1) for k in ks], 1)
        return means

    def _uses_faiss(self) -> bool:
        installed = importlib.util.find_spec("faiss") is not None
        if self.search == "faiss" and not installed:
            raise MissingPackageError(
                "Expected faiss for KNN(search='faiss') but it is not installed: pip install faiss-cpu, or use "
                "search='blocks', which is as exact."
            )
        plain = self.bank.device.type == "cpu" and self.bank.dtype == torch.float32
        return installed and plain and self.search != "blocks" and not torch.compiler.is_compiling()

    def _by_faiss(self, x: Tensor, ks: Sequence[int]) -> Tensor:
        import faiss

        if self._index is None or self._index[0] is not self.bank:
            index = faiss.IndexFlatIP(self.bank.shape[1])
            index.add(self.bank.numpy())
            self._index = (self.bank, index)
        nearest = self._index[1].search(x.contiguous().numpy(), max(ks))[1]
        return torch.from_numpy(nearest)[:, torch.tensor(ks) - 1]
