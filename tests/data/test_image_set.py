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
