"""Figures made of images and of features."""

from typing import Any

import numpy as np
import pytest

from offaxis.errors import ArgumentError
from offaxis.reports import figures
from offaxis.reports.figures.pictures import picture, subsample

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 1), (8, 6, 3), (1, 8, 6), (3, 8, 6)])
def test_every_usual_shape_of_an_image_is_taken(shape: tuple[int, ...]) -> None:
    values = RNG.integers(0, 256, shape, np.uint8)
    as_bytes, as_floats = picture(values), picture(values / 255)
    assert as_bytes.shape == (8, 6, 3)
    assert as_bytes == pytest.approx(as_floats)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((8, 6, 2)),
        np.zeros(5),
        np.zeros((0, 4)),
        np.full((4, 4), 1.2),
        np.full((4, 4), np.nan),
        np.full((4, 4), -1),
    ],
)
def test_what_is_no_image_is_refused(image: Any) -> None:
    with pytest.raises(ArgumentError, match="Expected an image"):
        picture(image)


def test_a_sheet_has_its_images_under_their_titles() -> None:
    images = [(RNG.random((8, 8)), f"score 0.{number} of a set with a long name indeed") for number in range(10)]
    figure = figures.image_sheet({"highest scores": images, "lowest scores": images[:3]}, columns=4)
    assert len(figure.axes) == 13
    assert [text.get_text() for text in figure.texts] == ["highest scores", "lowest scores"]
    tops = [round(axes.get_position().y0, 6) for axes in figure.axes]
    assert len(set(tops)) == 4
    assert tops == sorted(tops, reverse=True)
    assert all(axes.get_xlabel().count("\n") <= 2 for axes in figure.axes)


def test_frames_are_shown_to_the_scale_of_their_images() -> None:
    free = RNG.integers(0, 256, (3, 32, 32, 3), np.uint8)
    framed = np.pad(free, ((0, 0), (2, 2), (2, 2), (0, 0)))
    figure = figures.frames({"TIN (c)": (list(framed), list(free)), "LSUN (c)": (list(framed[:1]), list(free[:1]))})
    assert len(figure.axes) == 8
    with_frame, without = figure.axes[0].get_position(), figure.axes[3].get_position()
    assert with_frame.width / without.width == pytest.approx(36 / 32)
    with pytest.raises(ArgumentError, match="3 with and 2 without"):
        figures.frames({"TIN (c)": (list(framed), list(free[:2]))})


def spaces(count: int, classes: int) -> list[figures.Space]:
    labels = np.arange(count) % classes
    features = RNG.normal(size=(count, 6)) + 4 * labels[:, None]
    return [
        figures.Space(title, features, labels, features[::-1], labels[::-1], features - 30, features + 50)
        for title in ("standard", "cosine")
    ]


def test_feature_spaces_have_two_rows_of_five_maps() -> None:
    figure = figures.feature_spaces(spaces(40, 10), "TIN (r)", "LSUN (c)*", limit=15)
    assert len(figure.axes) == 10
    assert [axes.get_title("left") for axes in figure.axes[:5]] == [
        "ID, training",
        "ID, test",
        "ID and TIN (r)",
        "ID and LSUN (c)*",
        "ID and both",
    ]
    assert [axes.get_ylabel() for axes in figure.axes[::5]] == ["standard", "cosine"]
    for row in (figure.axes[:5], figure.axes[5:]):
        points = [sum(len(np.asarray(group.get_offsets())) for group in axes.collections) for axes in row]
        assert points == [15, 15, 30, 30, 45]
        assert len({axes.get_xlim() for axes in row}) == 1
        both = np.concatenate([np.asarray(group.get_offsets()) for group in row[4].collections])
        first = np.concatenate([np.asarray(group.get_offsets()) for group in row[2].collections])
        assert both[:30] == pytest.approx(first)


def test_the_embedding_is_the_same_each_time_and_keeps_what_is_apart_apart() -> None:
    groups = [RNG.normal(size=(20, 4)), RNG.normal(size=(15, 4)) + 100]
    one, other = figures.tsne(groups), figures.tsne(groups)
    assert [len(points) for points in one] == [20, 15]
    for first, second in zip(one, other, strict=True):
        assert np.array_equal(first, second)
    assert np.linalg.norm(one[0].mean(0) - one[1].mean(0)) > 0.5 * np.concatenate(one).std()


@pytest.mark.parametrize("factor", [1e-30, 1.0, 1e30])
def test_features_of_any_size_are_embedded(factor: float) -> None:
    [points] = figures.tsne([factor * np.random.default_rng(1).normal(size=(12, 3))])
    assert np.isfinite(points).all()


def test_odd_features() -> None:
    assert np.isfinite(figures.tsne([np.ones((5, 3)), np.ones((4, 3))])[0]).all()
    assert figures.tsne([np.arange(6.0)[:, None]])[0].shape == (6, 2)
    for wrong in ([np.ones((2, 3))], [np.ones((5, 3)), np.ones((5, 2))], [np.full((5, 3), np.nan)], [np.ones(5)]):
        with pytest.raises(ArgumentError, match="Expected"):
            figures.tsne(wrong)


def test_the_subsample_is_bounded_and_repeatable() -> None:
    chosen = subsample(1000, 50, seed=3)
    assert len(np.unique(chosen)) == 50
    assert np.array_equal(chosen, subsample(1000, 50, seed=3))
    assert not np.array_equal(chosen, subsample(1000, 50, seed=4))
    assert np.array_equal(subsample(7, 50, 0), np.arange(7))
