"""Detect out-of-distribution rows among feature vectors of any model and any modality, as a scikit-learn estimator."""

import copy
import math
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import Tags, check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from offaxis.bundle import load as load_bundle
from offaxis.calibration.calibration import Calibration, calibrate
from offaxis.calibration.conformal import Floats, check_alpha, check_count
from offaxis.data.images import hash_batch, pack_hashes, unpack_hashes
from offaxis.data.transforms import VectorInput
from offaxis.detectors import Detector, Reads
from offaxis.detectors.base import ScoredBatches, score_batches
from offaxis.detectors.knn import KNN
from offaxis.detectors.registry import make_detector
from offaxis.errors import ArgumentError, BundleError, CalibrationError, DataError
from offaxis.heads import Head, HeadName, LinearHead
from offaxis.heads.linear import NoClassesHead
from offaxis.model import Model, today, versions
from offaxis.networks.classifier import Classifier, FeatureInput
from offaxis.networks.run import one_thread, stream
from offaxis.training.features import train_head

BATCH = 4096  # rows that are scored together
LARGE = 10_000  # more rows than these are trained on in batches of LARGE_BATCH, ROWS_SEEN of them in all
LARGE_BATCH, ROWS_SEEN = 1024, 400_000
NEIGHBOURS, BANK = 10, 20_000  # of knn where no k is named: neighbours (fewer below 100 rows), among so many rows
OFFSET_ROWS = 2000  # rows whose scores set the threshold of fit(), of a detector that finds rows by their neighbours
FOLDS, HELD_OUT = 3, 100  # of any other: of three folds as many as give so many rows that it was not fitted to
DENSE_BYTES = 4 * 2**30  # a sparse matrix that would be larger than this as an array is refused
UNLABELLED = "knn"  # the detector where there are no labels and the requested one needs them
NO_CLASSES = ("unlabelled",)  # what a bundle calls the classes where there are no labels


class EmbeddingDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Tell whether feature vectors are like those that the estimator was fitted to.

    The vectors come from any model and any modality: DINO or CLIP embeddings of images, TF-IDF or embeddings of texts, of
    sounds. As in scikit-learn, and unlike everywhere else in offaxis, **larger scores mean in-distribution**:
    ``score_samples`` and ``decision_function`` are larger for known rows, and ``predict`` gives +1 for known and -1 for
    unknown ones.

    ``fit`` sets the threshold ``offset_`` at the ``alpha`` quantile of the scores of rows that head and detector were fitted
    without, by folds (for ``"knn"`` a row is not its own neighbour). ``calibrate`` on ID rows that were not fitted to makes a
    promise: of new ID rows at most the share ``alpha`` is called unknown, on average over calibration sets; only then are
    there p-values.

    Cosines depend on the origin and the units of the features. Embeddings of neural networks and TF-IDF are good as they
    are; columns in different units, as in a table, want a ``StandardScaler`` before.

    Args:
        detector: a name out of ``offaxis.detectors.DETECTORS``, perhaps with arguments as in ``"knn:k=20"``, that reads
            features, logits or cosines. ``"knn"`` without a k is the mean cosine distance to the 10 nearest of 20,000 rows
            at most, drawn at random: as good as all of them, and faster. With labels a head is trained on X: a cosine head,
            or a linear one where the detector reads logits. Without labels (or with a single class) ``"knn"`` takes the
            place of a detector that needs classes, with a warning.
        alpha: the share of new ID rows that may be called unknown.
        random_state: of the head's first weights and of the order of the rows in its training.

    Attributes:
        classes_: the classes of y, in the order of the logits; empty without labels.
        detector_: the fitted detector, whose own scores are larger for unknown rows.
        network_: the head that was trained on X, as a Classifier.
        offset_: the threshold of ``score_samples``; a row with a smaller score is called unknown.
        calibration_: what ``calibrate`` computed; None before.
        n_features_in_: d.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> known = EmbeddingDetector(random_state=0).fit(X[::2], y[::2]).calibrate(X[1::2])
        >>> known.predict([[5.0, 3.4, 1.5, 0.2], [0.2, 9.0, 0.1, 7.0]])
        array([ 1, -1])
    """

    def __init__(
        self,
        detector: str = "two-cosines",
        alpha: float = 0.05,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.detector = detector
        self.alpha = alpha
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # fitting and calibration ------------------------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:  # noqa: N803 - scikit-learn's
        """Fit the detector, and train a head where there are labels.

        Args:
            X: features (N, d), finite; a sparse matrix, such as TF-IDF's, becomes an array.
            y: labels (N,), numbers or names; None where there are none.

        Raises:
            ValueError: X is not finite or not (N, d), or y does not fit.
            ArgumentError: there is no such detector, or it reads what feature vectors do not have.
        """
        check_alpha(self.alpha)
        rows = self._validated(X, ensure_min_samples=2)
        with _threads_for(rows):
            return self._fit(rows, y)

    def _fit(self, rows: Tensor, y: ArrayLike | None) -> Self:
        self.classes_, labels = np.empty(0, np.int64), torch.zeros(len(rows), dtype=torch.long)
        if y is not None:
            self.classes_, numbers = np.unique(_label_column(y, rows), return_inverse=True)
            labels = torch.from_numpy(numbers.astype(np.int64))
        detector = self._make_detector(len(rows))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        sampled = isinstance(detector, KNN) and len(rows) > BANK and ":k=" not in str(self.detector)
        seen = order[:BANK] if sampled else order
        kept = seen.sort().values if sampled else slice(None)
        folds = [] if isinstance(detector, KNN) else _folds(labels, order)
        held_out = [self._scores_without(fold, copy.deepcopy(detector), rows, labels, seed) for fold in folds]
        network = self._make_network(detector, rows, labels, seed)
        detector.fit(network, zip(rows[kept].split(BATCH), labels[kept].split(BATCH), strict=True))
        self.network_, self.detector_ = network, detector
        self.calibration_: Calibration | None = None
        self._used = pack_hashes(hash_batch(rows), distinct=False)
        scores = np.concatenate(held_out) if held_out else self._fitted_scores(rows[seen[-OFFSET_ROWS:]])
        self.offset_ = float(np.quantile(-scores, self.alpha))
        return self

    def _scores_without(self, fold: Tensor, detector: Detector, rows: Tensor, labels: Tensor, seed: int) -> Floats:
        """Compute the scores of the rows of a fold by a head and a detector that were fitted to the others."""
        others = torch.ones(len(rows), dtype=torch.bool)
        others[fold] = False
        network = self._make_network(detector, rows[others], labels[others], seed)
        detector.fit(network, zip(rows[others].split(BATCH), labels[others].split(BATCH), strict=True))
        return score_batches(network, rows[fold].split(BATCH), detector).scores

    def calibrate(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:  # noqa: N803 - scikit-learn's
        """Calibrate on ID features X (n, d) that were not fitted to.

        Args:
            X: features (n, d), finite.
            y: labels (n,); not needed. With them ``calibration_.accuracy`` is the share whose class is predicted.

        Raises:
            OverlapError: rows of X were fitted to.
            TooFewImagesError: fewer than ceil(1 / alpha) - 1 rows.
            DataError: a class of y was not fitted to.
        """
        rows = self._rows(X)
        check_count(len(rows), check_alpha(self.alpha), what="rows")
        data: Any = rows
        if y is not None and len(self.classes_) > 1:
            column = _label_column(y, rows)
            others = np.setdiff1d(column, self.classes_)
            if len(others):
                raise DataError(
                    f"Expected calibration rows of the {len(self.classes_)} classes that were fitted to but y has {others[0]} "
                    "too: leave rows of other classes out, they are no ID rows, or fit with them."
                )
            data = (rows, np.searchsorted(self.classes_, column))
        used = [unpack_hashes(self._used)]
        self._calibration_date = today()
        with _threads_for(rows):
            self.calibration_ = calibrate(self.network_, data, None, self.detector_, alpha=self.alpha, used=used)
        self.offset_ = -self.calibration_.threshold()
        return self

    # scoring ----------------------------------------------------------------------------------------------------------

    def score_samples(self, X: ArrayLike) -> Floats:  # noqa: N803 - scikit-learn's
        """Compute the scores (N,) of features X (N, d), the detector's negated: larger = in-distribution."""
        return -self._scored(self._rows(X)).scores

    def decision_function(self, X: ArrayLike) -> Floats:  # noqa: N803 - scikit-learn's
        """Compute ``score_samples(X) - offset_`` (N,): negative for unknown rows."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:  # noqa: N803 - scikit-learn's
        """Return +1 for known and -1 for unknown rows (N,): the sign of ``decision_function``."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def p_value(self, X: ArrayLike) -> Floats:  # noqa: N803 - scikit-learn's
        """Compute conformal p-values (N,) in (0, 1]: small = out-of-distribution.

        Raises:
            CalibrationError: ``calibrate`` has not been called.
        """
        rows = self._rows(X)
        return self._calibrated().p_values(self._scored(rows).scores)

    def score(self, X: ArrayLike, y: ArrayLike) -> float:  # noqa: N803 - scikit-learn's
        """Return the share of rows X (N, d) whose class in y (N,) is predicted.

        Beside it GridSearchCV wants a ``StratifiedKFold``, as estimators of this kind get folds in the order of the rows.
        """
        rows = self._rows(X)
        return float(np.mean(self.predict_class(X) == _label_column(y, rows)))

    def predict_class(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803 - scikit-learn's
        """Return the most probable class (N,) of each row, known or not.

        Raises:
            ArgumentError: there were no labels, or one class alone.
        """
        rows = self._rows(X)
        if len(self.classes_) < 2:
            raise ArgumentError(
                "Expected classes to predict but the estimator was fitted without labels, or with a single class: fit(X, y) "
                "with the class of each row."
            )
        return np.take(self.classes_, self._scored(rows).predicted)

    # files ------------------------------------------------------------------------------------------------------------

    def to_model(self) -> Model:
        """Return the calibrated estimator as the Model that bundles hold, whose ``predict`` gives verdicts.

        Raises:
            CalibrationError: ``calibrate`` has not been called.
        """
        check_is_fitted(self)
        calibration = self._calibrated()
        return Model(
            network=self.network_,
            preprocessing=VectorInput(self.n_features_in_),
            classes=tuple(str(name) for name in self.classes_) or NO_CLASSES,
            detector=self.detector_,
            calibration=calibration,
            provenance={
                "versions": versions(),
                "kind": "embeddings",
                "estimator": {"detector": self.detector, "class_type": self.classes_.dtype.str},
                "calibration_set": {"name": "feature vectors", "images": len(calibration.scores), "fingerprint": None},
                "calibration_date": self._calibration_date,
            },
            used=self._used,
        )

    def save(self, path: str | Path) -> None:
        """Write the calibrated estimator as a bundle, usually ``x.oax``: safetensors and JSON, no pickle.

        ``offaxis score x.oax features.npy``, ``offaxis serve x.oax`` and ``offaxis.load`` take it too.

        Raises:
            CalibrationError: ``calibrate`` has not been called.
            BundleError: the detector is not registered, or cannot be saved.
            StorageError: the file cannot be written.
        """
        self.to_model().save(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a bundle that ``save`` wrote.

        Raises:
            BundleError: it is absent or damaged, or holds a model of images.
        """
        model = load_bundle(path)
        if not isinstance(model.preprocessing, VectorInput) or not isinstance(model.network, Classifier):
            raise BundleError(
                f"Expected a bundle of an EmbeddingDetector but {path} holds a model of images: offaxis.load."
            )
        try:
            saved = model.provenance["estimator"]
            estimator = cls(saved["detector"], model.calibration.alpha)
            dtype = np.dtype(saved["class_type"])
            names = () if model.classes == NO_CLASSES and dtype.kind == "i" else model.classes  # no number is called so
            estimator.classes_ = _typed(np.array(names, str), dtype)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BundleError(f"{path} does not say what its estimator was ({error}): save it again.") from error
        estimator.n_features_in_ = model.preprocessing.size
        estimator.network_, estimator.detector_ = model.network, model.detector
        estimator.calibration_, estimator._used = model.calibration, model.used
        estimator._calibration_date = str(model.provenance.get("calibration_date", "unknown"))
        estimator.offset_ = -model.calibration.threshold()
        return estimator

    # ------------------------------------------------------------------------------------------------------------------

    def _calibrated(self) -> Calibration:
        if self.calibration_ is None:
            raise CalibrationError(
                "Expected a calibrated estimator but only fit() has been called, which promises nothing: call calibrate(X) "
                "with ID rows that were not fitted to."
            )
        return self.calibration_

    def _make_detector(self, count: int) -> Detector:
        """Make the detector, or the one that needs no labels where there are none."""
        text = str(self.detector)
        anything = Classifier(FeatureInput(), LinearHead(self.n_features_in_, 2))
        detector = make_detector(text, anything)
        if detector.reads is not Reads.OUTPUTS:
            raise ArgumentError(
                f"Expected a detector that reads features, logits or cosines but {detector.name} reads {detector.reads.value}, "
                "which feature vectors do not have: two-cosines, mean-cosine, knn, mahalanobis++ and others do without."
            )
        if len(self.classes_) < 2 and _needs_classes(detector):
            came = "one class alone" if len(self.classes_) else "no labels"
            warnings.warn(
                f"The detector {detector.name} needs at least two classes but got {came}: {UNLABELLED} takes its place. Give "
                f"the classes, fit(X, y), or choose detector={UNLABELLED!r}.",
                UserWarning,
                stacklevel=4,
            )
            text, detector = UNLABELLED, make_detector(UNLABELLED, anything)
        if isinstance(detector, KNN) and ":k=" not in text:
            average = detector.average or ":average=" not in text
            detector = KNN(min(NEIGHBOURS, max(1, count // 10)), detector.search, average)
        return detector

    def _make_network(self, detector: Detector, rows: Tensor, labels: Tensor, seed: int) -> Classifier:
        """Train the head that the detector and ``predict_class`` read."""
        largest = max(-float(rows.min()), float(rows.max())) or 1.0
        scale = largest if largest > 1e100 or largest < 1e-100 else 1.0  # squares stay in range
        norm = float(torch.linalg.vector_norm(rows / scale if scale != 1.0 else rows))
        backbone = FeatureInput(scale * norm / math.sqrt(rows.numel()) or 1.0)
        if len(self.classes_) < 2:
            head: Head = NoClassesHead(rows.shape[1])
        else:
            uses = {*detector.uses, *(["logits"] if hasattr(detector, "head") else [])}
            kind: HeadName = "linear" if "logits" in uses and not {"cosine", "scale"} & uses else "cosine"
            quick = {"epochs": max(1, round(ROWS_SEEN / len(rows))), "batch_size": LARGE_BATCH}
            pace: dict[str, Any] = quick if len(rows) > LARGE else {}
            features = backbone(rows).float()
            head = train_head(features, labels, head=kind, num_classes=len(self.classes_), seed=seed, **pace)
        dtype = torch.float32 if isinstance(detector, KNN) else torch.float64  # a bank is large; sums want precision
        return Classifier(backbone, head).to(dtype).eval()

    def _rows(self, X: ArrayLike) -> Tensor:  # noqa: N803 - scikit-learn's
        check_is_fitted(self)
        return self._validated(X, reset=False)

    def _validated(self, X: ArrayLike, **options: Any) -> Tensor:  # noqa: N803 - scikit-learn's
        """Return the rows (N, d) as scikit-learn checks them."""
        rows = validate_data(self, X, dtype=np.float64, order="C", accept_sparse=True, **options)
        if issparse(rows):
            size = 8 * rows.shape[0] * rows.shape[1]
            if size > DENSE_BYTES:
                raise DataError(
                    f"Expected features that fit into memory but the sparse X {rows.shape} takes {size / 2**30:.0f} GB as an "
                    "array: reduce its columns first, sklearn.decomposition.TruncatedSVD(300), or give fewer rows at a time."
                )
            rows = rows.toarray()
        return torch.from_numpy(np.require(rows, requirements="W"))  # a tensor of a read-only array is undefined

    def _scored(self, rows: Tensor) -> ScoredBatches:
        with _threads_for(rows):
            return score_batches(self.network_, rows.split(BATCH), self.detector_)

    def _fitted_scores(self, rows: Tensor) -> Floats:
        """Compute the detector's scores (N,) of rows that it was fitted to."""
        if not isinstance(self.detector_, KNN):
            return self._scored(rows).scores
        batches = ((part, part.new_zeros(len(part), dtype=torch.long)) for part in rows.split(BATCH))
        parts = [self.detector_.scores_of_fitted(outputs).double() for outputs, _ in stream(self.network_, batches)]
        return torch.cat(parts).numpy()


def _folds(labels: Tensor, order: Tensor) -> list[Tensor]:
    """Return the places of the rows to hold out together: a third of each class, and so many thirds as are needed."""
    ordered = order[labels[order].argsort(stable=True)]
    several = ordered[labels.bincount()[labels[ordered]] > 1]  # the only row of a class is needed
    folds = [several[start::FOLDS] for start in range(FOLDS)] if len(several) > 2 * FOLDS else []
    return folds[: math.ceil(HELD_OUT / len(folds[0]))] if folds else []


def _threads_for(rows: Tensor) -> AbstractContextManager[None]:
    """Return the context that computes on few rows (N, d) with one thread; their covariance is the largest operation."""
    return one_thread(rows.numel() * rows.shape[1])


def _label_column(y: ArrayLike, rows: Tensor) -> NDArray[Any]:
    """Return the labels of rows as (N,), as scikit-learn checks them."""
    column = column_or_1d(y, warn=True)
    check_classification_targets(column)
    check_consistent_length(rows, column)
    return np.asarray(column)


def _needs_classes(detector: Detector) -> bool:
    """Return whether scores mean nothing without classes: it reads more than features, or compares classes with all rows."""
    return set(detector.uses) != {"features"} or hasattr(detector, "head") or getattr(detector, "relative", False)


def _typed(names: NDArray[np.str_], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the names of classes in the type that the labels had."""
    if dtype.kind == "U":
        return names  # whose length need not be believed
    if dtype.kind == "b":
        return np.asarray(names == "True")
    if dtype.kind not in "iufMO":
        raise ValueError(f"classes of the type {dtype}")
    return names.astype(dtype)
