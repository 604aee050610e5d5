"""Files of detectors: written whole, refused where they are not ours."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from offaxis.detectors import KNN, Cosine, Mahalanobis, load_detector, save_detector
from offaxis.errors import DetectorFileError, StorageError
from offaxis.networks.saved import write_tensors
from tests.detectors.toy import NetworkOf, Toy
from tests.hostile.damage import flipped


@pytest.fixture
def saved(toy: Toy, network_of: NetworkOf, tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "knn.safetensors"
    save_detector(KNN(3).fit(network_of("linear"), toy.train), path)
    return path


def test_a_detector_without_buffers_is_a_file_too(tmp_path: Path) -> None:
    save_detector(Cosine(), tmp_path / "cosine")
    assert isinstance(load_detector(tmp_path / "cosine"), Cosine)


def test_nothing_half_written_is_left(saved: Path) -> None:
    assert [path.name for path in saved.parent.iterdir()] == ["knn.safetensors"]
    with pytest.raises(StorageError):
        save_detector(Cosine(), saved / "inside a file")


@pytest.mark.parametrize("size", [0, 5, 100, 5000])
def test_damaged_files(saved: Path, size: int) -> None:
    saved.write_bytes(saved.read_bytes()[:size])
    with pytest.raises(DetectorFileError, match=r"knn\.safetensors"):
        load_detector(saved)


def test_changed_bits(saved: Path) -> None:
    whole, chance = saved.read_bytes(), random.Random(0)
    for _ in range(100):
        saved.write_bytes(flipped(whole, chance))
        with pytest.raises(DetectorFileError, match=r"knn\.safetensors"):
            load_detector(saved)


def test_foreign_files(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(DetectorFileError, match="cannot be read"):
        load_detector(tmp_path / "absent")
    other = tmp_path / "other"
    save_file({"x": torch.ones(2)}, other)
    with pytest.raises(DetectorFileError, match="something else"):
        load_detector(other)
    for version in ("1", "99"):
        write_tensors(other, {}, {"format": "offaxis-detector", "version": version})
        with pytest.raises(DetectorFileError, match=rf"of version {version}: .* newer"):
            load_detector(other)
    save_file({}, other, {"format": "offaxis-detector", "version": "3", "description": "{}"})
    with pytest.raises(DetectorFileError, match="has no checksum"):
        load_detector(other)
    for description in ("", "{}", '{"detector": "magic", "class": null, "arguments": {}, "tuned_on": null}'):
        write_tensors(other, {}, {"format": "offaxis-detector", "version": "3", "description": description})
        with pytest.raises(DetectorFileError):
            load_detector(other)
    for wrong in (
        '{"detector": "knn", "class": null, "arguments": {"k": -1}, "tuned_on": null}',
        '{"detector": "knn", "class": 3, "arguments": {"k": 1}, "tuned_on": null}',
        '{"detector": ["knn"], "class": null, "arguments": {}, "tuned_on": null}',
        '["knn"]',
    ):
        write_tensors(other, {}, {"format": "offaxis-detector", "version": "3", "description": wrong})
        with pytest.raises(DetectorFileError, match="whole detector"):
            load_detector(other)


def test_layers_with_dots_in_their_names(toy: Toy, network_of: NetworkOf, tmp_path: Path) -> None:
    network = network_of("linear")
    network.backbone = torch.nn.Sequential(network.backbone)
    detector = Mahalanobis(("0.first", "0.second")).fit(network, toy.train)
    save_detector(detector, tmp_path / "m")
    again = load_detector(tmp_path / "m")
    assert again.layers == ("0.first", "0.second")
    assert torch.equal(again.score_images(network, toy.images), detector.score_images(network, toy.images))


def test_a_tuned_detector_keeps_its_weights(toy: Toy, network_of: NetworkOf, tmp_path: Path) -> None:
    network = network_of("linear")
    tuned = Mahalanobis(std=(0.5,)).fit(network, toy.train).tune(network, [toy.images], [toy.ood_images])
    save_detector(tuned, tmp_path / "m")
    again = load_detector(tmp_path / "m")
    assert again.tuned_on == "OOD samples"
    assert torch.equal(again.score_images(network, toy.images), tuned.score_images(network, toy.images))
