"""The results store: whole files, several writers, damage that is told."""

import io
import json
import multiprocessing
import random
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from offaxis.cli import app
from offaxis.errors import OffaxisError, StoreError
from offaxis.evaluation import NetworkRecord, Result, Store
from offaxis.evaluation import store as store_module
from offaxis.evaluation.records import SetRecord
from offaxis.evaluation.store import narrow
from offaxis.files import json_line, write_json
from study.archive import archive_store, quantise
from tests.hostile.damage import flipped

RESULT = Result(
    network="wrn cosine",
    seed=0,
    weights="w0",
    id="digits",
    ood="letters",
    assumed=None,
    id_data="d",
    ood_data="l",
    assumed_data=None,
    group="near",
    detector="cosine",
    setup="s",
    hyperparameters={},
    state="none",
    passes=(1, 0),
    metrics={"auroc": 0.9},
    images=(2, 3),
    scores=("a#x", "b#x"),
    versions={"offaxis": "0"},
    architecture="wrn-10-1",
    head={"name": "cosine", "scale": "predicted"},
    members=("a", "b"),
    command=("offaxis", "evaluate"),
)
RECORD = NetworkRecord(label="a", seed=1, weights="f" * 64, id="digits", id_data="d", accuracy=0.9, ece=0.1, aurc=0.01)


def some_set(images: int) -> SetRecord:
    return SetRecord({"images": images}, np.arange(2), np.arange(2))


def test_what_is_added_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "store")
    tuned = replace(
        RESULT, assumed="scans", assumed_data="z", state="tuned", hyperparameters={"eps": 0.1, "weights": [1.0]}
    )
    store.add([RESULT, tuned])
    assert Store(store.path).results() == [RESULT, tuned]
    moved = replace(RESULT, group="far")  # the same result again: the last stays, in its place
    store.add([moved])
    assert Store(store.path).results() == [moved, tuned]
    assert (RESULT.method, tuned.method) == ("cosine", "cosine (tuned)")
    assert replace(RESULT, state="published default").method == "cosine (default)"
    record = replace(RECORD, origin="run", recipe={"name": "short", "epochs": 1}, commands=(("offaxis", "train"),))
    store.add_network(record)
    assert store.networks() == [record]
    assert store.network(record.key, "d") == record
    assert store.network("other", "d") is None
    fuller = replace(record, id_data="e", accuracy=0.8)
    store.add_set("d", some_set(10))
    store.add_set("e", some_set(90))
    store.add_network(fuller)
    assert store.networks() == [fuller]


def _write(path: str, process: int) -> None:
    store = Store(path)
    for number in range(20):
        store.add([replace(RESULT, seed=process, ood_data=f"{process}-{number}", metrics={"auroc": float(number)})])
        store.add_scores(f"scores/n/s/{number}.npz#scores", np.arange(100.0))


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(str(tmp_path / "store"), n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    store = Store(tmp_path / "store")
    assert len(store.results()) == 60
    assert store.scores("scores/n/s/7.npz#scores").tolist() == list(range(100))
    assert not [file for file in store.path.rglob("*") if file.name.endswith(".part")]


def test_a_store_that_another_process_begins_is_no_foreign_folder(tmp_path: Path) -> None:
    (tmp_path / ".store.json.abc.part").write_text("")
    Store(tmp_path).add([RESULT])
    assert Store(tmp_path).results() == [RESULT]


def test_what_another_process_is_writing_is_not_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add([RESULT])
    store.add_network(RECORD)
    store.add_set("d", some_set(10))
    for name in ("results/.1-a.jsonl.x1y2.part", "results/.all.jsonl.gz.x1y2.part", "networks/.n.json", "sets/.d.json"):
        (store.path / name).write_text('{"network": "wr')
    assert store.results() == [RESULT]
    assert store.networks() == [RECORD]
    assert list(store.sets()) == ["d"]


def test_foreign_newer_and_damaged_stores_are_told(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="holds something else"):
        Store(tmp_path / "other")
    with pytest.raises(StoreError, match="no results"):
        Store.existing(tmp_path / "nowhere")
    store = Store(tmp_path / "store")
    store.add([RESULT])
    [file] = (store.path / "results").iterdir()
    text = file.read_text()
    file.write_text(text[:30])
    with pytest.raises(StoreError, match="Line 1 of"):
        store.results()
    file.write_text(json_line({"network": "x"}))
    with pytest.raises(StoreError, match="whole records"):
        store.results()
    (store.path / "scores").mkdir()
    (store.path / "scores" / "a.npz").write_bytes(b"PK nonsense")
    with pytest.raises(StoreError, match=r"a\.npz is damaged"):
        store.scores("scores/a.npz#scores")
    with pytest.raises(StoreError, match=r"none\.npz cannot be read \(No such file"):
        store.scores("scores/none.npz#scores")
    store.add_scores("scores/b.npz#x", np.zeros(3))
    with pytest.raises(StoreError, match="named 'y'"):
        store.scores("scores/b.npz#y")
    (store.path / "store.json").write_text(json.dumps({"format": "offaxis-results", "version": 99}))
    with pytest.raises(StoreError, match="install a newer"):
        Store(store.path)
    (store.path / "store.json").write_text(json.dumps({"format": "offaxis-results", "version": 1}))
    with pytest.raises(StoreError, match="version 3 but .*version 1: .*evaluate again"):
        Store(store.path)
    (store.path / "store.json").write_text("{}")
    with pytest.raises(StoreError, match="version 3 but .* is of None"):
        Store(store.path)
    (store.path / "store.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        Store(store.path)


def _compressed_wrongly(file: Path) -> None:
    np.savez_compressed(file, scores=np.random.default_rng(0).normal(size=20_000))
    damaged = bytearray(file.read_bytes())
    damaged[200:400] = b"\xff" * 200
    file.write_bytes(damaged)


def _with_half_a_header(file: Path) -> None:
    whole = io.BytesIO()
    np.save(whole, np.arange(3.0))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("scores.npy", whole.getvalue().replace(b"(3,)", b"(3, "))


@pytest.mark.parametrize("damage", [_compressed_wrongly, _with_half_a_header])
def test_damaged_arrays_are_told_by_their_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    (tmp_path / "store" / "scores").mkdir(parents=True)
    (tmp_path / "store" / "store.json").write_text(json.dumps({"format": "offaxis-results", "version": 2}))
    damage(tmp_path / "store" / "scores" / "a.npz")
    with pytest.raises(StoreError, match=r"a\.npz is damaged"):
        Store(tmp_path / "store").scores("scores/a.npz#scores")


def test_records_that_are_not_whole_are_told_by_their_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add([RESULT])
    store.add_network(RECORD)
    [network], [result] = (list((store.path / name).iterdir()) for name in ("networks", "results"))
    write_json(network, {"label": "a"})
    result.write_text(json_line({"label": "a"}))
    for file, read in ((network, store.networks), (result, store.results)):
        with pytest.raises(StoreError, match=f"{file.name} does not hold whole records"):
            read()
        for values in (["label"], None):
            file.write_text(json.dumps(values))
            with pytest.raises(StoreError, match=f"{file.name} is damaged"):
                read()


def test_a_changed_bit_in_any_file_of_a_store_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add([replace(RESULT, scores=("scores/a.npz#x", "scores/a.npz#x"))])
    store.add_network(RECORD)
    store.add_set("d", some_set(10))
    store.add_scores("scores/a.npz#x", np.random.default_rng(0).normal(size=50))
    store.add_scores("grid_scores/w0/d/g.npz#x", np.arange(9.0))
    readers: dict[str, Callable[[], Any]] = {
        "store.json": lambda: Store(store.path),
        "results/*": store.results,
        "networks/*": store.networks,
        "sets/*.json": store.sets,
        "sets/*.npz": lambda: store.indices("d"),
        "scores/*": lambda: Store(store.path).scores("scores/a.npz#x"),
        "grid_scores/*/*/*": lambda: Store(store.path).scores("grid_scores/w0/d/g.npz#x"),
    }
    chance = random.Random(0)
    for pattern, read in readers.items():
        [file] = store.path.glob(pattern)
        whole = file.read_bytes()
        for _ in range(20):
            file.write_bytes(flipped(whole, chance))
            forget_what_was_read()
            with pytest.raises(StoreError, match=re.escape(str(file))):
                read()
        file.write_bytes(whole)
        forget_what_was_read()
        read()


def forget_what_was_read() -> None:
    store_module._results.cache_clear()
    store_module._arrays.cache_clear()


def test_a_result_of_a_newer_version_is_read_without_what_it_adds() -> None:
    values: dict[str, Any] = {**RESULT.to_json(), "colour": "red"}
    assert Result.from_json(json.loads(json.dumps(values))) == RESULT


def test_scores_are_narrowed_only_where_none_changes() -> None:
    assert narrow(np.array([0.5, 0.25])).dtype == np.float32
    assert narrow(np.array([0.1, 0.2])).dtype == np.float64  # else an OOD image between them could tie with one
    assert narrow(np.array([0.1], np.float16)).dtype == np.float32


def test_a_compact_copy_holds_the_same_results_in_few_files(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for key, (name, images) in {"d": ("digits", 100), "l": ("letters", 50)}.items():
        about = {"name": name, "images": images, "validation": 10}
        store.add_set(key, SetRecord(about, np.arange(10), np.arange(10, images)))
    draw = np.random.default_rng(0)
    scores = {"a": draw.normal(size=90), "b": draw.normal(size=40)}
    for name, values in scores.items():
        store.add_scores(f"scores/w0/{'d' if name == 'a' else 'l'}/{name}.npz#scores", values)
    result = replace(RESULT, scores=("scores/w0/d/a.npz#scores", "scores/w0/l/b.npz#scores"))
    store.add([result])
    store.add_scores("grid_scores/w0/d/big.npz#grid_scores", np.zeros((90, 40)))
    copy = archive_store(store, tmp_path / "copy", images=30)
    [kept] = copy.results()
    assert (kept.key, kept.metrics, kept.images) == (result.key, result.metrics, result.images)
    assert len(list((tmp_path / "copy" / "scores").rglob("*.npz"))) == 1
    assert not (tmp_path / "copy" / "grid_scores").exists()
    indices = copy.indices("d")
    assert len(indices) == 30
    np.testing.assert_allclose(copy.scores(kept.scores[0]), scores["a"][indices - 10], atol=2e-3)
    assert copy.scores(kept.scores[0]).dtype == np.float32
    assert quantise(np.array([1.0, 1e6])).dtype == np.float32  # too large for 16 bits
    assert quantise(1 + 1e-4 * np.arange(500)).dtype == np.float32  # too fine for them
    assert quantise(np.array([0.5, 0.25])).dtype == np.float16
    whole = archive_store(store, tmp_path / "all")
    np.testing.assert_array_equal(whole.indices("l"), store.indices("l"))


def shell(*words: object) -> Any:
    forget_what_was_read()
    return CliRunner().invoke(app, list(map(str, words)))


def test_what_is_missing_or_damaged_is_computed_again(tmp_path: Path) -> None:
    run, folder = Path(__file__).parents[1] / "frozen/kept/runs/cosine0", tmp_path / "store"
    words = ["evaluate", run, "--ood", "gaussian", "--detectors", "cosine", "--images", 40, "--out", folder]
    assert shell(*words).exit_code == 0
    whole = {result.key: result.metrics for result in Store(folder).results()}
    report = ("report", folder, "--out", tmp_path / "report", "--thumbnails", 1)
    chance = random.Random(0)
    for harm in (lambda file: file.write_bytes(flipped(file.read_bytes(), chance)), Path.unlink):
        for pattern in ("results/*", "networks/*", "sets/*.json", "sets/*.npz", "scores/*/*/*"):
            for file in folder.glob(pattern):
                if not file.name.startswith("."):
                    harm(file)
            told = shell(*report)
            assert isinstance(told.exception, OffaxisError), (pattern, told.exception)
            assert "evaluate again" in str(told.exception) or pattern == "results/*"
            done = shell(*words)
            assert done.exit_code == 0, done.output
            assert {result.key: result.metrics for result in Store(folder).results()} == whole
            assert shell(*report).exit_code == 0
    (folder / "store.json").unlink()  # nobody knows then which version wrote the files
    assert shell(*words).exit_code == 0
    assert {result.key: result.metrics for result in Store(folder).results()} == whole


def test_a_network_needs_one_record_where_it_was_evaluated_on_parts_of_a_set(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for key in ("d", "l"):
        store.add_set(key, some_set(10))
    part = replace(RESULT, weights=RECORD.key, id_data="l")
    with pytest.raises(StoreError, match=f"networks/{RECORD.key}-l.json is missing: evaluate again"):
        store.check_complete([part])
    store.add_network(RECORD)  # as it was evaluated on all images, which a copy of the store keeps alone
    store.check_complete([part])


def test_files_of_a_store_are_not_taken_for_each_other(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    names = [f"scores/w0/d/{name}.npz#scores" for name in "ab"]
    for place, name in enumerate(names):
        store.add_scores(name, np.full(3, float(place)))
        store.add_set(f"set{place}", some_set(place))
        store.add_network(replace(RECORD, weights=f"{place}" * 64))
    for pattern in ("scores/*/*/*", "sets/*.json", "sets/*.npz", "networks/*"):
        a, b = sorted(store.path.glob(pattern))
        a.rename(tmp_path / "aside")
        b.rename(a)
        (tmp_path / "aside").rename(b)
    swapped = Store(store.path)
    readers = [partial(swapped.scores, names[0]), partial(swapped.indices, "set0"), swapped.sets, swapped.networks]
    for read in readers:
        with pytest.raises(StoreError, match="written as|record of another"):
            read()
    assert len(swapped.mend()) == 6
    assert not swapped.has_scores(names[0])
    swapped.add_scores(names[0], np.zeros(3))
    assert Store(store.path).scores(names[0]).tolist() == [0, 0, 0]
