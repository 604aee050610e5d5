"""An ImageSet is a torch Dataset, and knows its statistics after one pass."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from offaxis.data import Normalise, TensorSet, load_images, match
from offaxis.data import folder as folder_module
from offaxis.data.decode import decode
from offaxis.errors import DataError
from tests.data.support import Save, random_images


@pytest.fixture
def photos(tmp_path: Path, save: Save) -> Path:
    for number, image in enumerate(random_images(12, 3, 8, 8)):
        save(tmp_path / "photos" / ["cat", "dog", "eel"][number // 4] / f"{number:02d}.png", image)
    return tmp_path / "photos"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a machine with one core
@pytest.mark.parametrize("lazily", [False, True])
def test_a_dataloader_reads_it(photos: Path, workers: int, lazily: bool) -> None:
    images = load_images(photos, in_memory=not lazily)
    loader = DataLoader(images, batch_size=5, num_workers=workers)
    for _ in range(2):
        pixels, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
        np.testing.assert_array_equal(pixels.numpy(), random_images(12, 3, 8, 8))
        assert torch.equal(labels, images.labels)  # type: ignore[arg-type]


def test_items_are_image_and_label_or_the_image_alone(photos: Path) -> None:
    images = load_images(photos)
    pixels, label = images[-1]
    assert label == 2
    assert torch.equal(pixels, images.batch(torch.tensor([11]))[0])
    assert [images[index][1] for index in range(12)] == [0] * 4 + [1] * 4 + [2] * 4
    for index in (12, -13):
        with pytest.raises(IndexError, match="below 12"):
            images[index]
    noise = load_images("uniform", count=3)
    assert isinstance(noise[1], torch.Tensor)
    assert noise[1].shape == (3, 32, 32)
    part = match(images, (1, 4, 4)).subset(torch.tensor([7, 0]))
    assert [part[0][1], part[1][1]] == [1, 0]


def test_mean_std_and_fingerprint_come_from_one_pass(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Path] = []

    def counting(path: Path) -> object:
        decoded.append(path)
        return decode(path)

    monkeypatch.setattr(folder_module, "decode", counting)
    lazy, eager = load_images(photos, in_memory=False), load_images(photos, in_memory=True)
    decoded.clear()
    normalise = Normalise.from_images(lazy)
    assert len(lazy.fingerprint) == 64
    assert lazy.statistics().mean == normalise.mean
    assert sorted(decoded) == sorted(photos.rglob("*.png"))
    assert eager.fingerprint == lazy.fingerprint  # a pass of its own, without the statistics
    assert Normalise.from_images(eager) == normalise


def by_hand(images: NDArray[np.uint8]) -> tuple[list[float], list[float]]:
    pixels = images.astype(np.float64) / 255
    return pixels.mean((0, 2, 3)).tolist(), pixels.std((0, 2, 3)).tolist()


def test_statistics_are_those_of_the_pixels() -> None:
    pixels = random_images(1300, 3, 4, 4)
    images = TensorSet("x", torch.from_numpy(pixels))
    mean, std = by_hand(pixels)
    assert images.statistics().mean == pytest.approx(mean, abs=1e-7)
    assert images.statistics().std == pytest.approx(std, abs=1e-7)
    flat = TensorSet("flat", torch.full((2, 1, 3, 3), 51, dtype=torch.uint8))
    assert flat.statistics().std == (0,)
    assert Normalise.from_images(flat).std == (1e-6,)
    with pytest.raises(DataError, match="empty"):
        TensorSet("none", torch.empty(0, 1, 3, 3, dtype=torch.uint8)).statistics()


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_statistics_of_a_batch_are_summed_at_once(kind: torch.dtype) -> None:
    """The last bits of mean and std are kept in runs: pixels may be converted bit by bit, but not added so."""
    pixels = torch.from_numpy(random_images(700, 3, 9, 7))
    pixels = pixels if kind == torch.uint8 else pixels.float() / 255
    total, squares = torch.zeros(3).double(), torch.zeros(3).double()
    for part in pixels.split(512):
        values = (part.float().div(255) if kind == torch.uint8 else part).double().transpose(0, 1).flatten(1)
        total += values.sum(1)
        squares += values.square().sum(1)
    mean = total / (700 * 63)
    found = TensorSet("x", pixels).statistics()
    assert found.mean == tuple(mean.tolist())
    assert found.std == tuple((squares / (700 * 63) - mean.square()).sqrt().tolist())


def test_a_mask_chooses_images() -> None:
    pixels = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1)
    images = TensorSet("x", pixels, torch.tensor([0, 1, 2, 0, 1, 2]))
    assert images.labels is not None
    chosen = images.subset(images.labels == 2)
    assert len(chosen) == 2
    assert torch.cat(list(chosen.batches(1))).flatten().tolist() == [2, 5]
    with pytest.raises(DataError, match=r"a mask of 6 values, one for each image of x, but got \(2,\)"):
        images.subset(torch.tensor([True, False]))


def test_labels_are_whole_numbers_and_floats_are_in_range() -> None:
    with pytest.raises(DataError, match="Expected whole numbers as labels but x has torch.float32"):
        TensorSet("x", torch.zeros(2, 1, 2, 2), torch.tensor([0.9, 1.7]))
    for value in (200.0, -1.0, float("nan")):
        with pytest.raises(DataError, match=r"Expected floats in \[0, 1\] but x has values"):
            TensorSet("x", torch.full((2, 1, 2, 2), value))
