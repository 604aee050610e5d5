"""The splits of a user's own folders: by name, held out, and folders that cannot be read."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offaxis.data import image_hashes, load_images
from offaxis.data.catalogue import Split
from offaxis.data.folder import Reading
from offaxis.data.images import Skipped, hold_out
from offaxis.data.load import own_classes, own_splits
from offaxis.errors import ArgumentError, DataError
from tests.data.support import Save, random_images


def test_splits_are_folders_or_held_out_but_never_the_same_images(by_class: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holdout"):
        load_images(by_class, "train")
    train, test = (load_images(by_class, split, holdout=0.25) for split in ("train", "test"))
    assert (len(train), len(test)) == (9, 3)
    assert test.labels is not None
    assert test.labels.tolist() == [0, 1, 2]
    root = tmp_path / "both"
    root.mkdir()
    by_class.rename(root / "train")
    (root / "val").mkdir()
    (root / "train" / "cat" / "00.png").rename(root / "val" / "00.png")
    assert len(load_images(root, "train")) == 11
    assert len(load_images(root, "test")) == 1


def test_a_held_out_part_is_decoded_alone(by_class: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_images(by_class)
    decoded: list[Path] = []
    plain = Reading.image

    def image(reading: Reading, path: Path) -> NDArray[np.uint8]:
        decoded.append(path)
        return plain(reading, path)

    monkeypatch.setattr(Reading, "image", image)
    splits: tuple[Split, ...] = ("train", "test")
    for place, split in enumerate(splits):
        decoded.clear()
        part = load_images(by_class, split, holdout=0.25)
        assert len(decoded) == len(part) < len(whole)
        same = hold_out(whole, 0.25)[place]
        skipping = load_images(by_class, split, holdout=0.25, skip_bad=True)
        assert part.fingerprint == same.fingerprint == skipping.fingerprint
        assert part.classes == same.classes
        assert part.sorted_by_class


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_bad_file_changes_the_part_of_no_other(tmp_path: Path, save: Save, in_memory: bool) -> None:
    folder = tmp_path / "photos"
    for number, image in enumerate(random_images(40, 3, 8, 8)):
        save(folder / "ab"[number // 20] / f"{number:02d}.png", image)
    splits: tuple[Split, ...] = ("train", "test")
    before = {split: image_hashes(load_images(folder, split, holdout=0.25)) for split in splits}
    (folder / "notes.txt").write_text("no image")
    (folder / "a" / "07.png").write_bytes(b"broken")
    skipped, lost = list[Skipped](), 0
    for split in splits:
        part = load_images(folder, split, holdout=0.25, skip_bad=True, in_memory=in_memory)
        left = image_hashes(part)
        assert left == [value for value in before[split] if value in left]
        assert part.labels is not None
        assert len(part.labels) == len(part) == len(left)
        lost += len(before[split]) - len(left)
        assert part.skipped[0].path.endswith("notes.txt")
        skipped += part.skipped[1:]
    assert lost == 1
    assert [Path(bad.path).name for bad in skipped] == ["07.png"]


def test_labels_of_the_test_images_are_those_of_training(tmp_path: Path, save: Save) -> None:
    images = iter(random_images(20, 3, 8, 8))

    def put(*names: str) -> None:
        for name in names:
            save(tmp_path / name, next(images))

    put("train/a/0.png", "train/b/0.png", "train/c/0.png", "test/a/0.png", "test/c/0.png", "test/c/1.png")
    (tmp_path / "train" / "notes.txt").write_text("not needed to number the classes")
    test = load_images(tmp_path)
    assert test.classes == ("a", "b", "c")
    assert test.labels is not None
    assert test.labels.tolist() == [0, 2, 2]
    assert load_images(tmp_path, "train", skip_bad=True).classes == test.classes
    (tmp_path / "test" / "a" / "0.png").unlink()
    test = load_images(tmp_path)  # one class alone is known by its name
    assert test.labels is not None
    assert test.labels.tolist() == [2, 2]
    put("test/zebra/0.png")
    with pytest.raises(DataError, match=r"\(a, b, c\) but got zebra"):
        load_images(tmp_path)


def test_a_split_without_a_folder_is_not_made_of_the_other(by_class: Path, tmp_path: Path) -> None:
    root = tmp_path / "half"
    root.mkdir()
    by_class.rename(root / "train")
    assert len(load_images(root, "train")) == 12
    with pytest.raises(DataError, match=r"Expected a folder test in .* none, only train: .*holdout"):
        load_images(root)
    train, test = (load_images(root, split, holdout=0.25) for split in ("train", "test"))
    assert (len(train), len(test)) == (9, 3)
    assert train.classes == test.classes == ("cat", "dog", "eel")
    (root / "train").rename(root / "valid")
    for holdout in (None, 0.25):
        with pytest.raises(DataError, match="Expected a folder train in .* none, only valid"):
            load_images(root, "train", holdout=holdout)


def test_a_share_to_hold_out_beside_test_images_is_refused(by_class: Path, tmp_path: Path) -> None:
    root = tmp_path / "both"
    root.mkdir()
    by_class.rename(root / "train")
    (root / "Val").mkdir()
    (root / "train" / "cat" / "00.png").rename(root / "Val" / "00.png")
    for split in ("train", "test"):
        with pytest.raises(
            ArgumentError, match=r"no share to hold out .* beside .*Val, whose images are the test images"
        ):
            load_images(root, split, holdout=0.25)
        with pytest.raises(ArgumentError, match=r"no share to hold out .* beside digits, whose test images are known"):
            load_images("digits", split, holdout=0.25)
    with pytest.raises(ArgumentError, match="leave the share out, or move that folder"):
        own_classes(root, holdout=0.25)


def _closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a folder be one that this user may not read; root may read all."""
    scan = os.scandir

    def scandir(place: str = ".") -> Any:
        if Path(place) == folder:
            raise PermissionError(13, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", scandir)


@pytest.mark.parametrize("name", ["cat/more", "eel"])
def test_folders_that_cannot_be_read_are_told(
    by_class: Path, save: Save, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save(by_class / "cat" / "more" / "x.png", random_images(1, 3, 8, 8)[0])
    _closed(by_class / name, monkeypatch)
    with pytest.raises(DataError, match=rf"{name} cannot be read: .*--skip-bad"):
        load_images(by_class)
    images = load_images(by_class, skip_bad=True)
    assert len(images) == {"cat/more": 12, "eel": 9}[name]
    assert [(bad.path, bad.reason) for bad in images.skipped] == [
        (str(by_class / name), "a folder that cannot be read")
    ]


def test_classes_in_training_folders_that_cannot_be_read_are_told(
    by_class: Path, tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "both"
    root.mkdir()
    by_class.rename(root / "train")
    save(root / "test" / "dog" / "x.png", random_images(1, 3, 8, 8)[0])
    _closed(root / "train" / "cat", monkeypatch)
    with pytest.raises(DataError, match=r"train/cat cannot be read"):
        load_images(root)
    assert load_images(root, skip_bad=True).classes == ("dog", "eel")


@pytest.mark.parametrize("name", ["train", "Valid", "test"])
def test_a_class_with_the_name_of_a_split_is_asked_about(by_class: Path, name: str) -> None:
    (by_class / "cat").rename(by_class / name)
    (by_class / "papers").mkdir()  # without images, as __MACOSX is
    for call in (
        lambda: load_images(by_class),
        lambda: own_classes(by_class, holdout=0.25),
        lambda: own_splits(by_class),
    ):
        with pytest.raises(
            DataError, match=f"got {name}, which is the name of a split, beside dog, eel: if it is a class, rename it"
        ):
            call()
    (by_class / "papers").rmdir()
    by_class.rename(by_class.with_name("classes"))  # as the message says
    by_class.mkdir()
    by_class.with_name("classes").rename(by_class / "train")
    assert own_classes(by_class, holdout=0.25) == tuple(sorted((name, "dog", "eel")))


def test_a_folder_that_cannot_be_listed_is_told(by_class: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(by_class))

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(DataError, match=r"photos cannot be read \(Permission denied\): change its permissions"):
        load_images(by_class)


def test_splits_may_lie_beside_other_images(by_class: Path, tmp_path: Path, save: Save) -> None:
    """Photographs that nobody has sorted yet lie beside train and test, or beside a train with classes in it."""
    root = tmp_path / "root"
    root.mkdir()
    by_class.rename(root / "train")
    save(root / "unsorted" / "x.png", random_images(1, 3, 8, 8)[0])
    assert len(load_images(root, "train")) == 12
    save(root / "test" / "y.png", random_images(1, 3, 8, 8)[0])
    assert len(load_images(root)) == 1


def test_folders_of_splits_may_be_written_large(by_class: Path, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    by_class.rename(tmp_path / "set" / "Train")
    assert len(load_images(tmp_path / "set", "train")) == 12
    with pytest.raises(DataError, match="folder test in .*only Train"):
        load_images(tmp_path / "set", "test")


def test_a_folder_called_like_a_set_of_the_catalogue_is_not_passed_over_in_silence(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, image in enumerate(random_images(4, 3, 8, 8)):
        save(tmp_path / "letters" / "ab"[number % 2] / f"{number}.png", image)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match=r"set of the catalogue, not for the folder of that name: write \./letters"):
        assert load_images("letters").classes != ("a", "b")
    for folder in ("./letters", "letters/", Path("letters")):
        assert load_images(folder).classes == ("a", "b")
