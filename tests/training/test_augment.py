"""Crops and mirror images against a slow version, and the same for every process."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offaxis.training.batches import crop_and_flip, jitter_colours, zoom_and_flip


def slow(images: torch.Tensor, padding: int, flip: bool, generator: torch.Generator) -> torch.Tensor:
    offsets = torch.randint(0, 2 * padding + 1, (len(images), 2), generator=generator)
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    out = []
    for image, (y, x), mirror in zip(images, offsets.tolist(), mirrored.tolist(), strict=True):
        c, h, w = image.shape
        canvas = torch.zeros(c, h + 2 * padding, w + 2 * padding, dtype=image.dtype)
        canvas[:, padding : padding + h, padding : padding + w] = image
        crop = canvas[:, y : y + h, x : x + w]
        out.append(crop.flip(2) if mirror and flip else crop)
    return torch.stack(out)


@given(st.integers(0, 5), st.booleans(), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_equals_the_slow_version(padding: int, flip: bool, channels: int, height: int, width: int, seed: int) -> None:
    images = torch.randint(0, 256, (6, channels, height, width), dtype=torch.uint8)
    fast = crop_and_flip(images, padding, flip, torch.Generator().manual_seed(seed))
    padding = padding if padding < min(height, width) else 0  # else nothing could be left of the image
    expected = slow(images, padding, flip, torch.Generator().manual_seed(seed))
    if padding or flip:
        assert torch.equal(fast, expected)
    else:
        assert torch.equal(fast, images)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_type_of_the_pixels_is_kept(dtype: torch.dtype) -> None:
    images = torch.ones(4, 3, 8, 8, dtype=dtype)
    out = crop_and_flip(images, 2, True, torch.Generator().manual_seed(0))
    assert out.dtype == dtype
    assert set(out.unique().tolist()) <= {0, 1}


def test_each_image_has_its_own_shift() -> None:
    images = torch.arange(100, dtype=torch.uint8).view(1, 1, 10, 10).expand(64, -1, -1, -1)
    out = crop_and_flip(images, 4, True, torch.Generator().manual_seed(0))
    assert len({tuple(image.flatten().tolist()) for image in out}) > 40


def test_processes_that_share_a_batch_see_what_one_would_see() -> None:
    images = torch.randint(0, 256, (12, 3, 8, 8), dtype=torch.uint8)
    whole = crop_and_flip(images, 4, True, torch.Generator().manual_seed(7))
    parts = [
        crop_and_flip(images[i : i + 4], 4, True, torch.Generator().manual_seed(7), start=i, total=12)
        for i in (0, 4, 8)
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_a_random_part_is_enlarged_to_the_whole() -> None:
    """An image whose pixels are their own places shows which part was taken."""
    side = 32
    places = torch.linspace(0, 1, side)
    image = torch.stack([places.expand(side, side), places[:, None].expand(side, side)])  # x, y
    out = zoom_and_flip(image.expand(200, -1, -1, -1), 0.25, True, torch.Generator().manual_seed(0))
    width, height = (out[:, 0, 5, -1] - out[:, 0, 5, 0]), (out[:, 1, -1, 5] - out[:, 1, 0, 5])
    mirrored = width < 0
    assert 60 < int(mirrored.sum()) < 140
    assert (height > 0).all()
    area = width.abs() * height
    assert 0.18 < area.min() < 0.35
    assert 0.8 < area.max() <= 1.001
    ratio = width.abs() / height
    assert 0.7 < ratio.min() < 0.85
    assert 1.2 < ratio.max() < 1.4
    assert out.amin() >= 0
    assert out.amax() <= 1
    centre = out[:, :, 15:17, 15:17].mean((2, 3))
    assert centre.std(0).min() > 0.05  # from many places
    rows = out[:, 0] - out[:, 0, :1]
    assert rows.abs().max() < 1e-5  # not turned


@pytest.mark.parametrize("change", [zoom_and_flip, jitter_colours])
def test_photographs_are_augmented_alike_however_many_processes_share_a_batch(change: object) -> None:
    images = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8)

    def augment(part: torch.Tensor, **place: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(7)
        if change is zoom_and_flip:
            return zoom_and_flip(part, 0.3, True, generator, **place)
        return jitter_colours(part, 0.4, generator, **place)

    whole = augment(images)
    parts = [augment(images[i : i + 4], start=i, total=12) for i in (0, 4, 8)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(augment(images.float() / 255), whole)


def test_no_change_leaves_the_pixels() -> None:
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    torch.testing.assert_close(jitter_colours(images, 0.0, torch.Generator()), images / 255)


def test_colours_change_within_bounds() -> None:
    images = torch.full((64, 3, 8, 8), 0.5)
    out = jitter_colours(images, 0.4, torch.Generator().manual_seed(0))
    means = out.mean((1, 2, 3))
    assert 0.3 <= means.min() < 0.35
    assert 0.65 < means.max() <= 0.7
