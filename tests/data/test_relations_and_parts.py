"""What two sets share, and what tuning may see."""

import pytest
import torch

from offaxis.data import (
    CATALOGUE,
    TensorSet,
    as_image_set,
    check_pair,
    hold_out,
    load_images,
    relation,
    split_validation,
)
from offaxis.errors import ArgumentError, DataError


def test_stl10_is_refused_beside_cifar10_and_can_be_forced() -> None:
    with pytest.raises(DataError, match="nine of STL-10's ten classes"):
        check_pair("cifar10", "stl10")
    assert check_pair("cifar10", "stl10", force=True).group == "near"
    assert not relation("cifar100", "stl10").refused
    with pytest.raises(DataError, match="digits"):
        load_images("small-digits", like=load_images("digits"))


@pytest.mark.parametrize(
    ("known", "other", "group", "noted"),
    [
        ("cifar10", "cifar100", "near", True),
        ("cifar100", "cifar10", "near", True),
        ("cifar10", "tin-crop-free", "near", True),
        ("cifar100", "tin-resize", "near", True),
        ("cifar10", "svhn", "far", False),
        ("cifar10", "gaussian-025", "noise", False),
        ("digits", "letters", "near", False),
        ("digits", "photographs", "far", False),
        ("my-folder", "cifar10", "far", False),
        ("cifar10", "my-folder", "far", False),
    ],
)
def test_groups_and_notes(known: str, other: str, group: str, noted: bool) -> None:
    found = relation(known, other)
    assert found.group == group
    assert bool(found.note) == noted
    assert not found.refused


def test_every_pair_has_a_group_and_what_is_shared_is_shared_both_ways() -> None:
    for known in CATALOGUE:
        for other in CATALOGUE:
            there, back = relation(known, other), relation(other, known)
            assert there.group in ("near", "far", "noise")
            if "noise" not in (CATALOGUE[known].kind, CATALOGUE[other].kind):
                assert (there.refused, there.note) == (back.refused, back.note)


def _numbered(count: int, by_class: bool) -> TensorSet:
    labels = torch.arange(count) * 4 // count if by_class else torch.arange(count) % 4
    return TensorSet("x", torch.zeros(count, 1, 1, 1, dtype=torch.uint8), labels)


@pytest.mark.parametrize(("count", "taken"), [(10_000, 1000), (8925, 1000), (1200, 240), (4, 0)])
@pytest.mark.parametrize("by_class", [False, True])
def test_validation_takes_the_first_thousand_but_never_more_than_a_fifth(
    count: int, taken: int, by_class: bool
) -> None:
    images = _numbered(count, by_class)
    parts = split_validation(images)
    assert len(parts.validation) == taken
    assert sorted([*parts.validation.tolist(), *parts.test.tolist()]) == list(range(count))
    assert str(taken) in parts.rule
    assert split_validation(images).validation.tolist() == parts.validation.tolist()
    if not by_class:
        assert parts.validation.tolist() == list(range(taken))
    elif taken:
        assert images.labels is not None
        assert images.labels[parts.validation].unique().numel() == 4  # of every class, not only the first
        assert "seed 0" in parts.rule
        assert split_validation(images, seed=1).validation.tolist() != parts.validation.tolist()


@pytest.mark.parametrize(
    ("labels", "shuffled"),
    [
        (torch.arange(100) // 10, True),
        (9 - torch.arange(100) // 10, True),
        (torch.zeros(100, dtype=torch.long), False),
        (torch.arange(100) // 10 % 5, False),
        (torch.tensor([1, *[0] * 98, 1]), False),
        (None, False),
    ],
)
def test_sets_that_are_sorted_by_their_labels_are_shuffled(labels: torch.Tensor | None, shuffled: bool) -> None:
    pixels = torch.zeros(100, 1, 1, 1, dtype=torch.uint8)
    of_tensors = as_image_set(pixels if labels is None else (pixels, labels))
    items = [pixel if labels is None else (pixel, int(labels[i])) for i, pixel in enumerate(pixels)]
    for images in (of_tensors, as_image_set(items)):
        parts = split_validation(images)
        assert ("shuffle" in parts.rule) == shuffled
        assert (parts.validation.tolist() != list(range(20))) == shuffled
    images = of_tensors
    images.sorted_by_class = True  # a folder may be sorted by something else
    assert "shuffle" in split_validation(images).rule


def test_hold_out_takes_the_same_share_of_every_class() -> None:
    rest, held = hold_out(_numbered(40, True), 0.2)
    assert held.labels is not None
    assert held.labels.bincount().tolist() == [2, 2, 2, 2]
    assert len(rest) == 32
    with pytest.raises(DataError, match="one side empty"):
        hold_out(_numbered(4, True), 0.2)
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        hold_out(_numbered(4, True), 1.0)
    labels = torch.tensor([0] * 10 + [1])
    with pytest.raises(DataError, match="20% of the 1 images of the label 1 leave one side empty"):
        hold_out(TensorSet("x", torch.zeros(11, 1, 2, 2, dtype=torch.uint8), labels), 0.2)
