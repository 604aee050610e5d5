"""Small work runs on one thread, whatever PyTorch was told, and PyTorch has its threads back afterwards."""

import os
import sys
from collections.abc import Iterator
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import offaxis
from offaxis.__main__ import start
from offaxis.data import Normalise, Preprocessing
from offaxis.detectors.base import ScoredBatches, score_batches
from offaxis.heads import CosineHead, Outputs
from offaxis.networks.run import SMALL, one_thread, run_batch
from offaxis.training.features import train_head


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3  # as the caller left it
    torch.set_num_threads(before)


class Counting(CosineHead):
    """A head that notes with how many threads it was run."""

    seen: list[int]

    def outputs(self, features: Tensor) -> Outputs:
        self.__dict__.setdefault("seen", []).append(torch.get_num_threads())
        return super().outputs(features)


def network() -> offaxis.Classifier:
    return offaxis.Classifier(nn.Flatten(), Counting(64, 3))


def seen(classifier: offaxis.Classifier) -> set[int]:
    assert isinstance(classifier.head, Counting)
    return set(classifier.head.seen)


@pytest.mark.parametrize(("count", "threads"), [(1, 1), (64, 1), (400_000, 3)])
def test_a_network_runs_on_threads_only_where_it_is_worth_it(count: int, threads: int) -> None:
    classifier = network()
    run_batch(classifier, torch.randn(1, 1, 8, 8).expand(count, -1, -1, -1))
    assert seen(classifier) == {threads}


def test_single_images_and_calibrations_run_on_one() -> None:
    classifier = network()
    held_out = torch.rand(40, 1, 8, 8).mul(255).byte()
    preprocessing = Preprocessing((1, 8, 8), Normalise((0.5,), (0.5,)))
    model = offaxis.Model.calibrated(classifier, held_out, detector="cosine", preprocessing=preprocessing)
    model.predict(held_out[:1])
    assert seen(classifier) == {1}


def test_heads_on_features_and_embeddings_train_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = torch.randn(40, 8), torch.arange(40) % 2
    head = train_head(features, labels, head=Counting, epochs=2)
    assert isinstance(head, Counting)
    assert set(head.seen) == {1}
    counts = []

    def score(*given: Any) -> ScoredBatches:
        counts.append(torch.get_num_threads())
        return score_batches(*given)

    monkeypatch.setattr("offaxis.embeddings.score_batches", score)
    detector = offaxis.EmbeddingDetector("mahalanobis++", random_state=0).fit(features.numpy(), labels.numpy())
    detector.score_samples(np.zeros((3, 8)))
    assert set(counts) == {1}


def test_blocks_inside_each_other_and_beside_each_other_leave_the_number_alone() -> None:
    both, after = Barrier(2, timeout=30), []

    def work() -> None:
        with one_thread(0):
            both.wait()
            with one_thread(0):
                pass
            assert torch.get_num_threads() == 1
            both.wait()
        after.append(torch.get_num_threads())

    threads = [Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert after == [3, 3]
    with pytest.raises(RuntimeError), one_thread(SMALL):
        raise RuntimeError
    with one_thread(SMALL + 1):
        assert torch.get_num_threads() == 3


def test_the_program_does_not_wait_by_spinning_unless_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["offaxis", "--version"])
    for given in (None, "active"):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if given:
            monkeypatch.setenv("OMP_WAIT_POLICY", given)
        with pytest.raises(SystemExit):
            start()
        assert os.environ["OMP_WAIT_POLICY"] == (given or "passive")
