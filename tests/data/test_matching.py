"""Size and colour by the declared rule."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from offaxis.data import PUBLISHED, Normalise, TensorSet, load_images, match
from offaxis.data.transforms import fit, fit_batch
from offaxis.errors import ArgumentError

SHAPES = st.tuples(st.sampled_from([1, 3]), st.integers(1, 12), st.integers(1, 12))


@given(source=SHAPES, target=SHAPES, seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_arrays_and_files_give_the_same_pixels(
    source: tuple[int, int, int], target: tuple[int, int, int], seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (1, *source), np.uint8)
    picture = pixels[0].transpose(1, 2, 0)
    image = Image.fromarray(picture[..., 0] if source[0] == 1 else picture)
    np.testing.assert_array_equal(fit_batch(torch.from_numpy(pixels), target)[0].numpy(), fit(image, target))


def test_grey_is_repeated_and_colour_becomes_luminance() -> None:
    grey = torch.randint(0, 256, (2, 1, 4, 4), dtype=torch.uint8)
    colour = fit_batch(grey, (3, 4, 4))
    assert torch.equal(colour, grey.expand(-1, 3, -1, -1))
    assert torch.equal(fit_batch(colour, (1, 4, 4)), grey)
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    assert fit_batch(red, (1, 1, 1)).item() == 76  # 0.299 * 255


def test_resizing_is_antialiased() -> None:
    stripes = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
    stripes[..., ::2] = 255
    small = fit_batch(stripes, (1, 8, 8)).float()
    assert (small[..., 1:-1] - 127.5).abs().max() < 8  # plain bilinear sampling would leave stripes
    noise = torch.rand(1, 3, 9, 9)
    assert fit_batch(noise, (1, 4, 4)).dtype == torch.float32


def test_a_matched_set_keeps_its_labels_and_streams() -> None:
    images = TensorSet("x", torch.randint(0, 256, (7, 1, 6, 6), dtype=torch.uint8), torch.arange(7), list("abcdefg"))
    matched = match(images, (3, 5, 5))
    assert match(images, images.shape) is images
    assert matched.labels is not None
    assert matched.labels.tolist() == list(range(7))
    whole = torch.cat(list(matched.batches(3)))
    assert torch.equal(whole[[4, 1]], matched.batch(torch.tensor([4, 1])))
    assert torch.equal(whole[2:4], matched.subset(torch.tensor([2, 3])).batch(torch.arange(2)))
    with pytest.raises(ArgumentError, match="shape"):
        match(images, (2, 5, 5))


def test_published_constants_are_beside_the_computed_ones() -> None:
    assert PUBLISHED["cifar10"].mean == (0.49137255, 0.48235294, 0.44666667)
    computed = Normalise.from_images(load_images("digits"))
    assert computed.mean[0] == pytest.approx(0.13, abs=0.01)
