"""The rule that brings an image to a size: crop or stretch, the same for files, arrays, batches and models."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from offaxis.data import Normalise, Preprocessing, load_images, match
from offaxis.data.images import TensorSet
from offaxis.data.load import own_classes
from offaxis.data.transforms import centre, fit, fit_batch, resize_rule
from offaxis.errors import ArgumentError, DataError


def _photo(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of photographs of different sizes, ten each."""
    for number in range(20):
        folder = tmp_path / "photos" / ("кот", "пёс")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        _photo(60 + 3 * number, 90 - number, number).save(folder / f"{number:02d}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize(("side", "rule"), [(8, "stretch"), (64, "stretch"), (65, "crop"), (224, "crop")])
def test_photographs_are_cropped_and_small_images_stretched(side: int, rule: str) -> None:
    assert resize_rule((3, side, side)) == rule
    assert resize_rule((3, side, side), "stretch") == "stretch"
    with pytest.raises(ArgumentError, match="crop, stretch but got 'squash'"):
        resize_rule((3, side, side), "squash")


def test_crop_is_short_side_to_size_then_centre() -> None:
    image = _photo(60, 100)
    expected = np.asarray(image.crop((20, 0, 80, 60)).resize((30, 30), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(fit(image, (3, 30, 30), "crop").transpose(1, 2, 0), expected)
    whole = image.resize((50, 30), Image.Resampling.BILINEAR).crop((10, 0, 40, 30))  # resized first, then cropped
    inside = np.s_[:, 2:-2]  # at the cut edges the filter sees other neighbours
    assert np.abs(expected[inside].astype(int) - np.asarray(whole)[inside].astype(int)).max() <= 1
    stretched = np.asarray(image.resize((30, 30), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(fit(image, (3, 30, 30), "stretch").transpose(1, 2, 0), stretched)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
def test_the_centre_lies_inside_and_touches_two_sides(height: int, width: int, tall: int, wide: int) -> None:
    top, left, kept_height, kept_width = centre((height, width), (tall, wide))
    assert 0 <= top <= height - kept_height
    assert 0 <= left <= width - kept_width
    assert kept_height == height or kept_width == width
    assert min(kept_height, kept_width) >= 1


@pytest.mark.parametrize("resize", ["crop", "stretch"])
@pytest.mark.parametrize("shape", [(3, 24, 24), (1, 24, 16), (3, 200, 200)])
def test_files_arrays_batches_and_models_give_the_same_pixels(
    resize: str, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    image = _photo(61, 100)
    image.save(tmp_path / "x.png")
    expected = fit(image, shape, resize)
    tensor = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())
    np.testing.assert_array_equal(fit_batch(tensor[None], shape, resize)[0], expected)
    rule = Preprocessing(shape, Normalise((0.5,) * shape[0], (0.5,) * shape[0]), resize_rule(shape, resize))
    assert Preprocessing.from_json(rule.to_json()) == rule
    for image_like in (tmp_path / "x.png", (tmp_path / "x.png").read_bytes(), image, np.asarray(image), tensor):
        np.testing.assert_array_equal(rule.pixels(image_like), expected)
    matched = match(TensorSet("x", tensor[None]), shape, resize)
    np.testing.assert_array_equal(matched.batch(torch.tensor([0]))[0], expected)


def test_bundles_without_a_rule_were_stretched() -> None:
    saved = Preprocessing((3, 224, 224), Normalise((0.5,) * 3, (0.5,) * 3)).to_json()
    assert saved.pop("resize") == "crop"
    assert Preprocessing.from_json(saved).resize == "stretch"


def test_a_very_long_image_takes_no_more_memory_than_it_has() -> None:
    assert fit(Image.new("RGB", (200_000, 2)), (3, 224, 224), "crop").shape == (3, 224, 224)


def test_folders_of_mixed_sizes_are_read_at_a_size_or_refused_with_the_option(photos: Path) -> None:
    with pytest.raises(DataError, match="Expected images of one size, .*--size 224 in the shell"):
        load_images(photos)
    images = load_images(photos, size=72)
    assert images.shape == (3, 72, 72)
    assert images.path == str(photos)
    assert images.options == {"size": [72, 72], "resize": "crop"}
    first = Image.open(sorted(photos.rglob("*.png"))[0])
    np.testing.assert_array_equal(images.batch(torch.tensor([0]))[0], fit(first, (3, 72, 72), "crop"))
    assert load_images(photos, size=72, resize="stretch").fingerprint != images.fingerprint
    assert images.classes == own_classes(photos, holdout=0.2) == ("кот", "пёс")
    assert own_classes("digits") is None


def test_what_gives_the_images_again_is_recorded(photos: Path) -> None:
    train = load_images(photos, "train", size=40, holdout=0.2, skip_bad=True)
    about = train.describe()
    assert about["options"] == {"size": [40, 40], "resize": "stretch", "skip_bad": True, "holdout": 0.2, "seed": 0}
    again = load_images(about["path"], "train", **about["options"])
    assert again.fingerprint == train.fingerprint
    assert load_images(photos, "test", **about["options"]).fingerprint != train.fingerprint
    assert load_images("digits", "test", size=8).describe()["options"] == {"size": 8}
    assert set(load_images("digits", "test").describe()) == {"name", "images", "fingerprint"}


def test_an_empty_class_folder_is_named_or_listed(photos: Path) -> None:
    (photos / "zebra").mkdir()
    with pytest.raises(DataError, match="every class folder but .*zebra has none"):
        load_images(photos, size=40)
    listed = load_images(photos, size=40, skip_bad=True)
    assert [bad.reason for bad in listed.skipped] == ["a class folder without an image"]
    assert listed.classes == ("кот", "пёс")
