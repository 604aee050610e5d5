"""EmbeddingDetector: scikit-learn's contract, calibration, classes, no labels."""

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import offaxis
from offaxis import EmbeddingDetector
from offaxis.errors import (
    ArgumentError,
    CalibrationError,
    DataError,
    OverlapError,
    TooFewImagesError,
)
from tests.embeddings import CLASSES, WIDTH, Array, draw


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
    assert (estimator.predict(draw(1000, 1)[0]) == -1).mean() == pytest.approx(0.1, abs=0.05)
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
    with pytest.raises(DataError, match=r"the sparse X \(200, 16\).*TruncatedSVD"):
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
        with pytest.raises(ValueError, match="contains (NaN|infinity)"):
            call()
    with pytest.raises(DataError, match="leave such rows out"):
        fitted.to_model().predict(rows)


def test_another_number_of_features_is_refused(fitted: EmbeddingDetector) -> None:
    rows = draw(50, 0)[0][:, :-1]
    with pytest.raises(ValueError, match="15 features.*16 features"):
        fitted.p_value(rows)
    with pytest.raises(DataError, match="Expected rows of 16 numbers.*but got 15"):
        fitted.to_model().predict(rows)


def test_maps_are_refused() -> None:
    with pytest.raises(ValueError, match="Found array with dim 4"):
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
    with pytest.raises(ValueError, match="y should be a 1d array"):
        EmbeddingDetector().fit(draw(50, 0)[0], np.eye(4)[draw(50, 0)[1]])
    with pytest.raises(ValueError, match="could not convert string to float"):
        EmbeddingDetector().fit([["a word"], ["another"]])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
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
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        again.calibrate(rows, labels[:9])


@pytest.mark.parametrize("name", ["mahalanobis++", "vim", "two-cosines", "energy"])
def test_fit_alone_flags_about_as_many_new_rows_as_it_was_asked_to(name: str) -> None:
    """Scores of rows that were fitted to set an offset under which 25 to 44 % of new rows were unknown."""
    random = np.random.default_rng(0)
    centres = 2 * random.normal(size=(4, 40))
    y = random.integers(0, 4, size=1400)
    rows = centres[y] + random.normal(size=(1400, 40))
    fitted = EmbeddingDetector(name, random_state=0).fit(rows[:400], y[:400])
    assert (fitted.predict(rows[400:]) < 0).mean() == pytest.approx(0.05, abs=0.035)


def test_accuracy_is_the_score_of_a_grid_search() -> None:
    rows, y = load_iris(return_X_y=True)
    search = GridSearchCV(
        EmbeddingDetector("knn", random_state=0), {"detector": ["knn", "cosine"]}, cv=StratifiedKFold(3)
    ).fit(rows, y)
    assert search.best_score_ > 0.8
    found = search.best_estimator_
    assert found.score(rows, y) == np.mean(found.predict_class(rows) == y)
