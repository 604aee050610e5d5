"""What every set of the catalogue must do, on tiny files in its publisher's format."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from offaxis.data import CATALOGUE, Entry, load_images
from offaxis.data.catalogue import Layout, Split, can_be_mirrored
from offaxis.data.publishers import READERS
from offaxis.errors import DataError
from tests.data.support import Publish

FILES = [
    pytest.param(entry, layout, folder, split, id=f"{entry.name}-{folder or 'root'}-{split}")
    for entry in CATALOGUE.values()
    for layout in entry.layouts
    for folder in layout.folders
    for split in layout.files
]
MADE = [(entry.name, split) for entry in CATALOGUE.values() if not entry.layouts for split in entry.counts]
PAPER = {
    "cifar10",
    "cifar100",
    "tin-crop",
    "tin-crop-free",
    "tin-resize",
    "lsun-crop",
    "lsun-crop-free",
    "lsun-resize",
    "isun",
    "svhn",
    "food101",
    "stl10",
    "mnist",
    "fashion-mnist",
    "notmnist",
    "gaussian",
    "gaussian-025",
    "uniform",
    "dtd",
    "kmnist",
    "gtsrb",
}


def test_the_catalogue_holds_every_set_that_users_ask_for() -> None:
    assert set(CATALOGUE) >= PAPER


def test_every_reader_of_the_catalogue_exists_and_is_used() -> None:
    assert {layout.reader for entry in CATALOGUE.values() for layout in entry.layouts} == set(READERS)


def test_the_catalogue_needs_no_heavy_package() -> None:
    heavy = ("torch", "scipy", "sklearn", "pooch", "requests", "matplotlib")
    code = f"""
import sys
from offaxis.data import CATALOGUE, check_pair, get_images, relation
from offaxis.data.catalogue import can_be_mirrored, data_root, known
data_root()
print([name for name in {heavy} if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_digits_letters_and_signs_are_not_mirrored() -> None:
    not_mirrored = {name for name in CATALOGUE if not can_be_mirrored(name)}
    assert not_mirrored == {"digits", "small-digits", "mnist", "kmnist", "notmnist", "svhn", "gtsrb"}
    assert can_be_mirrored("my-folder")


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE)
def test_entries_say_who_what_and_under_which_terms(entry: Entry) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", entry.name)
    assert all((entry.title, entry.publisher, entry.licence, entry.citation, entry.native))
    assert all(count > 0 for count in entry.counts.values())
    assert "test" in entry.counts
    for download in entry.downloads:
        kind, _, digest = (download.checksum or f"md5:{'0' * 32}").partition(":")
        assert len(digest) == {"md5": 32, "sha256": 64}[kind]
        assert not Path(download.file).is_absolute()
        assert all(re.match(r"https?://", url) for url in download.urls)
    if entry.layouts:
        assert entry.downloads
        assert entry.homepage
        assert {split for layout in entry.layouts for split in layout.files} == set(entry.counts)


@pytest.mark.parametrize(("entry", "layout", "folder", "split"), FILES)
def test_every_layout_is_found_and_read(
    entry: Entry, layout: Layout, folder: str, split: Split, tmp_path: Path, publish: Publish
) -> None:
    written = publish(tmp_path / folder, entry, layout, split)
    assert split in entry.available(tmp_path)
    images = load_images(entry.name, split, root=tmp_path)
    assert images.name == entry.name
    assert images.shape == entry.shape
    assert len(images) == len(written.images)
    pixels = torch.cat(list(images.batches(2)))
    assert pixels.dtype == torch.uint8
    expected = (
        written.images[:, :, entry.trim : -entry.trim, entry.trim : -entry.trim] if entry.trim else written.images
    )
    if expected.shape[2:] == entry.shape[1:]:
        np.testing.assert_array_equal(pixels.numpy(), expected)
    else:  # resized: the mean colour stays
        np.testing.assert_allclose(pixels.float().mean((2, 3)), expected.mean((2, 3)), atol=4)
    if written.labels is None:
        assert images.labels is None
    else:
        assert images.labels is not None
        assert images.labels.tolist() == written.labels
        assert max(written.labels) < len(images.classes)
    assert load_images(entry.name, split, root=tmp_path).fingerprint == images.fingerprint
    index = torch.tensor([len(images) - 1, 0])
    assert torch.equal(images.batch(index), pixels[index])


@pytest.mark.parametrize(
    ("entry", "layout", "split"),
    [
        pytest.param(entry, layout, split, id=f"{entry.name}-{layout.folders[0]}-{split}")
        for entry in CATALOGUE.values()
        for layout in entry.layouts
        for split in layout.files
    ],
)
def test_truncated_files_are_named(
    entry: Entry, layout: Layout, split: Split, tmp_path: Path, publish: Publish
) -> None:
    publish(tmp_path / layout.folders[0], entry, layout, split)
    found = entry.find(tmp_path, split)
    assert found is not None
    first = found[1][0]
    if first.is_dir():
        first = sorted(path for path in first.rglob("*.p?m" if entry.name == "gtsrb" else "*.png"))[0]
    elif entry.name == "food101":
        first = sorted(tmp_path.rglob("*.jpg"))[0]
    first.write_bytes(first.read_bytes()[: first.stat().st_size * 2 // 3 - 5])
    if entry.skip_bad:
        images = load_images(entry.name, split, root=tmp_path)
        assert [bad.path for bad in images.skipped] == [str(first)]
        return
    with pytest.raises(DataError, match=re.escape(str(first))):
        load_images(entry.name, split, root=tmp_path)


@pytest.mark.parametrize(("name", "split"), MADE)
def test_made_sets_need_no_file(name: str, split: Split, tmp_path: Path) -> None:
    entry = CATALOGUE[name]
    images = load_images(name, split, root=tmp_path)
    assert images.name == name
    assert len(images) == entry.counts[split]
    assert images.shape == entry.shape
    assert entry.available(tmp_path) == tuple(entry.counts)
    again = load_images(name, split, root=tmp_path)
    some = torch.arange(0, len(images), 97)
    assert torch.equal(images.batch(some), again.batch(some))


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.layouts])
def test_a_set_that_is_not_here_says_where_to_put_it(name: str, tmp_path: Path) -> None:
    assert CATALOGUE[name].available(tmp_path) == ()
    with pytest.raises(DataError, match=re.escape(str(tmp_path))) as caught:
        load_images(name, root=tmp_path)
    assert f"offaxis data get {name}" in str(caught.value) or CATALOGUE[name].homepage in str(caught.value)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_set_is_matched_to_an_id_set(name: str, tmp_path: Path, publish: Publish) -> None:
    entry = CATALOGUE[name]
    if entry.layouts:
        layout = next(layout for layout in entry.layouts if "test" in layout.files)
        publish(tmp_path / layout.folders[0], entry, layout, "test")
    colour = load_images("gaussian", count=1)
    assert load_images(name, root=tmp_path, like=colour.shape).shape == ((3, 36, 36) if entry.framed else (3, 32, 32))
    grey = load_images("digits")
    matched = load_images(name, root=tmp_path, like=grey.shape)
    assert matched.shape == (1, 28, 28)
    assert tuple(matched.batch(torch.tensor([0])).shape) == (1, 1, 28, 28)
