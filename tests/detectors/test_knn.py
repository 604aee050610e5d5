"""Exact neighbours in blocks."""

import importlib.util
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offaxis.detectors import KNN
from offaxis.detectors import knn as module
from offaxis.detectors.knn import kth_neighbours, unit
from offaxis.detectors.statistics import Reservoir
from offaxis.errors import ArgumentError, MissingPackageError, NotFittedError
from tests.detectors.toy import NetworkOf, Toy


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 60), st.integers(1, 9), st.data())
def test_blocks_find_the_neighbours_that_the_whole_matrix_finds(
    seed: int, queries: int, entries: int, block: int, data: st.DataObject
) -> None:
    torch.manual_seed(seed)
    ks = sorted(data.draw(st.lists(st.integers(1, entries), min_size=1, max_size=4)))
    x, bank = unit(torch.randn(queries, 5).double()), unit(torch.randn(entries, 5).double())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "QUERIES", block)
        patch.setattr(module, "ENTRIES", block + 2)
        found = kth_neighbours(x, bank, ks)
    expected = torch.cdist(x, bank).sort(1).values[:, [k - 1 for k in ks]]
    distances = (x.unsqueeze(1) - bank[found]).norm(dim=2)
    torch.testing.assert_close(distances, expected, rtol=0, atol=1e-7)


def test_no_block_is_larger_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERIES", 16)
    monkeypatch.setattr(module, "ENTRIES", 32)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dim() == 2 and "mm" in str(func):
                largest = max(largest, out.numel())
            return out

    x, bank = unit(torch.randn(100, 4)), unit(torch.randn(500, 4))
    with Watch():  # type: ignore[no-untyped-call]
        kth_neighbours(x, bank, [3])
    assert largest == 16 * 32


class FlatIndex:
    """What faiss.IndexFlatIP does, slowly."""

    def __init__(self, width: int) -> None:
        self.width = width

    def add(self, bank: Any) -> None:
        self.bank = torch.from_numpy(bank)

    def search(self, queries: Any, k: int) -> Any:
        values, places = (torch.from_numpy(queries) @ self.bank.T).topk(k, 1)
        return values.numpy(), places.numpy()


def test_faiss_is_used_where_it_is_installed(toy: Toy, network_of: NetworkOf, monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of("linear")
    blocks = KNN(5, "blocks").fit(network, toy.train)
    if importlib.util.find_spec("faiss") is None:
        fake = ModuleType("faiss")
        fake.__spec__ = SimpleNamespace(name="faiss")  # type: ignore[assignment]
        fake.IndexFlatIP = FlatIndex  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "faiss", fake)
    detector = KNN(5).fit(network, toy.train)
    scores = detector.score_images(network, toy.images)
    assert detector._index is not None
    torch.testing.assert_close(scores, blocks.score_images(network, toy.images))
    torch.testing.assert_close(
        detector.grid_scores_images(network, toy.images), blocks.grid_scores_images(network, toy.images)
    )
    detector.fit(network, toy.train[:2])
    assert len(detector.bank) == 200
    detector.score_images(network, toy.images)
    assert blocks._index is None


def test_without_faiss_it_must_not_be_asked_for(
    toy: Toy, network_of: NetworkOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    detector = KNN(5, "faiss").fit(network_of("linear"), toy.train)
    with pytest.raises(MissingPackageError, match="faiss-cpu"):
        detector.score_images(network_of("linear"), toy.images)


def test_the_mean_over_the_nearest_at_one_k_and_over_the_grid(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    detector = KNN(7, average=True).fit(network, toy.train)
    features = unit(network.outputs(toy.images).features.detach())
    cosines = (features @ detector.bank.T).sort(1, descending=True).values
    scores = detector.score_images(network, toy.images)
    torch.testing.assert_close(scores, 1 - cosines[:, :7].mean(1), rtol=0, atol=1e-5)
    grid = detector.grid_scores_images(network, toy.images)
    expected = torch.stack([1 - cosines[:, : setting["k"]].mean(1) for setting in detector.settings], 1)
    torch.testing.assert_close(grid, expected, rtol=0, atol=1e-5)
    with pytest.raises(ArgumentError, match="`average` to be True or False"):
        KNN(average="yes")  # type: ignore[arg-type]


def test_the_bank_is_a_sample_of_many_images(toy: Toy, network_of: NetworkOf, monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of("linear")
    whole = KNN(3).fit(network, toy.train).bank
    monkeypatch.setattr(module, "Reservoir", partial(Reservoir, 90))
    for detector in (KNN(3), KNN(3, average=True)):
        detector.fit(network, toy.train)
        matches = detector.bank @ whole.T
        assert detector.bank.shape == (90, 24)
        assert len(matches.argmax(1).unique()) == 90
        torch.testing.assert_close(matches.amax(1), torch.ones(90))
        kept = torch.zeros(400, dtype=torch.bool).index_fill(0, matches.argmax(1), True)
        assert 5 < int(kept[:100].sum()) < 50  # of the first images as of the last
        images = torch.cat([images for images, _ in toy.train])
        outputs = network.outputs(images)
        distances = torch.cdist(unit(outputs.features).double(), detector.bank.double()).sort(1).values
        # three others: of the images in the bank, those after themselves
        near = torch.where(kept.unsqueeze(1), distances[:, 1:4], distances[:, :3])
        expected = near.square().mean(1) / 2 if detector.average else near[:, 2]
        torch.testing.assert_close(detector.scores_of_fitted(outputs).double(), expected, rtol=1e-3, atol=1e-5)


def test_errors(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    with pytest.raises(NotFittedError, match="at least k = 500"):
        KNN(500).fit(network, toy.train).score_images(network, toy.images)
    with pytest.raises(NotFittedError, match="there were none"):
        KNN().fit(network, [])
    for wrong in (0, 1.5, True):
        with pytest.raises(ArgumentError, match="`k`"):
            KNN(wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="search"):
        KNN(search="tree")
    assert KNN().fit(network, toy.train).grid["k"] == (1, 10, 20, 50, 100, 200)
