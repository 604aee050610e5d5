"""EmbeddingDetector: scikit-learn's contract, calibration, classes, no labels, files, the shell and the service."""

import copy
import json
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from typer.testing import CliRunner

import offaxis
from offaxis import EmbeddingDetector, Model
from offaxis.cli import app
from offaxis.deploy.onnx import export_onnx
from offaxis.deploy.preprocessing import read_rows
from offaxis.errors import (
    ArgumentError,
    BundleError,
    CalibrationError,
    DataError,
    ExportError,
    OverlapError,
    TooFewImagesError,
)
from tests.hostile.damage import rewritten
from tests.server.serving import running

Array = NDArray[Any]
run = CliRunner().invoke
WIDTH, CLASSES = 16, 4


def draw(count: int, seed: int, ood: bool = False) -> tuple[Array, Array]:
    """Rows around the axes of some classes, or (OOD) around axes of others, with labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, count)
    rows = generator.normal(0, 0.5, (count, WIDTH))
    rows[np.arange(count), labels + (CLASSES if ood else 0)] += 4
    return rows, labels


@pytest.fixture(scope="module")
def fitted() -> EmbeddingDetector:
    return EmbeddingDetector(random_state=0).fit(*draw(400, 0)).calibrate(draw(200, 1)[0])


@pytest.fixture(scope="module")
def bundle(fitted: EmbeddingDetector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("bundle") / "rows.oax"
    fitted.save(path)
    return path


# scikit-learn ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # a head is trained some hundred times
@parametrize_with_checks([EmbeddingDetector(), EmbeddingDetector(detector="knn")])
@pytest.mark.filterwarnings("ignore::UserWarning")  # without labels the estimator says what it does instead
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_every_check_of_scikit_learn_passes(estimator: Any, check: Any) -> None:
    check(estimator)


def test_rows_that_cannot_be_written_to_are_taken_without_a_warning() -> None:
    rows = draw(40, 1)[0]
    rows.setflags(write=False)
    assert EmbeddingDetector(detector="knn").fit(rows).predict(rows).shape == (40,)


def test_larger_scores_mean_known_rows(fitted: EmbeddingDetector) -> None:
    known, unknown = draw(300, 2)[0], draw(300, 3, ood=True)[0]
    assert fitted.score_samples(known).min() > fitted.score_samples(unknown).max()
    assert offaxis.metrics.auroc(-fitted.score_samples(known), -fitted.score_samples(unknown)) == 1.0
    np.testing.assert_array_equal(fitted.predict(unknown), -1)
    assert (fitted.predict(known) == 1).mean() > 0.88


def test_decision_p_value_and_prediction_agree(fitted: EmbeddingDetector) -> None:
    rows = np.concatenate([draw(300, 4)[0], draw(50, 5, ood=True)[0]])
    decision = fitted.decision_function(rows)
    np.testing.assert_array_equal(fitted.predict(rows), np.where(decision >= 0, 1, -1))
    np.testing.assert_array_equal(fitted.p_value(rows) <= fitted.alpha, decision < 0)
    np.testing.assert_allclose(decision, fitted.score_samples(rows) - fitted.offset_)


def test_at_most_alpha_of_new_rows_are_called_unknown() -> None:
    rates = []
    for seed in range(40):
        estimator = EmbeddingDetector("knn", alpha=0.2).fit(draw(60, 3 * seed)[0])
        estimator.calibrate(draw(40, 3 * seed + 1)[0])
        rates.append((estimator.predict(draw(200, 3 * seed + 2)[0]) == -1).mean())
    exact = 8 / 41  # the largest share up to 0.2 that 40 calibration rows can give
    assert abs(np.mean(rates) - exact) < 3 * np.std(rates) / np.sqrt(len(rates)) < 0.05


def test_fit_alone_sets_an_offset_without_a_promise() -> None:
    rows, labels = draw(200, 0)
    estimator = EmbeddingDetector(alpha=0.1, random_state=0).fit(rows, labels)
    assert (estimator.predict(rows) == -1).mean() == pytest.approx(0.1, abs=0.01)
    for call in (estimator.p_value, lambda _: estimator.save("x.oax")):
        with pytest.raises(CalibrationError, match="call calibrate"):
            call(rows)


@pytest.mark.parametrize(("count", "width", "name"), [(1000, 256, "knn"), (60, 64, "knn"), (400, 64, "knn:k=3")])
def test_no_row_is_its_own_neighbour_where_the_offset_is_set(count: int, width: int, name: str) -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(10, width))
    rows = centres[generator.integers(0, 10, count + 500)] + generator.normal(size=(count + 500, width))
    estimator = EmbeddingDetector(name, alpha=0.1).fit(rows[:count])
    assert (estimator.predict(rows[count:]) == -1).mean() == pytest.approx(0.1, abs=0.06)
    nearest = NearestNeighbors(metric="cosine").fit(rows[:count])
    distances = nearest.kneighbors(n_neighbors=estimator.detector_.k)[0]  # of each row to all others
    scores = distances.mean(1) if estimator.detector_.average else np.sqrt(2 * distances[:, -1])
    assert estimator.offset_ == pytest.approx(np.quantile(-scores, 0.1), abs=1e-5)


def test_the_offset_of_a_sampled_bank_is_that_of_rows_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offaxis.embeddings.BANK", 300)
    estimator = EmbeddingDetector("knn", random_state=0).fit(draw(400, 0)[0])
    assert estimator.detector_.state_dict()["bank"].shape == (300, WIDTH)
    assert (estimator.predict(draw(1000, 1)[0]) == -1).mean() == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize("name", ["knn", "knn:k=2", "knn:k=2:average=True"])
def test_two_rows_are_enough_for_neighbours(name: str) -> None:
    assert np.isfinite(EmbeddingDetector(name).fit(np.eye(2)).offset_)


def test_the_same_seed_gives_the_same_scores() -> None:
    rows, labels = draw(100, 0)
    first, second, other = (EmbeddingDetector(random_state=s).fit(rows, labels).score_samples(rows) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("names", [["a", "b", "c", "d"], [7, 3, 9, -1]])
def test_classes_are_those_of_the_labels(names: list[Any], tmp_path: Path) -> None:
    rows, labels = draw(300, 0)
    estimator = EmbeddingDetector(random_state=0).fit(rows, np.array(names)[labels]).calibrate(draw(99, 1)[0])
    new, expected = draw(100, 2)
    assert (estimator.predict_class(new) == np.array(names)[expected]).mean() > 0.98
    estimator.save(tmp_path / "x.oax")
    again = EmbeddingDetector.load(tmp_path / "x.oax")
    np.testing.assert_array_equal(again.predict_class(new), estimator.predict_class(new))
    assert again.classes_.dtype == estimator.classes_.dtype


def test_it_works_in_a_pipeline_and_with_tensors() -> None:
    rows, labels = draw(200, 0)
    pipeline = make_pipeline(StandardScaler(), EmbeddingDetector(random_state=0)).fit(rows * 1e6, labels)
    assert pipeline.predict(rows * 1e6).shape == (200,)
    pipeline[-1].calibrate(pipeline[:-1].transform(draw(99, 1)[0] * 1e6))
    assert (pipeline.predict(draw(99, 2)[0] * 1e6) == 1).mean() > 0.8
    tensors = EmbeddingDetector(random_state=0).fit(torch.from_numpy(rows).float(), torch.from_numpy(labels))
    assert tensors.score_samples(torch.from_numpy(rows).float()).dtype == np.float64


def test_sparse_rows_score_as_arrays_do(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.where(np.abs(draw(200, 0)[0]) < 0.5, 0, draw(200, 0)[0])
    dense = EmbeddingDetector("knn").fit(rows)
    sparse = EmbeddingDetector("knn").fit(csr_array(rows))
    np.testing.assert_array_equal(sparse.score_samples(csr_array(rows[:5])), dense.score_samples(rows[:5]))
    monkeypatch.setattr("offaxis.embeddings.DENSE_BYTES", 1000)
    with pytest.raises(DataError, match=r"the sparse X \(200 x 16\).*TruncatedSVD"):
        EmbeddingDetector("knn").fit(csr_array(rows))


def test_neighbours_are_averaged_as_cleanlab_does() -> None:
    rows, new = draw(400, 0)[0], draw(50, 1)[0]
    found = NearestNeighbors(n_neighbors=10, metric="cosine").fit(rows).kneighbors(new)[0].mean(1)
    np.testing.assert_allclose(EmbeddingDetector("knn").fit(rows).score_samples(new), -found, rtol=0, atol=1e-6)
    kth = EmbeddingDetector("knn:average=False").fit(rows).detector_
    assert kth.arguments == {"k": 10, "search": "auto", "average": False}
    third = EmbeddingDetector("knn:k=3").fit(rows).detector_
    assert third.arguments == {"k": 3, "search": "auto", "average": False}


@pytest.mark.parametrize("factor", [1e-30, 1e6, 1e200])
def test_units_do_not_matter(factor: float, fitted: EmbeddingDetector) -> None:
    rows, labels = draw(400, 0)
    scaled = EmbeddingDetector(random_state=0).fit(rows * factor, labels)
    new = draw(50, 3)[0]
    np.testing.assert_allclose(scaled.score_samples(new * factor), fitted.score_samples(new), atol=0.02)


# detectors ------------------------------------------------------------------------------------------------------------

SUPPORTED = [
    "cosine",
    "two-cosines",
    "mean-cosine",
    "knn",
    "knn:k=3",
    "energy",
    "vim",
    "fdbd",
    "relative-mahalanobis",
    "mahalanobis++",
]


@pytest.mark.parametrize("name", SUPPORTED)
def test_detectors_of_features_logits_and_cosines_work(name: str, tmp_path: Path) -> None:
    estimator = EmbeddingDetector(name, random_state=0).fit(*draw(200, 0)).calibrate(draw(99, 1)[0])
    known, unknown = draw(100, 2)[0], draw(100, 3, ood=True)[0]
    assert offaxis.metrics.auroc(-estimator.score_samples(known), -estimator.score_samples(unknown)) > 0.7
    assert estimator.detector_.name == name.partition(":")[0]
    estimator.save(tmp_path / "x.oax")
    again = EmbeddingDetector.load(tmp_path / "x.oax")
    np.testing.assert_array_equal(again.score_samples(known), estimator.score_samples(known))


@pytest.mark.parametrize(("name", "reads"), [("odin", "images"), ("leave-out", "images")])
def test_what_rows_do_not_have_is_refused(name: str, reads: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} reads {reads}, which feature vectors do not have"):
        EmbeddingDetector(name).fit(*draw(50, 0))


def test_an_unknown_detector_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Expected a detector out of"):
        EmbeddingDetector("nothing").fit(*draw(50, 0))


# without labels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [None, np.zeros(400), np.full(400, 7), np.full(400, "unlabelled")])
def test_without_classes_it_says_what_it_does_instead(labels: Array | None, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"two-cosines needs at least two classes but got .*: knn takes its place"):
        estimator = EmbeddingDetector(random_state=0).fit(draw(400, 0)[0], labels)
    assert estimator.detector_.name == "knn"
    estimator.calibrate(draw(200, 1)[0])
    unknown = draw(100, 3, ood=True)[0]
    assert (estimator.predict(unknown) == -1).all()
    with pytest.raises(ArgumentError, match=r"fit\(X, y\)"):
        estimator.predict_class(unknown)
    estimator.save(tmp_path / "x.oax")
    again = EmbeddingDetector.load(tmp_path / "x.oax")
    np.testing.assert_array_equal(again.p_value(unknown), estimator.p_value(unknown))
    assert again.classes_.tolist() == estimator.classes_.tolist() == ([] if labels is None else labels[:1].tolist())
    assert again.classes_.dtype == estimator.classes_.dtype
    prediction = offaxis.load(tmp_path / "x.oax").predict(unknown)[0]
    assert prediction.verdict == "out-of-distribution"


@pytest.mark.parametrize("name", ["knn", "mahalanobis++", "mean-cosine"])
def test_detectors_that_need_no_labels_are_kept(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EmbeddingDetector(name).fit(draw(100, 0)[0]).detector_.name == name


# wrong use ------------------------------------------------------------------------------------------------------------


def test_an_unfitted_estimator_is_refused() -> None:
    for name in ("calibrate", "p_value", "score_samples", "predict", "predict_class"):
        with pytest.raises(NotFittedError, match="Call 'fit'"):
            getattr(EmbeddingDetector(), name)(draw(10, 0)[0])
    with pytest.raises(NotFittedError, match="Call 'fit'"):
        EmbeddingDetector().save("x.oax")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused(fitted: EmbeddingDetector, bad: float) -> None:
    rows, labels = draw(50, 0)
    rows[3, 4] = bad
    for call in (
        lambda: EmbeddingDetector().fit(rows, labels),
        lambda: fitted.predict(rows),
        lambda: fitted.calibrate(rows),
    ):
        with pytest.raises(ValueError, match=r"NaN or infinity in 1 rows \(3\): leave these rows out"):
            call()
    with pytest.raises(DataError, match="leave such rows out"):
        fitted.to_model().predict(rows)


def test_another_number_of_features_is_refused(fitted: EmbeddingDetector) -> None:
    rows = draw(50, 0)[0][:, :-1]
    with pytest.raises(ValueError, match="15 features.*16 features.*whose features were fitted to"):
        fitted.p_value(rows)
    with pytest.raises(DataError, match="Expected rows of 16 numbers.*but got 15"):
        fitted.to_model().predict(rows)


def test_maps_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"Flatten maps, X\.reshape"):
        EmbeddingDetector().fit(np.zeros((20, 4, 1, 1)))


def test_training_rows_are_refused_for_calibration(fitted: EmbeddingDetector, bundle: Path) -> None:
    rows = draw(400, 0)[0]
    with pytest.raises(OverlapError, match="400 of the 400 calibration rows were used before.*calibrate on other rows"):
        fitted.calibrate(rows)
    mixed = np.concatenate([rows[:20], draw(180, 1)[0]])
    with pytest.raises(OverlapError, match="20 of the 200"):
        fitted.calibrate(mixed)
    for model in (fitted.to_model(), offaxis.load(bundle)):
        with pytest.raises(OverlapError, match="20 of the 200"):
            model.recalibrated(mixed)


def test_copies_that_are_in_the_data_itself_are_allowed() -> None:
    generator = np.random.default_rng(0)
    phrases = draw(60, 0)[0]
    train, held_out = (phrases[generator.integers(0, 60, count)] for count in (300, 200))
    with pytest.warns(UserWarning, match="knn takes its place"):
        estimator = EmbeddingDetector().fit(train)
    assert estimator.calibrate(held_out).calibration_ is not None


def test_too_few_rows_and_bad_labels_are_refused(fitted: EmbeddingDetector) -> None:
    with pytest.raises(TooFewImagesError, match="at least 19 calibration rows .* Add rows"):
        fitted.calibrate(draw(18, 1)[0])
    with pytest.raises(ValueError, match=r"One-hot rows become labels with y\.argmax\(1\)"):
        EmbeddingDetector().fit(draw(50, 0)[0], np.eye(4)[draw(50, 0)[1]])
    with pytest.raises(ValueError, match="Make numbers of texts first"):
        EmbeddingDetector().fit([["a word"], ["another"]])
    with pytest.raises(ValueError, match="for each of 50 rows of X but got 49"):
        EmbeddingDetector().fit(draw(50, 0)[0], np.zeros(49, int))
    with pytest.raises(ValueError, match="Unknown label type"):
        EmbeddingDetector().fit(draw(50, 0)[0], np.linspace(0, 1, 50))
    with pytest.raises(ArgumentError, match="alpha"):
        EmbeddingDetector(alpha=2.0).fit(*draw(50, 0))


def test_labels_of_calibration_rows_give_the_accuracy(fitted: EmbeddingDetector) -> None:
    rows, labels = draw(99, 8)
    again = copy.deepcopy(fitted)
    assert again.calibrate(rows).to_model().calibration.accuracy is None
    threshold = again.offset_
    wrong = np.where(np.arange(99) < 33, (labels + 1) % CLASSES, labels)
    assert again.calibrate(rows, wrong).to_model().calibration.accuracy == pytest.approx(2 / 3, abs=0.03)
    assert again.offset_ == threshold
    with pytest.raises(DataError, match="of the 4 classes that were fitted to but y has 9 too"):
        again.calibrate(rows, np.where(labels == 0, 9, labels))
    with pytest.raises(ValueError, match="for each of 99 rows"):
        again.calibrate(rows, labels[:9])


# files ----------------------------------------------------------------------------------------------------------------


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
    done = run(app, ["calibrate", str(bundle), str(tmp_path / "used.npy")])
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
        (np.zeros(16), "holds an array of shape (16,)"),
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
