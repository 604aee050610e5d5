"""The contract of a detector: what it reads, how it is fitted, and that a larger score means more out-of-distribution."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from offaxis.data.images import hash_batch
from offaxis.detectors.statistics import Fitted
from offaxis.errors import ArgumentError, DetectorError, NotFittedError
from offaxis.heads import Outputs
from offaxis.heads.base import at_least_float32, check_outputs
from offaxis.metrics import auroc, fpr_at_tpr
from offaxis.networks.combine import check_single
from offaxis.networks.run import (
    Batches,
    ImageBatches,
    Network,
    device_of,
    prepared_batches,
    run,
    run_batch,
    stream,
    to_network,
)

if TYPE_CHECKING:
    from offaxis.data.transforms import Normalise

TrainingImages = Any
"""Batches of (images, labels), a DataLoader of them, an ImageSet, or a torch or Hugging Face dataset of (image, label)."""


def training_batches(
    network: Network, images: TrainingImages, normalise: "Normalise | None", batch_size: int
) -> Batches:
    """Return training images as normalised batches of (images, labels); batches are returned unchanged."""
    batches: Batches = images
    if normalise is not None or isinstance(images, (Dataset, DataLoader)) or hasattr(images, "column_names"):
        from offaxis.data.adapt import as_batches  # only where there are no batches yet

        batches = as_batches(images, normalise, batch_size, labels=True, num_classes=network.num_classes)
    return batches


TuningMetric = Literal["tnr_at_tpr95", "auroc"]


def best_setting(id_scores: Tensor, ood_scores: Tensor, by: TuningMetric = "tnr_at_tpr95") -> int:
    """Return the index of the setting with the best TNR at TPR 95 %, ties broken by AUROC, then by order.

    Args:
        id_scores: (N, S) of validation images of the ID set, larger = more out-of-distribution.
        ood_scores: (M, S) of validation images of the assumed OOD set.
        by: ``"auroc"`` for the best AUROC instead, as OpenOOD tunes.
    """
    if not len(id_scores) or not len(ood_scores):
        raise ArgumentError(
            f"Expected validation images of both kinds but got {len(id_scores)} ID and {len(ood_scores)} OOD images."
        )
    id_columns, ood_columns = (at_least_float32(scores).cpu().numpy().T for scores in (id_scores, ood_scores))
    columns = list(zip(id_columns, ood_columns, strict=True))
    merits = [(0.0 if by == "auroc" else 1 - fpr_at_tpr(*pair), auroc(*pair)) for pair in columns]
    return merits.index(max(merits))


def concatenated(parts: Sequence[Tensor], what: str) -> Tensor:
    """Concatenate the parts of batches, or raise ArgumentError where there was no batch of ``what``."""
    if not parts:
        raise ArgumentError(f"Expected batches of {what} but there were none: give at least one image.")
    return torch.cat(list(parts))


class Reads(StrEnum):
    """What a detector scores: a network's outputs, outputs with inner layers, or the images themselves."""

    OUTPUTS = "outputs"
    LAYERS = "layers"
    IMAGES = "images"


class State(StrEnum):
    """Where the values of a detector's hyperparameters come from."""

    NONE = "none"
    DEFAULT = "published default"
    GIVEN = "given"
    TUNED = "tuned"


def _listed(value: Any) -> Any:
    """Return an argument so that it can be compared: sequences as lists, an empty one as None."""
    return (list(value) or None) if isinstance(value, (list, tuple)) else None if value == {} else value


class Passes(NamedTuple):
    """What scoring costs, in passes through the network per image."""

    forward: float
    backward: float = 0.0


class Detector(Fitted, ABC):
    """Computes detection scores of images: **larger = more out-of-distribution**, for every detector.

    A subclass computes scores in ``forward(outputs)`` without checks, so that it can be exported; users call ``score``
    or ``score_images``. Statistics of the training images are buffers, filled by ``begin``, ``update`` (once per batch)
    and ``finish``, so that one pass over the data can fit many detectors. ``offaxis.register_detector`` makes a
    subclass known by its name.

    Attributes:
        name: its name in tables, files and on the command line.
        paper: link to the paper; may be empty.
        uses: the fields of Outputs that it reads.
        needs_fit: whether ``fit`` must come before ``score``.
        fits_on_images: whether ``fit`` needs the images themselves and makes passes of its own.
        tunable: the hyperparameters, which are constructor arguments and attributes of the same name.
        options: the other constructor arguments, attributes of the same name too.
        savable: whether all that was fitted is in the buffers.
        shares_pass: whether a detector that reads images begins with the plain forward pass, so that it can be shared
            (``scores_after``).
        tuned_on: what the hyperparameters were chosen with (``"OOD samples"``); None where they were not tuned.
        tuning_metric: what ``choose`` goes by: TNR at TPR 95 %, or AUROC, as OpenOOD does.

    Examples:
        >>> class SecondLogit(Detector):
        ...     name = "second-logit"
        ...
        ...     def forward(self, outputs: Outputs) -> Tensor:
        ...         return outputs.logits.topk(2, 1).values[:, 1]
        >>> SecondLogit().score(Outputs(features=torch.ones(1, 2), logits=torch.tensor([[3.0, 1.0, 2.0]])))
        tensor([2.])
    """

    name: str
    paper: str = ""
    uses: tuple[str, ...] = ("logits",)
    needs_fit: bool = False
    fits_on_images: bool = False
    tunable: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    savable: bool = True
    shares_pass: bool = False
    tuning_metric: TuningMetric = "tnr_at_tpr95"

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Check that ``uses`` names fields of Outputs."""
        super().__init_subclass__(**keywords)
        uses: Any = cls.uses  # uses = "cosine" is easily written
        if isinstance(uses, str) or not set(uses) <= set(Outputs._fields):
            raise ArgumentError(
                f"Expected `uses` of {cls.__qualname__} to be a tuple out of {', '.join(Outputs._fields)}, such as "
                f"('features',), but got {uses!r}."
            )

    def __init__(self) -> None:
        super().__init__()
        self.tuned_on: str | None = None

    # what it is ------------------------------------------------------------------------------------------------------

    @property
    def reads(self) -> Reads:
        """Return what it reads when it scores."""
        return Reads.LAYERS if "layers" in self.uses else Reads.OUTPUTS

    @property
    def grid_reads(self) -> Reads:
        """Return what it reads when it scores the whole grid: as ``reads``, unless the grid has settings that need more."""
        return self.reads

    @property
    def needs_images(self) -> bool:
        """Return whether the outputs of a network without its inner layers are too little to fit it, score or tune."""
        return self.fits_on_images or {self.reads, self.grid_reads} != {Reads.OUTPUTS}

    @property
    def layers(self) -> tuple[str, ...]:
        """Return the names of the inner layers that it reads."""
        return ()

    @property
    def passes(self) -> Passes:
        """Return the number of passes through the network that scoring one image takes."""
        return Passes(forward=1)

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """Return the published values to try of each hyperparameter; empty where none are tuned."""
        return {}

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters with their present values."""
        return {name: getattr(self, name) for name in self.tunable}

    @property
    def arguments(self) -> dict[str, Any]:
        """Return all constructor arguments with their present values, in types that JSON has."""
        return {**self.hyperparameters, **{name: getattr(self, name) for name in self.options}}

    @property
    def changed(self) -> dict[str, Any]:
        """Return the constructor arguments that have other values than their defaults."""
        parameters = inspect.signature(type(self)).parameters.values()
        defaults = {p.name: _listed(p.default) for p in parameters if p.default is not p.empty}
        return {
            name: value
            for name, value in self.arguments.items()
            if name in defaults and _listed(value) != defaults[name]
        }

    @property
    def state(self) -> State:
        """Return where the hyperparameters' values come from."""
        if not self.tunable:
            return State.NONE
        if self.tuned_on:
            return State.TUNED
        return State.GIVEN if self.changed.keys() & set(self.tunable) else State.DEFAULT

    def sizes(self) -> dict[str, int]:
        """Return the widths that a fitted detector expects, by field of Outputs or by layer; empty where any will do."""
        return {}

    def check_network(self, network: Network) -> None:
        """Raise DetectorError where the score has no meaning for such a network: for most, for an ensemble."""
        check_single(self.name, network)

    # fitting ---------------------------------------------------------------------------------------------------------

    def begin(self, network: Network) -> None:
        """Discard earlier statistics and copy what is needed of the network."""

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Add a batch of training images: Outputs of N images with their labels (N,)."""

    def finish(self) -> None:
        """Compute the buffers from what was collected."""

    def fit(
        self, network: Network, images: TrainingImages, normalise: "Normalise | None" = None, *, batch_size: int = 256
    ) -> Self:
        """Fit on training images; ``fit_all`` fits several detectors in a single pass.

        Args:
            network: the network whose outputs are scored later.
            images: batches of (images, labels), normalised as in training, such as a DataLoader or a list; or, with
                ``normalise``, an ImageSet or a dataset of (image, label).
            normalise: as in training, for images that are not normalised yet.
            batch_size: images per batch, for images that are not in batches yet.
        """
        if self.needs_fit:
            batches = training_batches(network, images, normalise, batch_size)
            self.clear()  # where this fit fails, it is not the fitted one of before
            self.fit_batches(network, batches)
        return self

    def fit_batches(self, network: Network, batches: Batches) -> None:
        """Fit on batches of (images, labels) in one pass; ``fit`` calls this where the detector needs it."""
        self.begin(network)
        for outputs, labels in stream(network, batches, self.layers):
            self.update(outputs, labels)
        self.finish()
        self.move_to(device_of(network))

    def move_to(self, device: torch.device) -> None:
        """Move what was fitted to a device, where it is not there; in float32 to Apple's GPUs, which have no float64."""
        if any(tensor.device != device for tensor in self.state_dict().values()):
            self.to(device, torch.float32 if device.type == "mps" else None)

    # scoring ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images, without checks; a plain graph for export."""

    @torch.no_grad()
    def score(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images: larger = more out-of-distribution.

        Raises:
            NotFittedError: ``fit`` has not been called.
            MissingOutputError: the network gives no cosine, or its layers were not requested.
            BadOutputsError: a wrong shape, NaN or infinity.
            DetectorError: the detector reads images, so outputs are not enough.
        """
        self.check_fitted()
        if self.reads is Reads.IMAGES:
            raise DetectorError(
                f"{self.name} perturbs the images or runs several networks, so outputs are not enough: call "
                "score_images(network, images)."
            )
        check_outputs(self.name, outputs, uses=self.uses, layers=self.layers, sizes=self.sizes())
        scores: Tensor = self(outputs)
        return scores

    def score_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N,) of images (N, c, h, w), normalised as in training: larger = more out-of-distribution."""
        self.check_fitted()
        return self.score(run_batch(network, to_network(network, images), self.layers))

    def check_fitted(self) -> None:
        """Raise NotFittedError unless the detector can score."""
        if not self.fitted:
            raise NotFittedError(
                f"Expected a fitted detector but {self.name} has not seen training images: call "
                "fit(network, batches) with batches of (images, labels) first, or load a saved one."
            )

    def check_expects(self) -> None:
        """Raise DetectorError where it must be fitted but no buffer is named for it, so that it counts as fitted at once."""
        if self.needs_fit and not self.expects and type(self).fitted is Fitted.fitted:
            raise DetectorError(
                f"Expected {self.name}, which must be fitted, to name the buffers that fitting fills but it names none, so "
                "that nothing tells whether it is fitted: self.expect('mean') in its constructor, in place of "
                "register_buffer with a value; or define the property `fitted`."
            )

    # tuning ----------------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Return every combination of the grid's values, in a fixed order; the present values last where it lacks them."""
        grid = self.grid
        combinations = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())] if grid else []
        return combinations if self._present in combinations else [*combinations, self._present]

    def with_hyperparameters(self, **hyperparameters: Any) -> Self:
        """Return the same fitted detector with other hyperparameters; the buffers are shared, not copied."""
        unknown = [name for name in hyperparameters if name not in self.tunable]
        if unknown:
            raise ArgumentError(
                f"Expected hyperparameters of {self.name} ({', '.join(self.tunable) or 'it has none'}) but got "
                f"{', '.join(unknown)}."
            )
        other = type(self)(**{**self.arguments, **hyperparameters})
        other.load_state_dict(self.state_dict(), assign=True)
        return other

    def grid_scores(self, outputs: Outputs) -> Tensor:
        """Compute (N, S, ...) from the Outputs of N images: what is needed to score them at each of the S settings."""
        return torch.stack([self.with_hyperparameters(**setting).score(outputs) for setting in self.settings], 1)

    def grid_scores_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute ``grid_scores`` (N, S, ...) of images; detectors that read images share passes between settings here."""
        self.check_fitted()
        return self.grid_scores(run_batch(network, to_network(network, images), self.layers))

    def scores_after(
        self,
        network: Network,  # noqa: ARG002 - the contract's
        images: Tensor,  # noqa: ARG002
        outputs: Outputs,  # noqa: ARG002
        *,
        grid: bool,  # noqa: ARG002
    ) -> Tensor:
        """Compute what ``score_images`` or, with ``grid``, ``grid_scores_images`` does, from a pass that was made already.

        Args:
            network: the network.
            images: the leaf of the pass (N, c, h, w), which requires a gradient.
            outputs: of the pass, with its graph.
            grid: over the grid.
        """
        raise DetectorError(f"{self.name} does not begin with the plain forward pass.")

    def score_from_grid(self, grid_scores: Tensor) -> Tensor:
        """Compute scores (N,) at this detector's own hyperparameters from ``grid_scores`` (N, S, ...), without the network."""
        return grid_scores[:, self._place(grid_scores)]

    def choose(self, id_grid: Tensor, ood_grid: Tensor, on: str = "OOD samples") -> Self:
        """Return the detector at the setting that separates best: by TNR at TPR 95 %, ties by AUROC, then the first.

        Args:
            id_grid: (N, S) of validation images of the ID set.
            ood_grid: (M, S) of validation images of the assumed OOD set.
            on: what the second set is, for reports.
        """
        chosen = self.with_hyperparameters(**self.settings[best_setting(id_grid, ood_grid, self.tuning_metric)])
        chosen.tuned_on = on if self.grid else None  # without a grid nothing was chosen
        return chosen

    def tune(self, network: Network, id_images: ImageBatches, ood_images: ImageBatches) -> Self:
        """Return the detector with hyperparameters chosen on validation images of the ID set and of an assumed OOD set."""
        id_grid, ood_grid = (
            concatenated(
                [self.grid_scores_images(network, images) for images, _ in prepared_batches(network, batches)], what
            )
            for batches, what in ((id_images, "ID images to tune on"), (ood_images, "OOD images to tune on"))
        )
        return self.choose(id_grid, ood_grid)

    @property
    def _present(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.grid or self.tunable}

    def _place(self, grid_scores: Tensor) -> int:
        place = self.settings.index(self._present)
        if place >= grid_scores.shape[1]:
            raise DetectorError(
                f"Expected {self.name} at a setting that the grid scores were computed for but it is at {self._present}: "
                "score the images instead."
            )
        return place


class ScoredBatches(NamedTuple):
    """The scores of N images or feature vectors.

    Attributes:
        scores: (N,) float64; larger = more out-of-distribution.
        predicted: (N,) int64, the predicted classes.
        cosine: (N,) float64, the largest cosines; None where the network has none.
        hashes: 16 bytes of each image or row, as the network got it, by which copies are found.
        accuracy: the share whose class is predicted; None where not all have labels.
    """

    scores: NDArray[np.float64]
    predicted: NDArray[np.int64]
    cosine: NDArray[np.float64] | None
    hashes: list[bytes]
    accuracy: float | None


def score_batches(network: Network, batches: ImageBatches, detector: Detector) -> ScoredBatches:
    """Score batches of normalised images, or of feature vectors, with a detector that is fitted where it must be."""
    scores: list[NDArray[np.float64]] = []
    predicted: list[NDArray[np.int64]] = []
    cosines: list[NDArray[np.float64]] = []
    hashes: list[bytes] = []
    right = labelled = total = 0
    for outputs, prepared, labels in run(network, batches, layers=detector.layers):
        reads_images = detector.reads is Reads.IMAGES
        values = detector.score_images(network, prepared) if reads_images else detector.score(outputs)
        scores.append(values.cpu().double().numpy())
        predicted.append(outputs.logits.argmax(1).cpu().numpy())
        hashes += hash_batch(prepared.float().cpu())
        total += len(values)
        if labels is not None:
            right += int((outputs.logits.argmax(1) == labels).sum())
            labelled += len(labels)
        if outputs.cosine is not None:
            cosines.append(outputs.cosine.amax(1).cpu().double().numpy())
    return ScoredBatches(
        scores=np.concatenate(scores) if scores else np.empty(0),
        predicted=np.concatenate(predicted) if predicted else np.empty(0, np.int64),
        cosine=np.concatenate(cosines) if cosines else None,
        hashes=hashes,
        accuracy=right / total if total and labelled == total else None,
    )
