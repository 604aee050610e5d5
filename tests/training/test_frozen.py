"""Frozen backbones: a head trained on features in memory."""

from functools import partial

import pytest
import torch
from torch import Tensor

from offaxis.errors import ArgumentError, DataError
from offaxis.heads import HEADS, CosineHead, HeadLike
from offaxis.training.frozen import share_of_rate, train_head


@pytest.fixture(scope="module")
def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    return torch.randn(120, 16, generator=generator).abs() + 3 * torch.eye(16)[labels], labels


@pytest.mark.parametrize("head", [partial(CosineHead, start="sizes"), "linear"])
def test_a_head_learns(rows: tuple[Tensor, Tensor], head: HeadLike) -> None:
    features, labels = rows
    trained = train_head(features, labels, head=head, epochs=60)
    assert not trained.training
    assert (trained(features).argmax(1) == labels).float().mean() > 0.75  # chance is 0.25


@pytest.mark.parametrize("head", HEADS)
def test_every_head_can_be_trained(rows: tuple[Tensor, Tensor], head: str) -> None:
    features, labels = rows
    assert train_head(features, labels, head=head, epochs=2)(features).isfinite().all()


def test_same_seed_same_weights(rows: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, again, other = (train_head(*rows, seed=seed, epochs=3).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["weight"], other["weight"])


def test_more_classes_than_labels(rows: tuple[Tensor, Tensor]) -> None:
    assert train_head(*rows, num_classes=6, epochs=1).num_classes == 6


def test_a_last_batch_of_one_is_left_out(rows: tuple[Tensor, Tensor]) -> None:
    features, labels = rows
    train_head(features[:5], labels[:5], batch_size=4, epochs=2)


def test_wrong_input_is_named(rows: tuple[Tensor, Tensor]) -> None:
    features, labels = rows
    with pytest.raises(DataError, match=r"\(N, d\)"):
        train_head(features[:1], labels[:1])
    with pytest.raises(DataError, match="120 labels|N labels"):
        train_head(features, labels[:5])
    with pytest.raises(DataError, match="finite"):
        train_head(features / 0, labels)
    with pytest.raises(DataError, match="from 0 to 2"):
        train_head(features, labels, num_classes=3)
    with pytest.raises(ArgumentError, match="learning rate"):
        train_head(features, labels, learning_rate=0)
    with pytest.raises(ArgumentError, match="head"):
        train_head(features, labels, head="nothing")


def test_the_rate_rises_and_falls() -> None:
    shares = [share_of_rate(step, 100) for step in range(100)]
    assert shares.index(max(shares)) in (9, 10)
    assert shares[0] < 0.1
    assert shares[-1] < 0.01
    assert all(0 < share <= 1 for share in shares)
