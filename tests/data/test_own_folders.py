"""A user's own images: folders, archives, and everything that can be wrong with them."""

import io
import json
import os
import re
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from offaxis.data import TensorSet, load_images
from offaxis.data import load as own_module
from offaxis.data.containers import unpack, walk
from offaxis.data.decode import decode, size_of
from offaxis.data.folder import FolderSet
from offaxis.data.load import has_mixed_sizes, own_splits
from offaxis.errors import ArgumentError, DataError, StorageError
from tests.data.support import Pixels, Png, Save


def _pixels(count: int, height: int = 8, width: int = 8) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (count, 3, height, width), np.uint8)


def _bomb() -> bytes:
    """A PNG of a few kilobytes that claims 30,000 x 30,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = (30_000).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    body = zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_a_folder_per_class_is_a_labelled_set(by_class: Path) -> None:
    images = load_images(by_class)
    assert images.classes == ("cat", "dog", "eel")
    assert images.labels is not None
    assert images.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert images.sorted_by_class
    assert images.name == "photos"
    np.testing.assert_array_equal(torch.cat(list(images.batches(5))).numpy(), _pixels(12))


def test_lazy_and_in_memory_sets_are_the_same(by_class: Path) -> None:
    lazy = load_images(by_class, size=5, in_memory=False)
    eager = load_images(by_class, size=5, in_memory=True)
    assert isinstance(lazy, FolderSet)
    assert lazy.fingerprint == eager.fingerprint
    order = [torch.tensor([7, 0]), torch.tensor([-1]), torch.tensor([3, 3, 3])]
    for got, expected in zip(lazy.stream(order), eager.stream(order), strict=True):
        assert torch.equal(got, expected)
    part = torch.tensor([9, 2, 4])
    assert torch.equal(torch.cat(list(lazy.subset(part).batches(2))), torch.cat(list(eager.subset(part).batches(2))))


def test_a_stream_that_is_left_early_leaves_no_thread_behind(by_class: Path) -> None:
    before = threading.active_count()
    stream = load_images(by_class, in_memory=False).batches(2)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_sets_that_do_not_fit_stay_in_their_files(by_class: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offaxis.data.folder.MEMORY_LIMIT", 12 * 3 * 64 - 1)
    assert isinstance(load_images(by_class), FolderSet)
    monkeypatch.setattr("offaxis.data.folder.MEMORY_LIMIT", 12 * 3 * 64)
    assert not isinstance(load_images(by_class), FolderSet)


def test_any_folder_is_an_ood_set_matched_to_the_id_set(tmp_path: Path, save: Save) -> None:
    save(tmp_path / "deep" / "er" / "a.png", _pixels(1, 20, 10)[0])
    save(tmp_path / "b.jpg", _pixels(1, 7, 9)[0])
    images = load_images(tmp_path, like=load_images("digits"))
    assert images.shape == (1, 28, 28)
    assert images.labels is None
    with pytest.raises(DataError, match=r"deep/er/a.png is 10x20"):
        load_images(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.png", b"", "is none, or is damaged"),
        ("x.png", b"hello", "is none, or is damaged"),
        ("x.png", b"\x89PNG\r\n\x1a\n" + b"\x00" * 40, "damaged"),
        ("x.png", _bomb(), "too large|more than"),
        ("x.txt", b"hello", "not an image file"),
        ("x.JXL", b"ftypheic", "not an image file that is read here .*: convert it to JPEG"),
        ("x.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image file"),
        ("x.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is none, or is damaged"),
    ],
)
@pytest.mark.parametrize("lazily", [False, True])
def test_bad_files_are_named_or_skipped_and_listed(
    by_class: Path, name: str, content: bytes, message: str, lazily: bool
) -> None:
    bad = by_class / "dog" / name
    bad.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(load_images(by_class, in_memory=not lazily).batches(4))
    assert str(bad) in str(caught.value)
    images = load_images(by_class, skip_bad=True, in_memory=not lazily)
    assert [skipped.path for skipped in images.skipped] == [str(bad)]
    assert len(images) == 12
    np.testing.assert_array_equal(torch.cat(list(images.batches(5))).numpy(), _pixels(12))
    assert images.labels is not None
    assert images.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_truncated_and_wrong_sized_images_are_skipped_too(by_class: Path, save: Save) -> None:
    first, second = by_class / "cat" / "01.png", by_class / "eel" / "10.png"
    first.write_bytes(first.read_bytes()[:-40])
    save(second, _pixels(1, 9, 8)[0])
    images = load_images(by_class, skip_bad=True)
    assert {skipped.path for skipped in images.skipped} == {str(first), str(second)}
    np.testing.assert_array_equal(images.batch(torch.arange(10)).numpy(), np.delete(_pixels(12), [1, 10], 0))
    for path in by_class.rglob("*.png"):
        path.write_bytes(b"gone")
    with pytest.raises(DataError, match="None of the 12 files"):
        load_images(by_class, skip_bad=True)


@pytest.mark.parametrize("lazily", [False, True])
def test_the_size_of_most_files_is_kept(tmp_path: Path, save: Save, lazily: bool) -> None:
    save(tmp_path / "0.png", _pixels(1, 10, 10)[0])
    for number, image in enumerate(_pixels(9, 32, 24), 1):
        save(tmp_path / f"{number}.png", image)
    images = load_images(tmp_path, skip_bad=True, in_memory=not lazily)
    assert (len(images), images.shape) == (9, (3, 32, 24))
    assert [skipped.path for skipped in images.skipped] == [str(tmp_path / "0.png")]


def test_what_systems_leave_behind_is_ignored(by_class: Path) -> None:
    (by_class / "cat" / "Thumbs.db").write_bytes(b"x")
    (by_class / ".git").mkdir()
    (by_class / ".git" / "x.png").write_bytes(b"x")
    assert len(load_images(by_class)) == 12


def test_linked_folders_are_followed_but_never_in_circles(by_class: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "a").symlink_to(by_class / "cat")
    (linked / "b").symlink_to(by_class / "dog")
    (by_class / "dog" / "loop").symlink_to(linked)
    images = load_images(linked)
    assert images.classes == ("a", "b")
    assert len(images) == 8


def test_a_link_takes_no_images_from_the_folder_that_holds_them(by_class: Path) -> None:
    (by_class / "cat" / "all").symlink_to(by_class.parent)
    (by_class / "cat" / "others").symlink_to(by_class / "dog")
    images = load_images(by_class)
    assert images.labels is not None
    assert images.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    (by_class / "above").symlink_to(by_class.parent)
    with pytest.raises(DataError, match="every class folder but .*above has none"):
        load_images(by_class)


@given(data=st.data(), kind=st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"]))
@settings(max_examples=150, deadline=None)
def test_damaged_images_give_pixels_or_an_error_that_names_them(data: st.DataObject, kind: str) -> None:
    file = io.BytesIO()
    Image.fromarray(_pixels(1, 9, 11)[0].transpose(1, 2, 0)).save(file, format=kind)
    content = bytearray(file.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        outcome = f"the picture {decode(bytes(content[: data.draw(st.integers(1, len(content)))]), 'the picture').size}"
    except DataError as error:
        outcome = str(error)
    assert "the picture" in outcome


@pytest.mark.parametrize("size", [0, -1, (8, 0), (8, 8, 8), 8.0, "8", True])
def test_images_without_pixels_are_refused(by_class: Path, size: Any) -> None:
    for name in (by_class, "digits", "gaussian"):
        with pytest.raises(ArgumentError, match="at least 1 pixel"):
            load_images(name, size=size)


def test_arguments_that_make_no_sense_are_refused(by_class: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = load_images(by_class, size=np.int64(5))  # type: ignore[arg-type]
    assert images.shape == (3, 5, 5)
    assert json.loads(json.dumps(images.describe()))["options"]["size"] == [5, 5]
    four = TensorSet("four", torch.zeros(1, 4, 8, 8, dtype=torch.uint8))
    calls: dict[str, Callable[[], object]] = {
        "`count` to be a whole number": lambda: load_images("uniform", count=0),
        "1 or 3 channels": lambda: load_images(by_class, like=four),
        "an empty text: write . for this folder": lambda: load_images(""),
        "no such user as in ~nobodyhere/x": lambda: load_images("~nobodyhere/x"),
    }
    for message, call in calls.items():
        with pytest.raises(ArgumentError, match=message):
            call()
    monkeypatch.chdir(by_class / "cat")
    assert [load_images(name).name for name in (".", "..", "../dog")] == ["cat", "photos", "dog"]


def test_sizes_are_read_until_two_differ(tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        save(tmp_path / f"{number}.png", _pixels(1, 8, 8 + (number > 0))[0])
    read: list[Path] = []

    def counted(path: Path) -> tuple[int, int]:
        read.append(path)
        return size_of(path)

    monkeypatch.setattr(own_module, "size_of", counted)
    assert has_mixed_sizes(tmp_path, "test")
    assert len(read) == 2


def test_an_archive_may_hold_names_with_the_time_of_day(tmp_path: Path, png: Png) -> None:
    name = "photos/2024-05-01T12:30:05.png"
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as pack:
        pack.writestr(name, png(_pixels(1)[0]))
    unpack(tmp_path / "x.zip", tmp_path / "out")
    assert (tmp_path / "out" / name).exists()
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as pack:
        pack.writestr("C:x.png", png(_pixels(1)[0]))
    with pytest.raises(DataError, match="leads out of its folder"):
        unpack(tmp_path / "y.zip", tmp_path / "out")


def test_an_empty_folder_and_an_unknown_name_say_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are none"):
        load_images(tmp_path)
    with pytest.raises(ArgumentError, match="Did you mean cifar10"):
        load_images("cifar-10")
    with pytest.raises(ArgumentError, match="'train' or 'test'"):
        load_images("cifar10", "val")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no train split"):
        load_images("isun", "train")


@pytest.mark.parametrize(
    ("mode", "expected"), [("1", "L"), ("L", "L"), ("LA", "L"), ("P", "RGB"), ("RGBA", "RGB"), ("I;16", "L")]
)
def test_every_kind_of_image_becomes_grey_or_rgb(mode: str, expected: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.full((4, 4), 200 * 256 + 5, np.uint16))
    else:
        image = Image.new("L", (4, 4), 200).convert(mode)
    file = io.BytesIO()
    image.save(file, format="PNG")
    decoded = decode(file.getvalue())
    assert decoded.mode == expected
    assert np.asarray(decoded).max() == (255 if mode == "1" else 200)


def test_values_beyond_16_bits_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "deep.tif"
    Image.fromarray(np.array([[0, 70_000], [5, 9]], np.int32)).save(path)
    with pytest.raises(DataError, match=r"16 bits but .*deep\.tif has 32-bit integers"):
        decode(path)


def test_large_images_are_refused_before_they_are_decoded() -> None:
    file = io.BytesIO()
    Image.new("L", (100, 100)).save(file, format="PNG")
    with pytest.raises(DataError, match="cat photo is 100x100, more than the 9,999 pixels"):
        decode(file.getvalue(), "cat photo", max_pixels=9_999)


def _archive(path: Path, members: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as pack:
            for name, data in members.items():
                pack.writestr(name, data)
    else:
        with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as tar:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_archives_of_images_are_sets(kind: str, tmp_path: Path, png: Png, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_module, "cache_folder", lambda: tmp_path / "cache")
    images = _pixels(4)
    members = {f"top/{'ab'[i // 2]}/{i}.png": png(image) for i, image in enumerate(images)}
    path = _archive(tmp_path / f"own.{kind}", members)
    read = load_images(path)
    assert read.classes == ("a", "b")
    np.testing.assert_array_equal(read.batch(torch.arange(4)).numpy(), images)
    with monkeypatch.context() as patch:
        patch.setattr(own_module, "unpack", lambda *_: pytest.fail("unpacked twice"))
        assert load_images(path).fingerprint == read.fingerprint
    cut = tmp_path / f"cut.{kind}"
    cut.write_bytes(path.read_bytes()[: 700 if kind != "tar" else 1024])  # between two files, where it is a plain tar
    with pytest.raises(DataError, match=re.escape(str(cut))):
        load_images(cut)


@pytest.mark.parametrize("top", ["", "photos/"])
@pytest.mark.parametrize("macos", [False, True])
def test_archives_keep_their_splits(
    top: str, macos: bool, tmp_path: Path, png: Png, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_module, "cache_folder", lambda: tmp_path / "cache")
    images = [png(image) for image in _pixels(4)]
    names = [f"{top}train/{'ab'[n // 2]}/{n}.png" for n in range(4)]
    extra = {f"__MACOSX/{top}train/a/._0.png": b"left behind"} if macos else {}
    path = _archive(tmp_path / "own.zip", dict(zip(names, images, strict=True)) | extra)
    assert own_splits(path) == ("train",)
    train = load_images(path, "train")
    assert (len(train), train.classes) == (4, ("a", "b"))
    with pytest.raises(DataError, match="Expected a folder test"):
        load_images(path)
    both = _archive(tmp_path / "both.zip", dict.fromkeys((*names, f"{top}test/b/9.png"), images[0]) | extra)
    assert own_splits(both) == ("train", "test")
    test = load_images(both)
    assert test.labels is not None
    assert test.labels.tolist() == [1]


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "a\\evil", "C:evil"])
def test_archives_cannot_write_elsewhere(kind: str, name: str, tmp_path: Path) -> None:
    path = _archive(tmp_path / f"x.{kind}", {"good.txt": b"1", name: b"2"})
    with pytest.raises(DataError, match="leads out of its folder"):
        unpack(path, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []  # not even the good one


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            info = tarfile.TarInfo("link")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        with pytest.raises(DataError, match="link"):
            unpack(tmp_path / "x.tar", tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as pack:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        pack.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="is a link"):
        unpack(tmp_path / "x.zip", tmp_path / "out")


def test_archives_that_grow_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _archive(tmp_path / "x.tar.gz", {f"{i}": bytes(1000) for i in range(5)})
    monkeypatch.setattr("offaxis.data.containers.MAX_UNPACKED", 4_999)
    with pytest.raises(DataError, match=r"more than 4,999 bytes"):
        unpack(path, tmp_path / "out")
    monkeypatch.setattr("offaxis.data.containers.MAX_UNPACKED", 5_000)
    monkeypatch.setattr("offaxis.data.containers.MAX_FILES", 4)
    with pytest.raises(DataError, match=r"4 files"):
        unpack(path, tmp_path / "out")
    monkeypatch.setattr("offaxis.data.containers.MAX_FILES", 5)
    unpack(path, tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == 5
    (tmp_path / "no.tar").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"no.tar is no archive"):
        unpack(tmp_path / "no.tar", tmp_path / "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = _archive(tmp_path / "x.tar", {"a": b"1"})
    (tmp_path / "out").mkdir(mode=0o500)
    with pytest.raises(StorageError, match="could not be unpacked"):
        unpack(path, tmp_path / "out")


def test_a_name_in_an_archive_that_is_no_text_is_told(tmp_path: Path) -> None:
    """Found by a fuzzer: a zip file that says that its names are UTF-8 where one is not."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as pack:
        pack.writestr("a/é.txt", b"text")
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xfd("))
    with pytest.raises(DataError, match=re.escape(str(path))):
        unpack(path, tmp_path / "out")


def test_a_walk_gives_every_file_once_in_the_folder_that_holds_it(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/.hidden/2.png", "a/Thumbs.db", "b/10.png", "b/9.txt", "c.png"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).touch()
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "3.png").touch()
    (tmp_path / "set" / "a" / "0-to-b").symlink_to(tmp_path / "set" / "b")
    (tmp_path / "set" / "a" / "far").symlink_to(tmp_path / "far")
    (tmp_path / "set" / "a" / "nowhere").symlink_to(tmp_path / "nowhere")
    (tmp_path / "far" / "above").symlink_to(tmp_path)
    found = [path.removeprefix(f"{tmp_path}/set/") for path in walk(tmp_path / "set")]
    assert found == ["a/1.png", "a/nowhere", "b/10.png", "b/9.txt", "c.png", "a/far/3.png"]
