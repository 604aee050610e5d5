"""Frames, duplicates, sizes and contact sheets."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from offaxis.data import TensorSet, image_hashes, load_images
from offaxis.data.inspection import border_widths, contact_sheet, inspect, pair_sheet, write_contact_sheet
from offaxis.errors import ArgumentError
from tests.data.support import Save


def _photographs(count: int = 200, size: int = 32) -> TensorSet:
    images = load_images("photographs", count=count, size=size, like=load_images("gaussian", count=1))
    assert isinstance(images, TensorSet)
    return images


def _framed(images: TensorSet, width: int) -> TensorSet:
    padded = torch.nn.functional.pad(images.images, (width,) * 4)
    return TensorSet("framed", padded)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_frame_is_found_with_its_width(width: int) -> None:
    frame = inspect(_framed(_photographs(), width)).frame
    assert frame.is_frame
    assert frame.width == width
    assert frame.share == 1


def test_pictures_digits_and_noise_have_no_frame() -> None:
    assert not inspect(_photographs()).frame.is_frame
    assert inspect(_photographs()).frame.width == 0
    digits = inspect(load_images("digits")).frame
    assert not digits.is_frame
    assert not inspect(load_images("gaussian-025", count=50)).frame.is_frame


def test_a_few_black_or_unframed_images_do_not_hide_a_frame() -> None:
    images = _framed(_photographs(300), 2)
    images.images[5] = 0
    images.images[17] = 90  # one without a frame
    frame = inspect(images).frame
    assert frame.is_frame
    assert (frame.width, round(frame.share * 299)) == (2, 298)


def test_border_widths_by_hand() -> None:
    images = torch.zeros(4, 3, 6, 8, dtype=torch.uint8)
    images[0, 1, 2, 3] = 9
    images[1, 0, 0, 7] = 1
    images[2, 2, 4, 4] = 1
    assert border_widths(images).tolist() == [2, 0, 1, -1]
    assert border_widths(images.float() / 255).tolist() == [2, 0, 1, -1]


def test_duplicates_are_found_within_and_between_sets() -> None:
    images = _photographs(60)
    train, test = images.subset(torch.arange(40)), images.subset(torch.tensor([39, 40, 41, 41, 3]))
    found = inspect(test, {"train": train, "another size": _photographs(5, 16)})
    assert found.repeated == 1
    assert found.shared == {"train": 2, "another size": 0}
    assert found.among_others == {("train", "another size"): 0}
    assert inspect(images, {"train": train, "test": test}).among_others == {("train", "test"): 2}
    assert found.count == 5
    assert found.frame.width == 0


def test_hashes_tell_pixels_shapes_and_types_apart() -> None:
    images = torch.zeros(1, 1, 4, 2, dtype=torch.uint8)
    kinds = [images, images.view(1, 1, 2, 4), images + 1, images.float()]
    assert len({image_hashes(TensorSet("x", kind))[0] for kind in kinds}) == 4
    assert image_hashes(TensorSet("a", images)) == image_hashes(TensorSet("b", images.clone()))


def test_statistics_are_those_of_the_pixels(tmp_path: Path, save: Save) -> None:
    random = np.random.default_rng(0)
    for number, (height, width) in enumerate([(10, 20), (30, 8), (12, 12)]):
        save(tmp_path / f"{number}.png", random.integers(0, 256, (3, height, width), np.uint8))
    images = load_images(tmp_path, size=9, in_memory=False)
    found = inspect(images)
    pixels = images.batch(torch.arange(3)).double() / 255
    torch.testing.assert_close(torch.tensor(found.mean).double(), pixels.mean((0, 2, 3)))
    torch.testing.assert_close(torch.tensor(found.std).double(), pixels.std((0, 2, 3), correction=0))
    assert found.sizes is not None
    assert (found.sizes.smallest, found.sizes.median, found.sizes.largest) == ((8, 10), (12, 12), (20, 30))
    assert found.sizes.different == 3


def test_a_contact_sheet_names_classes_below_the_images() -> None:
    images = torch.full((4, 3, 64, 64), 200, dtype=torch.uint8)
    bare = contact_sheet(TensorSet("x", images))
    named = contact_sheet(TensorSet("x", images, torch.arange(4), ("boxer", "pug", "beagle", "")))
    assert bare.size[1] == 2 * (64 + 6) + 6
    assert named.size[1] == bare.size[1] + 2 * 13
    below = np.asarray(named)[6 + 64 : 6 + 64 + 13]
    for place, dark in ((slice(6, 70), True), (slice(76, 140), True)):
        assert bool((below[:, place] < 60).all(2).any()) == dark
    last = np.asarray(named)[-19:-6, 76:140]
    assert not (last < 60).all(2).any()  # a class without a name


def test_a_contact_sheet_shows_evenly_spaced_images(tmp_path: Path) -> None:
    shades = torch.arange(10, dtype=torch.uint8).mul(25).view(10, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    page = contact_sheet(TensorSet("x", shades), count=4, tile=16)
    assert page.size == (2 * 22 + 6, 2 * 22 + 6)
    centres = [page.getpixel((x, y)) for y in (14, 36) for x in (14, 36)]
    assert centres == [(v, v, v) for v in (0, 75, 150, 225)]
    write_contact_sheet(TensorSet("x", shades.float() / 255), tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as written:
        assert written.size[0] > 4 * 64
    with pytest.raises(ArgumentError, match="positive"):
        contact_sheet(TensorSet("x", shades), count=0)


def _smooth(count: int, seed: int) -> torch.Tensor:
    """Photographs of a kind: smooth random pictures of 80x80."""
    coarse = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, (80, 80), mode="bicubic").clamp(0, 1).mul(255).to(torch.uint8)


def test_near_duplicates_of_photographs_are_found_and_others_not() -> None:
    train, test = _smooth(30, 0), _smooth(20, 1)
    test[3] = train[7].float().mul(0.8).add(20).to(torch.uint8)  # the same photograph, paler
    test[9] = torch.nn.functional.interpolate(train[8:9, :, ::2, ::2].float(), (80, 80), mode="bilinear")[0]
    train[5] = train[4].clone()
    images, other = TensorSet("test", test), TensorSet("train", train)
    found = inspect(images, {"train": other})
    assert {(pair.first, pair.second) for pair in found.near["train"]} == {(3, 7), (9, 8)}
    assert found.near[""] == ()
    assert found.shared == {"train": 0}
    assert [(pair.first, pair.second) for pair in inspect(other).near[""]] == [(5, 4)]
    sheet = pair_sheet(images, other, found.near["train"])
    assert sheet.shape == (3, 80, 160)
    assert contact_sheet(sheet).size[0] > 160
    assert inspect(_photographs(10)).near == {}  # small images have too little to compare


def test_classes_without_images_are_counted_and_grey_images_are_not_compared_with_colour() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    images = TensorSet("x", torch.randint(0, 256, (4, 1, 80, 80), dtype=torch.uint8), labels, list("abc"))
    colour = TensorSet("y", torch.randint(0, 256, (4, 3, 80, 80), dtype=torch.uint8))
    found = inspect(images, {"colour": colour})
    assert found.per_class == (0, 2)
    assert found.shared == {"colour": 0}
    assert "colour" not in found.near
