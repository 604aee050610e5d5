"""Run a network over batches of images: the one inference loop, and the checks and conversions that go with it.

``run`` takes care of the device, the floating-point type, the memory format, eval mode, gradients, finite numbers and
progress. Fitting, scoring, calibration, evaluation and the service use it, or ``to_network`` and ``run_batch`` for a single
batch; none of them has a loop of its own.
"""

import platform
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from offaxis.errors import ArgumentError, BadOutputsError, DataError, DetectorError
from offaxis.heads import Head, Outputs
from offaxis.networks.classifier import Classifier, FeatureInput
from offaxis.progress import count

Batches = Iterable[tuple[Tensor, Tensor]]
"""(images (N, c, h, w) normalised as in training, labels (N,)), batch by batch."""

ImageBatches = Iterable[Tensor | tuple[Tensor, Tensor]]
"""Images (N, c, h, w) normalised as in training, batch by batch, with labels beside them or without."""

MOST_PIXELS = 2**19
"""Of the images that go through a network at once on the CPU."""


PASSED = "run through the network"
"""What ``offaxis.progress.count`` calls images that a network has seen."""


class Network(Protocol):
    """The interface that detectors and the inference loop need: a Classifier, a Paired or an Ensemble."""

    @property
    def num_classes(self) -> int:
        """Return the number of classes, C."""

    @property
    def layers(self) -> Sequence[str]:
        """Return the names of the layers that multi-layer methods read by default."""

    @property
    def head(self) -> Head:
        """Return the head whose features a detector reads."""

    def outputs(self, images: Tensor, layers: Iterable[str] = ()) -> Outputs:
        """Compute all outputs for a batch."""

    def modules(self) -> Iterator[nn.Module]:
        """Iterate over all modules, as ``nn.Module.modules`` does."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over all parameters, as ``nn.Module.parameters`` does."""

    def __call__(self, images: Tensor) -> Tensor:
        """Compute logits (N, C)."""


class BatchProgress(Protocol):
    """Shows how many batches are done, as ``offaxis.progress.Progress`` does."""

    def to(self, done: int, /) -> None:
        """Show that ``done`` batches are done."""


def run(
    network: Network,
    batches: ImageBatches,
    *,
    layers: Iterable[str] = (),
    device: str | torch.device | None = None,
    progress: BatchProgress | None = None,
    check_finite: bool = True,
    labels: bool = False,
    gradients: bool = False,
) -> Iterator[tuple[Outputs, Tensor, Tensor | None]]:
    """Run a network over batches in eval mode and without gradients, one forward pass per batch.

    Every module has its train or eval mode back whenever a batch is handed out.

    Args:
        network: a Classifier, a Paired or an Ensemble.
        batches: normalised images (N, c, h, w) in floating point, with labels (N,) beside them or without.
        layers: names of the backbone's layers whose pooled outputs are needed.
        device: where to run; the network is moved there and stays there. None runs it where it is.
        progress: is told the number of finished batches after each of them.
        check_finite: raise where logits or features are not finite. Images are always checked.
        labels: require labels in 0..C-1 with every batch. If False they are passed on unchecked, None where there are none.
        gradients: keep the graph of the pass, so that gradients with respect to the images can be taken of the outputs.

    Yields:
        Outputs of the batch; its images as the network got them (device, dtype, memory format); its labels on that device,
        in int64 where ``labels`` is set.

    Raises:
        BadOutputsError: images of another shape or type; images or outputs that are not finite.
        DetectorError: ``labels`` is set and labels are missing, of another shape, or no whole numbers in 0..C-1.
    """
    names = tuple(layers)
    for images, batch_labels in prepared_batches(network, batches, device=device, progress=progress, labels=labels):
        if gradients:
            with torch.inference_mode(False):
                images = images.detach().clone().requires_grad_()  # a clone is a leaf, in inference mode too
        outputs = run_batch(network, images, names, gradients=gradients)
        if check_finite:
            check_outputs_finite(outputs)
        yield outputs, images, batch_labels


class _Turns:
    """Networks that run, any number of them at the same time, or one that is traced."""

    def __init__(self) -> None:
        self.changed, self.running, self.tracer = threading.Condition(), 0, 0

    @contextmanager
    def run(self) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: self.tracer in (0, threading.get_ident()))
            self.running += 1
        try:
            yield
        finally:
            with self.changed:
                self.running -= 1
                self.changed.notify_all()

    @contextmanager
    def trace(self) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: not self.tracer and not self.running)
            self.tracer = threading.get_ident()
        try:
            yield
        finally:
            with self.changed:
                self.tracer = 0
                self.changed.notify_all()


_turns = _Turns()
running, tracing = _turns.run, _turns.trace
"""Contexts of a prediction and of a trace. Tracing changes ``nn.Module`` for the whole process, so that a network that runs in
another thread would fail; in the service, which loads another bundle beside the old one, each waits for the other."""


def run_batch(network: Network, images: Tensor, layers: Iterable[str] = (), *, gradients: bool = False) -> Outputs:
    """Run a network on one batch that ``to_network`` has prepared, in eval mode and, by default, without gradients."""
    if not gradients:
        with eval_mode(network), torch.no_grad():
            return network.outputs(images, tuple(layers))
    with eval_mode(network), torch.inference_mode(False), torch.enable_grad():
        return network.outputs(images, tuple(layers))


def check_takes(network: Network, shape: tuple[int, int, int]) -> None:
    """Raise ArgumentError where a network does not take images of a shape (c, h, w), by running a black one."""
    try:
        run_batch(network, torch.zeros(1, *shape))
    except (RuntimeError, ValueError, AssertionError, IndexError, TypeError) as error:
        if (
            isinstance(error, ArgumentError) and error.__cause__ is None
        ):  # about its outputs, which images do not change
            raise
        channels, height, width = shape
        said = (
            str(error).split(": ")[0] if isinstance(error, ArgumentError) else str(error)[:200]
        )  # without its remedies
        reason = " ".join(said.split())
        remedy = "Choose the size that it was made for: --size."
        if isinstance(error, TypeError):
            remedy = "Its forward is called with one argument, a batch of images (N, c, h, w)."
        raise ArgumentError(
            f"Expected a network that takes images of {width}x{height} with {channels} channel{'s'[: channels - 1]} but it "
            f"does not ({type(error).__name__}: {reason}). {remedy}"
        ) from error


def prepared_batches(
    network: Network,
    batches: ImageBatches,
    *,
    device: str | torch.device | None = None,
    progress: BatchProgress | None = None,
    labels: bool = False,
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Iterate over batches as ``run`` does but without the forward pass, for methods that make passes of their own.

    Yields:
        Images as the network takes them, and their labels on the same device; see ``run``.
    """
    if device is not None and isinstance(network, nn.Module):
        network.to(resolve_device(device))
    for done, batch in enumerate(batches, 1):
        images, batch_labels = (batch, None) if isinstance(batch, Tensor) else (batch[0], batch[1])
        if batch_labels is not None and not len(batch_labels) and len(images):  # batches of a set without labels
            batch_labels = None
        if labels and batch_labels is None:
            raise DetectorError(
                "Expected batches of (images, labels) but got images alone. Pass a labelled set or a DataLoader of pairs."
            )
        if labels and batch_labels is not None:
            check_labels(batch_labels, len(images), network.num_classes)
            batch_labels = batch_labels.long()
        parts = memory_parts(to_network(network, images))
        if batch_labels is None or len(parts) == 1:
            own: Sequence[Tensor | None] = [batch_labels] * len(parts)
        else:
            own = batch_labels.split(len(parts[0]))
        for part, part_labels in zip(parts, own, strict=True):
            yield part, None if part_labels is None else part_labels.to(part.device)
            count(len(part), PASSED)
        if progress is not None:
            progress.to(done)


def memory_parts(images: Tensor) -> tuple[Tensor, ...]:
    """Split a batch of images (N, c, h, w) on the CPU into parts of at most ``MOST_PIXELS``: 512 of 32x32, 10 of 224x224.

    More photographs at once take more memory, and the time that the system needs to hand it out anew for every layer
    (``benchmarks/memory_format.py``).
    """
    if images.dim() != 4 or images.device.type != "cpu":
        return (images,)
    parts: tuple[Tensor, ...] = images.split(max(1, MOST_PIXELS // (images.shape[2] * images.shape[3])))
    return parts


def stream(network: Network, batches: Batches, layers: Iterable[str] = ()) -> Iterator[tuple[Outputs, Tensor]]:
    """Iterate over (Outputs, labels) of labelled batches: ``run`` without the images."""
    for outputs, _, labels in run(network, batches, layers=layers, labels=True):
        assert labels is not None
        yield outputs, labels


def accuracy(network: Network, batches: Batches, *, check_finite: bool = True) -> float:
    """Compute the share of labelled images whose class a network predicts.

    Raises:
        DataError: there are no images.
    """
    hits, count = 0, 0
    for outputs, _, labels in run(network, batches, check_finite=check_finite, labels=True):
        assert labels is not None
        hits += int((outputs.logits.argmax(1) == labels).sum())
        count += len(outputs.logits)
    if not count:
        raise DataError("Expected images to measure the accuracy on but got none.")
    return hits / count


@contextmanager
def eval_mode(network: Network | nn.Module) -> Iterator[None]:
    """Set eval mode inside the block; afterwards every module has the mode that it had before."""
    held = [module for module in network.modules() if module.training]
    for module in held:
        module.training = False
    try:
        yield
    finally:
        for module in held:
            module.training = True


def to_network(network: Network, images: Tensor) -> Tensor:
    """Check a batch of normalised images and convert it to the network's device, dtype and fastest memory format.

    Raises:
        BadOutputsError: the images are not (N, c, h, w) in floating point (for a network of feature vectors, not (N, d)), or
            not finite.
    """
    if takes_vectors(network):
        return _vectors_to_network(network, images)
    if images.dim() != 4 or not images.is_floating_point():
        raise BadOutputsError(
            f"Expected normalised images of shape (N, c, h, w) in floating point but got {tuple(images.shape)} in "
            f"{str(images.dtype).removeprefix('torch.')}."
        )
    if not torch.isfinite(images).all():
        raise BadOutputsError("Expected images without NaN or infinity but some pixels are not finite numbers.")
    parameter = next(network.parameters(), None)
    moved = images if parameter is None else images.to(parameter.device, parameter.dtype)
    return moved.contiguous(memory_format=torch.channels_last) if faster_channels_last(network, moved) else moved


def takes_vectors(network: Network) -> bool:
    """Return whether the input of a network is feature vectors (N, d) and not images."""
    return any(isinstance(module, FeatureInput) for module in network.modules())


def _vectors_to_network(network: Network, rows: Tensor) -> Tensor:
    if rows.dim() != 2 or rows.shape[1] != network.head.in_features or not rows.is_floating_point():
        raise BadOutputsError(
            f"Expected feature vectors of shape (N, {network.head.in_features}) in floating point but got "
            f"{tuple(rows.shape)} in {str(rows.dtype).removeprefix('torch.')}."
        )
    check_finite("the feature vectors", rows)
    unit = next(module.unit for module in network.modules() if isinstance(module, FeatureInput))
    return rows.to(unit.device, unit.dtype)


def faster_channels_last(network: Network, images: Tensor) -> bool:
    """Return whether the channels-last format is faster: float32 on the CPU through networks of offaxis.networks.

    Other networks may flatten their maps with ``view``, which fails in this format.
    """
    if images.device.type != "cpu" or images.dtype != torch.float32:
        return False
    ours = [module.origin is not None for module in network.modules() if isinstance(module, Classifier)]
    return bool(ours) and all(ours)


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device that a name stands for.

    Args:
        device: ``"auto"`` (CUDA where there is one, else Apple's MPS, else the CPU), ``"cpu"``, ``"cuda"``, ``"cuda:1"``,
            ``"mps"``, or a torch device.

    Raises:
        ArgumentError: no such device, or this machine does not have it; the message names the usable ones.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu")
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError, TypeError, NotImplementedError):
        # PyTorch does not know it, was not built for it, or has no such device here
        usable = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        usable += ["mps"] if _has_mps() else []
        raise ArgumentError(
            f"Expected a device that PyTorch can use here (auto, {', '.join(usable)}) but got {str(device)!r}."
        ) from None
    return torch.device(device)


def is_slow_in_bfloat16(device: torch.device) -> bool:
    """Return whether the device is an x86 CPU without instructions for bfloat16, which all need AVX-512."""
    if device.type != "cpu" or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


def check_labels(labels: Tensor, count: int, num_classes: int) -> None:
    """Raise DetectorError unless there are ``count`` labels, all whole numbers in 0..C-1."""
    if labels.shape != (count,):
        raise DetectorError(f"Expected {count} labels for {count} images but got shape {tuple(labels.shape)}.")
    if labels.is_floating_point() and not (labels % 1 == 0).all():
        raise DetectorError(
            "Expected labels that are whole numbers, the numbers of classes, but some are not: give the number of one class "
            "for each image."
        )
    if count and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise DetectorError(
            f"Expected labels in 0..{num_classes - 1}, as the network has {num_classes} classes, but got labels from "
            f"{int(labels.min())} to {int(labels.max())}. Use images of the network's own classes."
        )


def check_finite(what: str, tensor: Tensor) -> None:
    """Raise BadOutputsError where a tensor, called ``what`` in the message, holds NaN or infinity."""
    if not torch.isfinite(tensor).all():
        raise BadOutputsError(
            f"Expected finite numbers but there is NaN or infinity in {what}. Check the images and the training."
        )


def check_outputs_finite(outputs: Outputs) -> None:
    """Raise BadOutputsError where logits or features hold NaN or infinity."""
    check_finite("the network's logits", outputs.logits)
    check_finite("the network's features", outputs.features)


def device_of(network: Network) -> torch.device:
    """Return the device of a network: that of its parameters."""
    parameter = next(network.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def widest(tensor: Tensor) -> Tensor:
    """Return the tensor in float64; unchanged on Apple's GPUs, which have no float64."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def accumulating(tensor: Tensor) -> Tensor:
    """Return a detached copy in float64 for sums over a whole data set, on the CPU where the device has no float64."""
    detached = tensor.detach()
    return detached.to("cpu" if detached.device.type == "mps" else detached.device, torch.float64)
