"""Decoded pixels on disk: made once, used by all, never trusted where they are damaged or the files changed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from offaxis.cli import app
from offaxis.data import ImageSet, load_images
from offaxis.data.decode import decode
from offaxis.data.images import TensorSet
from offaxis.errors import DataError, StorageError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "offaxis"


@pytest.fixture
def photos(tmp_path: Path, cache: Path) -> Path:
    for number in range(12):
        folder = tmp_path / "photos" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (20 + number, 30, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


def _read(photos: Path, **options: bool) -> ImageSet:
    return load_images(photos, size=24, **options)  # type: ignore[arg-type]


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were decoded so far."""
    files: list[Path] = []

    def counted(path: Path) -> Image.Image:
        files.append(path)
        return decode(path)

    monkeypatch.setattr("offaxis.data.folder.decode", counted)
    return files


def test_files_are_decoded_once(photos: Path, cache: Path, decodings: list[Path]) -> None:
    plain = _read(photos)
    assert not (cache / "pixels").exists()
    made = _read(photos, cache=True)
    assert len(decodings) == 24
    for images in (made, _read(photos, cache=True), _read(photos)):
        assert images.fingerprint == plain.fingerprint
        assert (images.classes, images.path, images.options) == (plain.classes, plain.path, plain.options)
        assert images.labels is not None
        assert plain.labels is not None
        assert torch.equal(images.labels, plain.labels)
        assert images.sorted_by_class
    assert len(decodings) == 24
    load_images(photos, size=24, resize="crop")  # other pixels
    assert len(decodings) == 36


def test_changed_files_and_damaged_caches_are_not_used(photos: Path, cache: Path, decodings: list[Path]) -> None:
    before = _read(photos, cache=True).fingerprint
    Image.new("RGB", (40, 40)).save(photos / "cat" / "0.png")
    changed = _read(photos)
    assert len(decodings) == 24
    assert changed.fingerprint != before
    fresh = _read(photos, cache=True).fingerprint
    assert fresh == changed.fingerprint
    files = list((cache / "pixels").iterdir())
    assert len(files) == 2
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    decodings.clear()
    assert _read(photos, cache=True).fingerprint == fresh
    assert len(decodings) == 12
    assert _read(photos).fingerprint == fresh
    assert len(decodings) == 12
    (cache / "pixels" / files[0].name).write_bytes(b"")
    (cache / "pixels" / files[1].name).write_bytes(b"")
    assert _read(photos).fingerprint == fresh


def test_bad_files_are_listed_from_the_cache_too(photos: Path, decodings: list[Path]) -> None:
    (photos / "cat" / "bad.png").write_bytes(b"no image")
    (photos / "cat" / "gone.png").symlink_to(photos / "nowhere.png")
    with pytest.raises(DataError, match=r"bad\.png"):
        _read(photos, cache=True)
    made = _read(photos, cache=True, skip_bad=True)
    assert len(made) == 12
    with pytest.raises(DataError, match=r"bad\.png"):
        _read(photos)
    decodings.clear()
    again = _read(photos, skip_bad=True)
    assert [Path(bad.path).name for bad in again.skipped] == ["bad.png", "gone.png"]
    assert again.skipped == made.skipped
    assert not decodings


def test_changes_in_memory_stay_there(photos: Path) -> None:
    images = _read(photos, cache=True)
    assert isinstance(images, TensorSet)
    before = images.images[0].clone()
    images.images[0] = 0
    again = _read(photos)
    assert torch.equal(again.batch(torch.tensor([0]))[0], before)


def test_pixels_that_do_not_fit_are_refused(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(StorageError, match="leave out --cache"):
        _read(photos, cache=True)
    assert not list(cache.rglob("*.pixels"))


def test_the_cache_is_cleaned_from_the_shell(photos: Path, cache: Path) -> None:
    done = CliRunner().invoke(app, ["data", "clean"])
    assert "Nothing to remove" in done.output
    _read(photos, cache=True)
    (cache / "cifar10").mkdir()
    (cache / "onnx").mkdir()
    (cache / "onnx" / "x.npz").write_bytes(b"a graph")
    done = CliRunner().invoke(app, ["data", "clean"])
    assert done.exit_code == 0
    assert "1 files, 0.0 MB" in done.output.replace("\n", "")
    assert not (cache / "pixels").exists()
    assert not (cache / "onnx").exists()
    assert (cache / "cifar10").exists()
