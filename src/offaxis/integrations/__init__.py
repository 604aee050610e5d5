"""Calibration inside the training loops of others: what the callbacks for Lightning and for Hugging Face's Trainer share."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from offaxis.calibration.conformal import check_alpha
from offaxis.data.adapt import as_batches, is_loader
from offaxis.data.transforms import Preprocessing
from offaxis.detectors import Detector
from offaxis.detectors.base import score_batches
from offaxis.detectors.registry import as_detector, find_detector, parse_detector
from offaxis.errors import ArgumentError, DataError, OverlapError, StorageError
from offaxis.files import is_regular
from offaxis.metrics import auroc
from offaxis.model import Model
from offaxis.networks.combine import find_network


class LoopCalibration:
    """AUROC on given OOD images after each epoch, and a calibrated Model at the end of training.

    Args:
        calibration: a DataLoader of normalised ID images that are not trained on, with labels or without.
        preprocessing: size, mean and standard deviation of the loader's images, so that the Model can take files:
            ``Preprocessing((3, 224, 224), Normalise(mean, std))``.
        ood: name -> DataLoader of normalised OOD images, whose AUROC is logged as ``ood_auroc/NAME`` after each epoch.
        detector: a name such as ``"two-cosines"`` or a Detector; None is the network's default, such as the cosine.
        fit: the DataLoader that a detector is fitted on, where it must be; None is the training loader of the loop.
        alpha: the share of new ID images that may be flagged.
        per_class: whether verdicts are to hold for each predicted class.
        classes: the names of the classes; numbers where there are none.
        path: where the Model is saved at the end, usually ``x.oax``; None keeps it in ``model`` alone.

    Attributes:
        model: the calibrated Model, once training has ended.
        history: for each epoch, the AUROCs by ``ood_auroc/NAME``, in [0, 1].
        tried: whether the network was calibrated once.

    Raises:
        ArgumentError: ``preprocessing`` is none, there is no such detector, or alpha is not between 0 and 1.
        DataError: images are not given as a DataLoader.
        StorageError: nothing can be written to ``path``.
    """

    def __init__(
        self,
        calibration: Any,
        *,
        preprocessing: Preprocessing,
        ood: Mapping[str, Any] | None = None,
        detector: Detector | str | None = None,
        fit: Any = None,
        alpha: float = 0.05,
        per_class: bool = False,
        classes: Sequence[str] = (),
        path: str | Path | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(preprocessing, Preprocessing):
            raise ArgumentError(
                f"Expected `preprocessing`, size, mean and std of the loader's images, but got a "
                f"{type(preprocessing).__name__}: offaxis.data.Preprocessing((3, 224, 224), Normalise(mean, std))."
            )
        loaders = {"calibration": calibration, **(ood or {}), **({} if fit is None else {"fit": fit})}
        for name, loader in loaders.items():
            if not is_loader(loader):
                raise DataError(
                    f"Expected a DataLoader of normalised images for {name} but got a {type(loader).__name__}: "
                    "torch.utils.data.DataLoader(dataset, batch_size=64)."
                )
        if isinstance(detector, str):
            find_detector(parse_detector(detector)[0])
        check_alpha(alpha)
        if path is not None:
            _check_writable(Path(path))
        self.calibration, self.preprocessing, self.ood, self.fit_on = calibration, preprocessing, dict(ood or {}), fit
        self.detector = detector
        self.alpha, self.per_class, self.classes, self.path = alpha, per_class, tuple(classes), path
        self.model: Model | None = None
        self.history: list[dict[str, float]] = []
        self.tried = False

    def evaluate(self, module: nn.Module, training: Any = None) -> dict[str, float]:
        """Compute the AUROC on each OOD loader against the calibration images, and add them to ``history``.

        For that it calibrates, without OOD loaders the first time alone: what would stop ``calibrate`` stops training after
        the first epoch, not after the last.

        Args:
            module: the module that is trained, with a Classifier of ``offaxis.attach`` in it.
            training: the training loader, for a detector that must be fitted.

        Returns:
            By ``ood_auroc/NAME``, each in [0, 1]; empty without OOD loaders.

        Raises:
            OverlapError: the calibration loader reads the training images.
            ArgumentError: there are other classes than names of them, no such detector, or nothing to fit it on.
            DetectorError: the detector cannot score such a network.
            TooFewImagesError: fewer than ceil(1 / alpha) - 1 calibration images.
        """
        if self.tried and not self.ood:
            return {}
        model = self._calibrated(module, training, compare=False)
        self.tried = True
        values = {
            f"ood_auroc/{name}": auroc(
                model.calibration.scores,
                score_batches(model.network, as_batches(loader, None, 0), model.detector).scores,
            )
            for name, loader in self.ood.items()
        }
        if values:
            self.history.append(values)
        return values

    def calibrate(self, module: nn.Module, training: Any = None) -> Model:
        """Fit the detector where it must be, calibrate, and save where a path was given; call it again for other weights.

        Args:
            module: the trained module, with a Classifier of ``offaxis.attach`` in it.
            training: the training loader, for a detector that must be fitted.

        Raises:
            TooFewImagesError: fewer than ceil(1 / alpha) - 1 calibration images.
            OverlapError: calibration images are among those that the detector was fitted on, or were trained on.
        """
        self.model = self._calibrated(module, training, compare=True)
        if self.path is not None:
            self.model.save(self.path)
        return self.model

    def _calibrated(self, module: nn.Module, training: Any, *, compare: bool) -> Model:
        """Fit the detector where it must be, and calibrate; ``compare`` looks for calibration images among those of fitting."""
        fit_on = training if self.fit_on is None else self.fit_on
        own = getattr(self.calibration, "dataset", self.calibration)
        if any(getattr(loader, "dataset", loader) is own for loader in (training, self.fit_on)):
            raise OverlapError(
                "Expected calibration images that are not trained on but both DataLoaders read the same dataset: divide it, "
                "torch.utils.data.random_split(dataset, [0.9, 0.1]), and calibrate on the smaller part."
            )
        network = find_network(module)
        detector = as_detector(self.detector, network, self.preprocessing.normalise.std)
        detector.check_network(network)
        if detector.needs_fit:
            if fit_on is None:
                raise ArgumentError(
                    f"Expected the loader that {detector.name} is fitted on, for there is no training loader here: give "
                    "fit=DataLoader(...)."
                )
            detector.fit(network, fit_on)
        return Model.calibrated(
            network,
            self.calibration,
            detector=detector,
            used=[fit_on] if compare and detector.needs_fit else [],
            alpha=self.alpha,
            per_class=self.per_class,
            preprocessing=self.preprocessing,
            classes=self.classes,
        )


def _check_writable(path: Path) -> None:
    """Raise StorageError where a bundle could not be written; its missing folders are made with it."""
    there = next(folder for folder in path.absolute().parents if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(
            f"Expected a path for the bundle in a folder that can be written to but {there} is none: choose another."
        )
    if path.exists() and not is_regular(path):
        raise StorageError(
            f"Expected a file to save the bundle in but {path} is there and is no plain file: name another."
        )
