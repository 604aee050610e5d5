"""The contract of a detector, where larger scores mean more out-of-distribution, and one pass that fits or scores several."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import product
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from offaxis.data.images import hash_batch
from offaxis.data.transforms import Normalise
from offaxis.detectors.statistics import Fitted
from offaxis.errors import (
    ArgumentError,
    BadOutputsError,
    DetectorError,
    MissingOutputError,
    NotFittedError,
    OffaxisError,
)
from offaxis.heads import Outputs
from offaxis.heads.base import at_least_float32
from offaxis.metrics import auroc, fpr_at_tpr
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import Paired
from offaxis.networks.run import (
    Batches,
    ImageBatches,
    Network,
    device_of,
    prepared_batches,
    require_finite,
    run,
    run_batch,
    stream,
    to_network,
)

TrainingImages = Any
"""Batches of (images, labels), a DataLoader of them, an ImageSet, or a torch or Hugging Face dataset of (image, label)."""


TuningMetric = Literal["tnr_at_tpr95", "auroc"]


def best_setting(id_scores: Tensor, ood_scores: Tensor, by: TuningMetric = "tnr_at_tpr95") -> int:
    """Return the index of the setting with the best TNR at TPR 95 %, ties broken by AUROC, then by order.

    Args:
        id_scores: (N, S) of validation images of the ID set, larger = more out-of-distribution.
        ood_scores: (M, S) of validation images of the assumed OOD set.
        by: ``"auroc"`` for the best AUROC instead, as OpenOOD tunes.
    """
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


def _comparable(value: Any) -> Any:
    """Return an argument so that it can be compared: sequences as lists, an empty one as None."""
    return (list(value) or None) if isinstance(value, (list, tuple)) else None if value == {} else value


_WHERE_FROM = {
    "cosine": "Train or attach the network with a head that has one (head='cosine'); a linear head has none.",
    "scale": "Train or attach the network with a head that has one (head='cosine' or 'deconf-c').",
    "score_logits": "Read outputs.detection_logits with uses = ('logits',): every network has those.",
}


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
        takes: the kinds of networks that it scores: for most none of ensembles, whose logits are logarithms of averaged
            probabilities and whose features are concatenated.
        needs_fit: whether ``fit`` must come before ``score``.
        fits_on_images: whether ``fit`` needs the images themselves and makes passes of its own.
        tunable: the hyperparameters, which are constructor arguments and attributes of the same name.
        options: the other constructor arguments, attributes of the same name too.
        fitted_for: those of ``tunable`` that fitting uses, so that other values need another fit.
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
    takes: tuple[type[torch.nn.Module], ...] = (Classifier, Paired)
    needs_fit: bool = False
    fits_on_images: bool = False
    tunable: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    fitted_for: tuple[str, ...] = ()
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
        defaults = {p.name: _comparable(p.default) for p in parameters if p.default is not p.empty}
        return {k: v for k, v in self.arguments.items() if k in defaults and _comparable(v) != defaults[k]}

    @property
    def state(self) -> State:
        """Return where the hyperparameters' values come from."""
        if not self.tunable:
            return State.NONE
        if self.tuned_on:
            return State.TUNED
        return State.GIVEN if self.changed.keys() & set(self.tunable) else State.DEFAULT

    def check_network(self, network: Network) -> None:
        """Raise DetectorError where the score has no meaning for such a network."""
        if not isinstance(getattr(network, "_orig_mod", network), self.takes):  # torch.compile wraps it
            raise DetectorError(
                f"Expected {' or '.join(kind.__name__ for kind in self.takes)} for {self.name} but got "
                f"{type(network).__name__}: of an ensemble, cosine-ensemble scores cosine networks, leave-out those of "
                "train_leave_out() and max-softmax any; other detectors score its members one by one."
            )

    def suits(self, network: Network) -> bool:
        """Return whether it is among the detectors of a network that are named together (``"native"``, ``"all"``)."""
        try:
            self.check_network(network)
        except DetectorError:
            return False
        return True

    # fitting ---------------------------------------------------------------------------------------------------------

    def begin(self, network: Network) -> None:
        """Discard earlier statistics and copy what is needed of the network."""

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Add a batch of training images: Outputs of N images with their labels (N,)."""

    def finish(self) -> None:
        """Compute the buffers from what was collected."""

    def fit(
        self, network: Network, images: TrainingImages, normalise: Normalise | None = None, *, batch_size: int = 256
    ) -> Self:
        """Fit on training images; ``fit_all`` fits several detectors in a single pass.

        Args:
            network: the network whose outputs are scored later.
            images: batches of (images, labels), normalised as in training, such as a DataLoader or a list; or, with
                ``normalise``, an ImageSet or a dataset of (image, label).
            normalise: as in training, for images that are not normalised yet.
            batch_size: images per batch, for images that are not in batches yet.
        """
        fit_all(network, images, [self], normalise, batch_size=batch_size)
        return self

    def fit_batches(self, network: Network, batches: Batches) -> None:
        """Fit with passes of its own over batches of (images, labels), where ``fits_on_images`` says so."""
        raise NotImplementedError

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
        if torch.compiler.is_compiling():  # a graph has no branches
            exported: Tensor = self(outputs)
            return exported
        self.check_fitted()
        if self.reads is Reads.IMAGES:
            raise DetectorError(
                f"{self.name} perturbs the images or runs several networks, so outputs are not enough: call "
                "score_images(network, images)."
            )
        self.check_outputs(outputs)
        scores: Tensor = self(outputs)
        return scores

    def check_outputs(self, outputs: Outputs) -> None:
        """Raise where outputs lack what the detector reads, have another shape than it was fitted with, or hold NaN."""
        count, sizes, layers = len(outputs.logits), self.sizes(), outputs.layers or {}
        read = {field: getattr(outputs, field) for field in self.uses if field != "layers"}
        for name, tensor in {**read, **{layer: layers.get(layer) for layer in self.layers}}.items():
            if tensor is None:
                where = _WHERE_FROM.get(name, "Request it with network.outputs(images, layers=detector.layers).")
                raise MissingOutputError(f"Expected outputs with a {name} for {self.name} but there is none. {where}")
            expected = (count,) if name == "scale" else (count, sizes.get(name, tensor.shape[-1]))
            if tensor.shape != expected:
                raise BadOutputsError(
                    f"Expected a {name} of shape {expected} for {self.name} but got {tuple(tensor.shape)}: score outputs of "
                    "the network that it was fitted with."
                )
            require_finite(f"the {name} that {self.name} reads", tensor)

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

    def check_grid(self) -> None:
        """Raise ArgumentError where ``grid`` does not name hyperparameters with values to try."""
        grid: Any = self.grid
        if not isinstance(grid, Mapping) or not all(
            name in self.tunable and isinstance(values, (list, tuple)) and values for name, values in grid.items()
        ):
            raise ArgumentError(
                f"Expected `grid` of {self.name} to give values to try of what `tunable` names "
                f"({', '.join(self.tunable) or 'nothing'}), as in {{'power': (1, 2)}}, but got {grid!r}: it is an attribute of "
                "the class, or a property."
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
        if self.fitted and any(
            hyperparameters.get(name, getattr(self, name)) != getattr(self, name) for name in self.fitted_for
        ):
            raise ArgumentError(
                f"Expected the {' and '.join(self.fitted_for)} that {self.name} was fitted with: make and fit another one."
            )
        other = type(self)(**{**self.arguments, **hyperparameters})
        other.load_state_dict(self.state_dict(), assign=True)
        return other

    def grid_scores(self, outputs: Outputs) -> Tensor:
        """Compute (N, S, ...) from the Outputs of N images: what is needed to score them at each of the S settings."""
        return torch.stack([self.with_hyperparameters(**setting).score(outputs) for setting in self.settings], 1)

    def grid_scores_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute ``grid_scores`` (N, S, ...) of images; detectors that read images may share passes between settings here."""
        self.check_fitted()
        if self.grid_reads is Reads.IMAGES:
            each = [self.with_hyperparameters(**setting) for setting in self.settings]
            return torch.stack([detector.score_images(network, images) for detector in each], 1)
        return self.grid_scores(run_batch(network, to_network(network, images), self.layers))

    def scores_after(self, network: Network, images: Tensor, outputs: Outputs, *, grid: bool) -> Tensor:
        """Compute what ``score_images`` or, with ``grid``, ``grid_scores_images`` does, from a pass that was made already.

        It is called where ``shares_pass`` says so.

        Args:
            network: the network.
            images: the leaf of the pass (N, c, h, w), which requires a gradient.
            outputs: of the pass, with its graph.
            grid: over the grid.
        """
        raise NotImplementedError

    def score_from_grid(self, grid_scores: Tensor) -> Tensor:
        """Compute scores (N,) at this detector's own hyperparameters from ``grid_scores`` (N, S, ...), without the network."""
        return grid_scores[:, self.settings.index(self._present)]

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
        self.check_grid()
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


def compatible_detectors(
    detectors: Iterable[Detector], network: Network, sample: Tensor
) -> tuple[list[Detector], dict[str, str]]:
    """Return the detectors that can score a network's images and, by name, the reasons why the others cannot.

    Args:
        detectors: to be checked; ``begin`` is called on those that must be fitted.
        network: the network.
        sample: some normalised images (n, c, h, w), on any device.
    """
    outputs = run_batch(network, to_network(network, sample))
    able, unable = [], {}
    for detector in detectors:
        missing = [name for name in detector.uses if name != "layers" and getattr(outputs, name) is None]
        try:
            if missing:
                raise MissingOutputError(f"the network gives no {' and no '.join(missing)}")
            detector.check_network(network)
            if detector.needs_fit and not detector.fits_on_images:
                detector.begin(network)
            able.append(detector)
        except (DetectorError, ArgumentError) as error:
            unable[detector.name] = str(error).split(": ")[0]
    return able, unable


def fit_all(
    network: Network,
    images: TrainingImages,
    detectors: Sequence[Detector],
    normalise: Normalise | None = None,
    *,
    batch_size: int = 256,
) -> None:
    """Fit every detector that needs it in one pass over training images.

    Detectors whose fitting needs the images themselves (``fits_on_images``) come after, each with its own pass; for
    these ``images`` must be something that can be iterated again, such as a list or a DataLoader.

    Args:
        network: the network whose outputs are scored later.
        images: batches of (images, labels), normalised as in training, such as a DataLoader or a list; or, with
            ``normalise``, an ImageSet or a dataset of (image, label).
        detectors: those that need no fitting are left as they are.
        normalise: as in training, for images that are not normalised yet.
        batch_size: images per batch, for images that are not in batches yet.

    Raises:
        DetectorError: some cannot be fitted with such a network, and the message says which and why; all others are.
    """
    if not any(detector.needs_fit for detector in detectors):
        return
    if normalise is not None or isinstance(images, (Dataset, DataLoader)) or hasattr(images, "column_names"):
        from offaxis.data.adapt import as_batches  # only where there are no batches yet

        images = as_batches(images, normalise, batch_size, labels=True, num_classes=network.num_classes)
    reasons = try_fit_all(network, images, detectors)
    if reasons:
        fitted = [d.name for d in detectors if d.name not in reasons]
        if not fitted and len(reasons) == 1:
            raise next(iter(reasons.values()))
        raise DetectorError(
            f"{'; '.join(f'{name} cannot be fitted: {reason}' for name, reason in reasons.items())} "
            + (f"All others are fitted ({', '.join(fitted)}): leave {', '.join(reasons)} out." if fitted else "")
        )


def try_fit_all(network: Network, batches: Batches, detectors: Sequence[Detector]) -> dict[str, OffaxisError]:
    """Fit every detector that can be, as ``fit_all`` does; return, by name, the reasons why the others cannot."""
    reasons: dict[str, OffaxisError] = {}

    def attempt(step: Callable[[Detector], None], those: Iterable[Detector]) -> list[Detector]:
        """Take a step with each detector; return those that could."""
        able = []
        for detector in those:
            try:
                step(detector)
            except (DetectorError, ArgumentError) as error:
                reasons[detector.name] = error
            else:
                able.append(detector)
        return able

    needing = [detector for detector in detectors if detector.needs_fit]
    for detector in needing:
        detector.clear()  # where this fit fails, it is not the fitted one of before
    shared = attempt(lambda d: d.begin(network), [d for d in needing if not d.fits_on_images])
    images = 0
    for outputs, labels in stream(network, batches, layers_of(shared)) if shared else ():
        images += len(labels)
        shared = attempt(lambda d: d.update(outputs, labels), shared)  # noqa: B023 - called at once
    if shared and not images:
        raise NotFittedError("Expected training images to fit on but there were none.")
    for detector in attempt(lambda d: d.finish(), shared):
        detector.move_to(device_of(network))
    attempt(lambda d: d.fit_batches(network, batches), [d for d in needing if d.fits_on_images])
    return reasons


def layers_of(detectors: Iterable[Detector]) -> tuple[str, ...]:
    """Return every layer that some detector reads, once."""
    return tuple(dict.fromkeys(layer for detector in detectors for layer in detector.layers))


def scored(
    network: Network, batches: ImageBatches, detectors: Sequence[Detector]
) -> Iterator[tuple[Outputs, Tensor, Tensor | None, list[Tensor]]]:
    """Score batches of normalised images, or of feature vectors: one forward pass for all that read outputs or layers.

    Detectors that read images (ODIN, Mahalanobis with a perturbation) make their own passes over the same batch.

    Yields:
        Outputs of N images, the images as the network got them, their labels (N,) or None, and the scores (N,) of each
        detector.
    """
    for detector in detectors:
        detector.check_fitted()
    layers = layers_of(detector for detector in detectors if detector.reads is not Reads.IMAGES)
    for outputs, images, labels in run(network, batches, layers=layers):
        scores = [
            detector.score_images(network, images) if detector.reads is Reads.IMAGES else detector.score(outputs)
            for detector in detectors
        ]
        yield outputs, images, labels, scores


def score_all(network: Network, batches: ImageBatches, detectors: Sequence[Detector]) -> list[Tensor]:
    """Compute the scores (N,) of every detector, in their order, as ``scored`` does: larger = more out-of-distribution.

    They are on the CPU, in float32 or float64.

    Raises:
        ArgumentError: there is no batch.
        NotFittedError: a detector is not fitted.
    """
    each: list[list[Tensor]] = [[] for _ in detectors]
    for *_, scores in scored(network, batches, detectors):
        for parts, values in zip(each, scores, strict=True):
            parts.append(values)
    return [at_least_float32(concatenated(parts, "images to score")).cpu() for parts in each]


class ScoredBatches(NamedTuple):
    """The scores of N images or feature vectors.

    Attributes:
        scores: (N,) float64; larger = more out-of-distribution.
        predicted: (N,) int64, the predicted classes.
        cosine: (N,) float64, the largest cosines; None where the network has none.
        hashes: 16 bytes of each image or row, as the network got it, by which copies are found.
        logits: (N, C), and
        labels: (N,) int64, the right classes; both None where not all have labels.
    """

    scores: NDArray[np.float64]
    predicted: NDArray[np.int64]
    cosine: NDArray[np.float64] | None
    hashes: list[bytes]
    logits: NDArray[np.floating[Any]] | None
    labels: NDArray[np.int64] | None


def score_batches(network: Network, batches: ImageBatches, detector: Detector) -> ScoredBatches:
    """Score batches of normalised images, or of feature vectors, with a detector that is fitted where it must be."""
    scores, predicted = [torch.empty(0, dtype=torch.float64)], [torch.empty(0, dtype=torch.int64)]
    cosines: list[Tensor] = []
    hashes: list[bytes] = []
    logits, right = list[Tensor](), list[Tensor]()
    for outputs, images, labels, (values,) in scored(network, batches, [detector]):
        scores.append(values.cpu().double())
        predicted.append(outputs.logits.argmax(1).cpu())
        hashes += hash_batch(images.float().cpu())
        if labels is not None:
            logits.append(at_least_float32(outputs.logits).cpu())
            right.append(labels.cpu().long())
        if outputs.cosine is not None:
            cosines.append(outputs.cosine.amax(1).cpu().double())
    labelled = 0 < sum(map(len, right)) == len(hashes)
    return ScoredBatches(
        scores=torch.cat(scores).numpy(),
        predicted=torch.cat(predicted).numpy(),
        cosine=torch.cat(cosines).numpy() if cosines else None,
        hashes=hashes,
        logits=torch.cat(logits).numpy() if labelled else None,
        labels=torch.cat(right).numpy() if labelled else None,
    )
