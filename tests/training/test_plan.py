"""Plans: every image once an epoch, shares that fit together, and nothing that depends on what came before."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offaxis.data import Normalise, TensorSet
from offaxis.errors import DataError
from offaxis.training import Recipe
from offaxis.training.batches import ImageSetBatches


def plan(images: int, batch: int, processes: int = 1, rank: int = 0, seed: int = 0) -> ImageSetBatches:
    labels = torch.zeros(images, dtype=torch.long)
    data = TensorSet("black", torch.zeros(images, 1, 1, 1, dtype=torch.uint8), labels, ["one"])
    normalise = Normalise((0.5,), (0.5,))
    return ImageSetBatches(data, labels, normalise, Recipe(2, batch), seed=seed, processes=processes, rank=rank)


@given(st.integers(1, 3), st.integers(2, 6), st.integers(0, 40))
@settings(max_examples=80, deadline=None)
def test_an_epoch_visits_every_image_once_but_for_a_few_leftovers(processes: int, share: int, more: int) -> None:
    batch = processes * share
    images = batch + more
    seen: list[int] = []
    plans = [plan(images, batch, processes, rank) for rank in range(processes)]
    for step in range(plans[0].steps_per_epoch):
        starts = []
        for each in plans:
            indices, start, total = each.batch(each.order(0), step)
            assert len(indices) >= 2
            assert len(indices) * processes == total
            starts.append(start)
            seen += indices.tolist()
        assert starts == sorted(starts)
    assert len(seen) == len(set(seen))
    assert images - len(seen) < max(2 * processes, processes + 1)


def test_shares_of_several_processes_make_up_the_batch_of_one() -> None:
    alone = plan(52, 8)
    order = alone.order(1)
    for step in range(alone.steps_per_epoch):
        parts = [plan(52, 8, 2, rank).batch(order, step)[0] for rank in (0, 1)]
        assert torch.equal(torch.cat(parts), alone.batch(order, step)[0])


def test_epochs_and_seeds_differ_and_the_same_is_the_same() -> None:
    assert not torch.equal(plan(50, 8).order(0), plan(50, 8).order(1))
    assert not torch.equal(plan(50, 8).order(0), plan(50, 8, seed=1).order(0))
    assert torch.equal(plan(50, 8).order(1), plan(50, 8).order(1))
    seeds = {plan(50, 8).derived_seed(purpose, n) for purpose in ("order", "augment", "dropout") for n in range(100)}
    assert len(seeds) == 300


@pytest.mark.parametrize(("images", "batch", "processes"), [(7, 8, 1), (50, 9, 2), (50, 2, 2)])
def test_batches_that_cannot_be_shared_out_are_refused(images: int, batch: int, processes: int) -> None:
    with pytest.raises(DataError, match="batch"):
        plan(images, batch, processes)


def test_a_last_batch_of_one_image_is_left_out() -> None:
    assert plan(17, 8).steps_per_epoch == 2
    assert plan(18, 8).steps_per_epoch == 3
