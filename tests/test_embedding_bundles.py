"""EmbeddingDetector: bundles, files of rows, the shell and the service."""

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

import offaxis
from offaxis import EmbeddingDetector, Model
from offaxis.cli import app
from offaxis.data.containers import read_rows
from offaxis.errors import (
    BundleError,
    DataError,
    ExportError,
    OverlapError,
    TooFewImagesError,
)
from offaxis.onnx import export_onnx
from tests.embeddings import draw
from tests.hostile.damage import rewritten
from tests.serve.serving import running

run = CliRunner().invoke


@pytest.fixture(scope="module")
def fitted() -> EmbeddingDetector:
    return EmbeddingDetector(random_state=0).fit(*draw(400, 0)).calibrate(draw(200, 1)[0])


@pytest.fixture(scope="module")
def bundle(fitted: EmbeddingDetector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("bundle") / "rows.oax"
    fitted.save(path)
    return path


def test_a_bundle_and_a_pickle_give_the_same_scores(fitted: EmbeddingDetector, bundle: Path) -> None:
    rows = draw(100, 6)[0]
    for again in (EmbeddingDetector.load(bundle), pickle.loads(pickle.dumps(fitted))):  # noqa: S301
        np.testing.assert_array_equal(again.p_value(rows), fitted.p_value(rows))
        np.testing.assert_array_equal(again.score_samples(rows), fitted.score_samples(rows))
        np.testing.assert_array_equal(again.predict_class(rows), fitted.predict_class(rows))
        assert again.offset_ == fitted.offset_
    assert b"pickle" not in bundle.read_bytes()


@pytest.mark.parametrize(
    "labels", [[False, True], ["a", "long name"], [-3, 4], np.array(["2020-01-01", "2021"], "M8[D]")]
)
def test_classes_come_back_in_their_type(tmp_path: Path, labels: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(120, 4))
    known = EmbeddingDetector(random_state=0).fit(rows[:40], np.array(labels)[(rows[:40, 0] > 0).astype(int)])
    known.calibrate(rows[40:]).save(tmp_path / "x.oax")
    again = EmbeddingDetector.load(tmp_path / "x.oax")
    assert again.classes_.dtype == known.classes_.dtype
    assert again.classes_.tolist() == known.classes_.tolist()


@pytest.mark.parametrize(
    "estimator", [None, {}, {"detector": "knn", "class_type": "V3"}, {"detector": "knn", "class_type": 7}]
)
def test_a_bundle_without_its_estimator_is_told(bundle: Path, tmp_path: Path, estimator: Any) -> None:
    with zipfile.ZipFile(bundle) as pack:
        saved = json.loads(pack.read("bundle.json"))["provenance"]
    changed = rewritten(bundle, tmp_path / "x.oax", {"provenance": {**saved, "estimator": estimator}})
    with pytest.raises(BundleError, match="x.oax does not say what its estimator was"):
        EmbeddingDetector.load(changed)


def test_the_length_of_class_names_is_not_believed(bundle: Path, tmp_path: Path) -> None:
    """A type of a thousand million letters for each name would take gigabytes."""
    with zipfile.ZipFile(bundle) as pack:
        saved = json.loads(pack.read("bundle.json"))["provenance"]
    saved["estimator"]["class_type"] = "<U500000000"
    again = EmbeddingDetector.load(rewritten(bundle, tmp_path / "x.oax", {"provenance": saved}))
    assert again.classes_.itemsize < 1000


def test_the_model_of_a_bundle_gives_the_same_verdicts(fitted: EmbeddingDetector, bundle: Path) -> None:
    rows = np.concatenate([draw(100, 6)[0], draw(5, 7, ood=True)[0]])
    predictions = offaxis.load(bundle).predict(rows)
    assert [p.p_value for p in predictions] == fitted.p_value(rows).tolist()
    assert [p.verdict == "in-distribution" for p in predictions] == (fitted.predict(rows) == 1).tolist()
    assert len(offaxis.load(bundle).predict(rows[0])) == 1


def test_a_bundle_of_images_is_no_estimator_and_rows_are_no_onnx(model: Model, bundle: Path, tmp_path: Path) -> None:
    model.save(tmp_path / "images.oax")
    with pytest.raises(BundleError, match="holds a model of images"):
        EmbeddingDetector.load(tmp_path / "images.oax")
    with pytest.raises(ExportError, match="this one scores feature vectors"):
        export_onnx(offaxis.load(bundle), tmp_path / "x.onnx")


# the shell and the service --------------------------------------------------------------------------------------------


def test_rows_of_a_file_are_scored_and_calibrated_in_the_shell(
    fitted: EmbeddingDetector, bundle: Path, tmp_path: Path
) -> None:
    rows = np.concatenate([draw(150, 6)[0], draw(5, 7, ood=True)[0]]).astype(np.float32)
    rows[2, 0] = np.nan
    np.save(tmp_path / "rows.npy", rows)
    done = run(app, ["score", str(bundle), str(tmp_path / "rows.npy"), "--out", str(tmp_path / "out.jsonl"), "--quiet"])
    assert done.exit_code == 0, done.output
    assert "154 feature vectors scored" in done.output
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["path"].rpartition("::")[2] for line in lines] == [str(n) for n in range(155)]
    assert "NaN or infinity" in lines[2].pop("error")
    expected = fitted.p_value(np.delete(rows, 2, 0))
    assert [line["p_value"] for n, line in enumerate(lines) if n != 2] == expected.tolist()
    assert not list(tmp_path.glob("*.png"))

    np.save(tmp_path / "broken.npy", np.full((2, rows.shape[1]), np.nan))
    done = run(app, ["score", str(bundle), str(tmp_path / "broken.npy"), "--out", str(tmp_path / "broken.jsonl")])
    assert isinstance(done.exception, DataError)  # none of the rows can be scored, and each has its reason
    assert (tmp_path / "broken.jsonl").read_text().count("Expected finite numbers") == 2
    np.save(tmp_path / "held_out.npy", draw(99, 8)[0])
    again = tmp_path / "again.oax"
    words = ["calibrate", str(bundle), str(tmp_path / "held_out.npy"), "--alpha", "0.01", "--out", str(again)]
    done = run(app, words)
    assert done.exit_code == 0, done.output
    assert EmbeddingDetector.load(again).alpha == 0.01
    np.save(tmp_path / "used.npy", draw(400, 0)[0])
    done = run(app, ["calibrate", str(bundle), str(tmp_path / "used.npy"), "--overwrite"])
    assert isinstance(done.exception, OverlapError)


def header(shape: str) -> bytes:
    """The start of a .npy file of bytes that says this of its shape."""
    return (
        b"\x93NUMPY\x01\x00\x76\x00"
        + f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(0x75)
        + b"\n"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not an array", "cannot be read"),
        (np.zeros(16), "holds an array of float64 of shape (16,)"),
        (b"PK\x05\x06" + bytes(18), "holds an archive of arrays"),
        (header("(10000000000000, 16)"), "cannot be read"),
        (None, "is no plain file"),
        (np.zeros((3, 5)), "Expected rows of 16 numbers"),
        (np.array([["a"] * 16] * 2), "holds an array of <U1 of shape (2, 16)"),
        (np.full((3, 16), np.nan), "the row has NaN or infinity"),
        (np.full((3, 16), np.inf), "the row has NaN or infinity"),
        (np.zeros((0, 16)), "it has no rows"),
        (np.zeros((9, 0)), "holds an array of float64 of shape (9, 0)"),
        (header("(1000000000000, 0)"), "of shape (1000000000000, 0)"),  # rows of no bytes, for a week
        (header("(4611686018427387904, 16)"), "cannot be read"),
    ],
)
def test_files_that_hold_no_rows_are_named_with_the_reason(
    bundle: Path, tmp_path: Path, content: Any, reason: str
) -> None:
    file = tmp_path / "rows.npy"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is None:
        os.mkfifo(file)
    else:
        np.save(file, content)
    done = run(app, ["score", str(bundle), str(file), "--format", "jsonl"])
    assert isinstance(done.exception, DataError), done.output
    assert "Nothing could be scored" in str(done.exception)
    assert reason in done.output


def test_a_file_without_rows_cannot_calibrate(bundle: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.zeros((0, 16)))
    done = run(app, ["calibrate", str(bundle), str(tmp_path / "none.npy"), "--out", str(tmp_path / "again.oax")])
    assert isinstance(done.exception, TooFewImagesError)
    assert not (tmp_path / "again.oax").exists()


def test_a_body_has_room_for_its_vectors_and_no_more(bundle: Path) -> None:
    """A body of 16 MB of empty lists takes a gigabyte once it is parsed."""
    with running(offaxis.load(bundle)) as (address, _):
        most = httpx.get(f"{address}/v1/model").json()["limits"]["body_bytes"]
        longest = json.dumps({"features": [[-1.2345678901234567e-100] * 16] * 32}, indent=8)
        assert len(longest) < most < 100_000
        sent = {"content-type": "application/json"}
        assert httpx.post(f"{address}/v1/predict", content=longest, headers=sent).status_code == 200
        lists = '{"features": [' + "[]," * 5_000_000 + "[]]}"
        reply = httpx.post(f"{address}/v1/predict", content=lists, headers=sent)
        assert (reply.status_code, reply.json()["error"]) == (413, f"A request may have {most:,} bytes at most.")


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_of_rows_that_shrinks_meanwhile_is_told(tmp_path: Path, order: Any) -> None:
    """A program that saves the file again truncates it first; memory that maps it would end this process with SIGBUS."""
    file = tmp_path / "rows.npy"
    rows = np.arange(400_000.0).reshape(25_000, 16)
    np.save(file, np.asarray(rows, order=order))
    assert np.concatenate([*read_rows(file)]).tolist() == rows.tolist()
    reading = read_rows(file)
    if order == "C":
        assert next(reading).tolist() == rows[: 2**13].tolist()
        os.truncate(file, 2**20 + 1000)
        with pytest.raises(DataError, match="became shorter while it was read"):
            list(reading)


def test_the_service_takes_vectors_as_json(fitted: EmbeddingDetector, bundle: Path) -> None:
    rows = np.concatenate([draw(3, 6)[0], draw(2, 7, ood=True)[0]])
    bad: list[Any] = [[0.0] * 5, "text", [*rows[0].tolist()[:-1], None]]
    with running(offaxis.load(bundle)) as (address, _):
        answer = httpx.post(f"{address}/v1/predict", json={"features": [*rows.tolist(), *bad]})
        assert answer.status_code == 200, answer.text
        records = answer.json()["predictions"]
        assert [r["p_value"] for r in records[:5]] == fitted.p_value(rows).tolist()
        assert [r["verdict"] for r in records[3:5]] == ["out-of-distribution"] * 2
        assert all("Expected" in record["error"] for record in records[5:])
        single = httpx.post(f"{address}/v1/predict", json={"features": rows[0].tolist()}).json()["predictions"]
        assert single[0]["p_value"] == records[0]["p_value"]
        assert httpx.get(f"{address}/v1/model").json()["preprocessing"] == {"features": 16}
        refused = {
            415: httpx.post(f"{address}/v1/predict", content=b"\x89PNG", headers={"content-type": "image/png"}),
            400: httpx.post(f"{address}/v1/predict", json={"rows": []}),
            413: httpx.post(f"{address}/v1/predict", json={"features": rows.tolist() * 20}),
        }
        for status, reply in refused.items():
            assert reply.status_code == status
            assert "feature" in reply.json()["error"]
