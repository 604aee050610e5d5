"""Readers: what is right is read to the byte, what is wrong is named and never executed."""

import gzip
import os
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from offaxis.data.folder import Files
from offaxis.data.publishers import (
    read_cifar10_binary,
    read_cifar10_pickled,
    read_cifar100_pickled,
    read_food101,
    read_gtsrb_test,
    read_gtsrb_training,
    read_idx,
    read_idx_pair,
    read_pickle,
    read_stl10,
    read_svhn,
)
from offaxis.errors import DataError
from tests.data.support import Pixels, write_idx

shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=6)), gzipped=st.booleans())
@shared_folder
def test_idx_comes_back_as_it_was(array: Pixels, gzipped: bool, tmp_path: Path) -> None:
    content = write_idx(array)
    (tmp_path / "x").write_bytes(gzip.compress(content) if gzipped else content)
    np.testing.assert_array_equal(read_idx(tmp_path / "x"), array)


@given(cut=st.integers(0, 30), gzipped=st.booleans())
@shared_folder
def test_idx_that_was_cut_anywhere_is_refused(cut: int, gzipped: bool, tmp_path: Path) -> None:
    content = write_idx(np.arange(20, dtype=np.uint8).reshape(1, 4, 5))
    whole = gzip.compress(content) if gzipped else content
    (tmp_path / "x").write_bytes(whole[:cut])
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "x"))):
        read_idx(tmp_path / "x")


def test_an_idx_file_that_inflates_to_gigabytes_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "x", "wb") as file:
        file.write(b"\x00\x00\x08\x01" + (2**29).to_bytes(4, "big"))
        file.write(bytes(2**22))
    with pytest.raises(DataError, match="claims 536,870,912 bytes"):
        read_idx(tmp_path / "x")


def test_idx_lies_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(write_idx(np.zeros((2, 3), np.uint8)) + b"more")
    with pytest.raises(DataError, match="there are more"):
        read_idx(path)
    path.write_bytes(b"\x00\x00\x08\x03" + b"\xff" * 12)  # claims 2**96 bytes
    with pytest.raises(DataError, match="claims"):
        read_idx(path)
    path.write_bytes(b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00\x00\x00\x00")  # floats
    with pytest.raises(DataError, match="IDX file of bytes"):
        read_idx(path)
    (tmp_path / "images").write_bytes(write_idx(np.zeros((2, 3, 3), np.uint8)))
    (tmp_path / "labels").write_bytes(write_idx(np.array([1, 2, 3], np.uint8)))
    with pytest.raises(DataError, match="labels"):
        read_idx_pair([tmp_path / "images", tmp_path / "labels"], list("0123456789"))
    (tmp_path / "labels").write_bytes(write_idx(np.array([1, 200], np.uint8)))
    with pytest.raises(DataError, match="from 0 to 9"):
        read_idx_pair([tmp_path / "images", tmp_path / "labels"], list("0123456789"))


def test_cifar_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "test_batch.bin"
    path.write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(DataError, match="from 0 to 9"):
        read_cifar10_binary([path])
    path.write_bytes(b"")
    with pytest.raises(DataError, match=re.escape(str(path))):
        read_cifar10_binary([path])


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_every_age_are_read(protocol: int, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)
    content = {b"data": images, b"fine_labels": [5, 99, 0], b"filenames": [b"a", b"b", b"c"], b"batch_label": "test"}
    (tmp_path / "test").write_bytes(pickle.dumps(content, protocol=protocol))
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"name {i}" for i in range(100)]}, protocol))
    read = read_cifar100_pickled([tmp_path / "test"])
    np.testing.assert_array_equal(read.images.numpy().reshape(3, -1), images)
    assert read.labels is not None
    assert read.labels.tolist() == [5, 99, 0]
    assert read.classes[99] == "name 99"


class _Evil:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def test_pickles_cannot_run_anything(tmp_path: Path) -> None:
    witness, path = tmp_path / "witness", tmp_path / "data_batch_1"
    for evil in (
        _Evil(os.system, f"touch {witness}"),
        _Evil(eval, f"open({str(witness)!r}, 'w')"),
        _Evil(np.load, str(witness)),
        _Evil(np.ndarray, (2**40,)),
        _Evil(np.dtype, "O"),
        _Evil(getattr, "text", "upper"),
    ):
        path.write_bytes(pickle.dumps({"data": evil}))
        with pytest.raises(DataError, match=re.escape(str(path))):
            read_pickle(path)
    assert not witness.exists()


def _nested(depth: int) -> bytes:
    """The start of a pickle: lists that each hold the one before twice, so that the text of the last is 2^depth long."""
    return b"\x80\x04]\x94" + b"".join(b"]\x94(" + 2 * (b"h" + bytes([number])) + b"e" for number in range(depth))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_nested(60) + b"\x8c\x01x\x93.", "is refused"),
        (_nested(60) + b"cnumpy\ndtype\nh\x3c\x85R.", "an array without a type"),
        (b"\x80\x04" + 50_000 * b"]" + 49_999 * b"a" + b"\x8c\x01x\x93.", "is refused"),
        (b"\x80\x04" + 50_000 * b"]" + 49_999 * b"a" + b".", "Expected a dictionary"),
    ],
    ids=["name", "type", "deep", "deep value"],
)
def test_small_pickles_take_little_time_and_memory(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    start = time.perf_counter()
    with pytest.raises(DataError, match=message):
        read_pickle(tmp_path / "x")
    assert time.perf_counter() - start < 20


def test_batches_may_be_empty_and_names_must_be_text(
    tmp_path: Path, pickle_of: Callable[[Pixels, str, list[int]], bytes]
) -> None:
    paths = [tmp_path / "data_batch_1", tmp_path / "data_batch_2"]
    for path, count in zip(paths, (2, 0), strict=True):
        path.write_bytes(pickle_of(np.full((count, 3072), 7, np.uint8), "labels", [3] * count))
    read = read_cifar10_pickled(paths)
    assert len(read) == 2
    assert bool((read.images == 7).all())
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a", ["b"]]}))
    with pytest.raises(DataError, match="Expected a list of names under 'label_names' .* but got other things in it"):
        read_cifar10_pickled(paths)


def test_pickles_of_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(pickle.dumps({"data": np.array([{"a": 1}], object)}))
    with pytest.raises(DataError, match="array of 'O8'"):
        read_pickle(path)
    path.write_bytes(pickle.dumps([1]))
    with pytest.raises(DataError, match="dictionary"):
        read_pickle(path)


@given(data=st.data())
@shared_folder
def test_damaged_pickles_are_named(
    data: st.DataObject, tmp_path: Path, pickle_of: Callable[[Pixels, str, list[int]], bytes]
) -> None:
    whole = bytearray(pickle_of(np.zeros((1, 3072), np.uint8), "labels", [3]))
    position = data.draw(st.integers(0, 150) | st.integers(len(whole) - 30, len(whole) - 1))
    whole[position] = data.draw(st.integers(0, 255))
    path = tmp_path / "test_batch"
    path.write_bytes(whole[: data.draw(st.sampled_from([len(whole), position]))])
    try:
        message = str(read_cifar10_pickled([path]).images.shape) + str(path)  # a byte of a pixel may have changed
    except DataError as error:
        message = str(error)
    assert str(path) in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": np.zeros((2, 3072), np.float32), "labels": [0, 1]}, "uint8"),
        ({"data": np.zeros((2, 99), np.uint8), "labels": [0, 1]}, "3072"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "list of 2 numbers"),
        ({"labels": [0]}, "NoneType"),
    ],
)
def test_pickles_of_something_else_are_refused(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=message):
        read_cifar10_pickled([tmp_path / "test_batch"])


def test_svhn_of_another_shape_or_kind_is_refused(tmp_path: Path) -> None:
    from scipy.io import savemat

    path = tmp_path / "test_32x32.mat"
    for content in ({"X": np.zeros((32, 32, 3), np.uint8)}, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1]]}):
        savemat(path, content)
        with pytest.raises(DataError, match="another file"):
            read_svhn([path])
    savemat(path, {"X": np.zeros((32, 32, 3, 1)), "y": np.array([[1]])})
    with pytest.raises(DataError, match="float64"):
        read_svhn([path])
    path.write_bytes(b"not MATLAB at all" * 30)
    with pytest.raises(DataError, match=re.escape(str(path))):
        read_svhn([path])


def test_stl10_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "X").write_bytes(bytes(3 * 96 * 96))
    (tmp_path / "y").write_bytes(b"\x01\x02")
    with pytest.raises(DataError, match="Expected 1 labels"):
        read_stl10([tmp_path / "X", tmp_path / "y"])
    (tmp_path / "y").write_bytes(b"\x00")
    with pytest.raises(DataError, match="from 0 to 9"):
        read_stl10([tmp_path / "X", tmp_path / "y"])


@pytest.mark.parametrize("line", ["../../etc/passwd", "pie", "pie/missing"])
def test_food101_lists_cannot_lead_elsewhere(line: str, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "test.txt").write_text(line)
    with pytest.raises(DataError, match="but"):
        read_food101([tmp_path / "test.txt", tmp_path / "images"])


def test_gtsrb_tables_are_checked(tmp_path: Path) -> None:
    table = tmp_path / "GT-final_test.csv"
    for text in ("Filename;ClassId\n../x.ppm;1\n", "Name;Class\nx.ppm;1\n", "Filename;ClassId\nx.ppm;one\n"):
        table.write_text(text)
        with pytest.raises(DataError, match=re.escape(str(table))):
            read_gtsrb_test([tmp_path, table])
    for data in (b"Filename;ClassId\n\xff.ppm;1\n", b"Filename;ClassId\n" + 200_000 * b"x" + b";1\n"):
        table.write_bytes(data)
        with pytest.raises(DataError, match=re.escape(str(table))):
            read_gtsrb_test([tmp_path, table])
    (tmp_path / "x.ppm").touch()
    table.write_text("Filename;ClassId\nx.ppm;43\n")
    with pytest.raises(DataError, match="00043"):
        read_gtsrb_test([tmp_path, table])
    table.write_text("Filename;ClassId\nx.ppm;42\n")
    assert read_gtsrb_test([tmp_path, table]) == Files(
        paths=(tmp_path / "x.ppm",), labels=(42,), classes=tuple(f"{i:05d}" for i in range(43))
    )
    with pytest.raises(DataError, match="none is listed"):
        read_gtsrb_training([tmp_path])


def test_damaged_names_of_classes_are_told(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(3073))
    (tmp_path / "batches.meta.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="batches.meta.txt is not text"):
        read_cifar10_binary([tmp_path / "x.bin"])
    batch = {"data": np.zeros((1, 3072), np.uint8), "labels": [3]}
    (tmp_path / "x").write_bytes(pickle.dumps(batch))
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({"label_names": 3}))
    with pytest.raises(DataError, match="Expected a list of names under 'label_names' in .*batches.meta but got a int"):
        read_cifar10_pickled([tmp_path / "x"])
    for label in (-1, 2**63):
        (tmp_path / "x").write_bytes(pickle.dumps({**batch, "labels": [label]}))
        with pytest.raises(DataError, match="Expected a list of 1 numbers under 'labels'"):
            read_cifar10_pickled([tmp_path / "x"])
