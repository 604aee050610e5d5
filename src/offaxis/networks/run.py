"""Run a network over batches of images: the one inference loop, and the checks and conversions that go with it.

``run`` takes care of the device, the floating-point type, the memory format, eval mode, gradients, finite numbers and
progress. Fitting, scoring, calibration, evaluation and the service use it, or ``to_network`` and ``run_batch`` for a single
batch; none of them has a loop of its own.
"""

import platform
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from offaxis.errors import ArgumentError, BadOutputsError, DataError, DetectorError
from offaxis.heads import Outputs
from offaxis.networks.classifier import Classifier, FeatureInput
from offaxis.networks.combine import AnyNetwork
from offaxis.progress import count

Batches = Iterable[tuple[Tensor, Tensor]]
"""(images (N, c, h, w) normalised as in training, labels (N,)), batch by batch."""

ImageBatches = Iterable[Tensor | tuple[Tensor, Tensor]]
"""Images (N, c, h, w) normalised as in training, batch by batch, with labels beside them or without."""

MOST_PIXELS = 2**19
"""Of the images that go through a network at once on the CPU."""


PASSED = "run through the network"
"""What ``offaxis.progress.count`` calls images that a network has seen."""


Network = AnyNetwork
"""What detectors and the inference loop take."""


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
    if device is not None:
        network.to(resolve_device(device))
    names = tuple(layers)
    for images, batch_labels in prepared_batches(network, batches, progress=progress, labels=labels):
        if gradients:
            with torch.inference_mode(False):
                images = images.detach().clone().requires_grad_()  # a clone is a leaf, in inference mode too
        outputs = run_batch(network, images, names, gradients=gradients)
        if check_finite:
            for what in ("logits", "features"):
                require_finite(f"the network's {what}", getattr(outputs, what))
        yield outputs, images, batch_labels


class _Turns:
    """Networks that run, any number of them at the same time, or one that is traced: a trace holds the lock."""

    def __init__(self) -> None:
        self.lock, self.count = threading.Condition(), 0

    @contextmanager
    def run(self) -> Iterator[None]:
        with self.lock:
            self.count += 1
        try:
            yield
        finally:
            with self.lock:
                self.count -= 1
                self.lock.notify_all()

    @contextmanager
    def trace(self) -> Iterator[None]:
        with self.lock:
            self.lock.wait_for(lambda: not self.count)
            yield


_turns = _Turns()
running, tracing = _turns.run, _turns.trace
"""Contexts of a prediction and of a trace. Tracing changes ``nn.Module`` for the whole process, so that a network that runs in
another thread would fail; in the service, which loads another bundle beside the old one, each waits for the other."""


SMALL = 2**26
"""Multiplications of an operation up to which one thread is enough: some milliseconds of it."""


class _OneThread:
    """Blocks of small work, which PyTorch computes on one thread; see ``one_thread``."""

    def __init__(self) -> None:
        self.lock, self.here = threading.Lock(), threading.local()
        self.inside, self.before = 0, 1

    @contextmanager
    def block(self, multiplications: int) -> Iterator[None]:
        if multiplications > SMALL or getattr(self.here, "inside", False):
            yield
            return
        with self.lock:
            if not self.inside:  # a thread that first computes now would else take the 1 of the others for its own
                self.before = torch.get_num_threads()
            self.inside += 1
            torch.set_num_threads(1)
        self.here.inside = True
        try:
            yield
        finally:
            self.here.inside = False
            with self.lock:
                self.inside -= 1
                torch.set_num_threads(self.before)


one_thread = _OneThread().block
"""Context in which PyTorch computes on the calling thread alone, unless operations of so many multiplications are worth more.

Threads wait for each other after each operation: beside a busy program that can take tens of times as long as the work itself.
Afterwards PyTorch has as many threads as before."""


def threads_for(network: Network, images: Tensor) -> AbstractContextManager[None]:
    """Return the context in which a network runs on a single image, or on few small ones, with one thread.

    Weights times positions are about the multiplications of all its operations.
    """
    parameters = [parameter.numel() for parameter in network.parameters()]
    positions = images.numel() // max(1, images.shape[1])
    return one_thread(0 if len(images) == 1 else positions * sum(parameters) // max(1, len(parameters)))


def run_batch(network: Network, images: Tensor, layers: Iterable[str] = (), *, gradients: bool = False) -> Outputs:
    """Run a network on one batch that ``to_network`` has prepared, in eval mode and, by default, without gradients."""
    with threads_for(network, images), eval_mode(network):
        if not gradients:
            with torch.no_grad():
                return network.outputs(images, tuple(layers))
        with torch.inference_mode(False), torch.enable_grad():
            return network.outputs(images, tuple(layers))


def check_takes(network: Network, shape: tuple[int, int, int]) -> None:
    """Raise ArgumentError where a network does not take images of a shape (c, h, w), by running a black one."""
    try:
        run_batch(network, torch.zeros(1, *shape))
    except Exception as error:
        channels, height, width = shape
        raise ArgumentError(
            f"Expected a network that takes one argument, a batch of images (N, c, h, w), here of {width}x{height} with "
            f"{channels} channel{'s'[: channels - 1]}, and gives a tensor. It does not ({type(error).__name__}: "
            f"{' '.join(str(error)[:300].split())}). Is another --size the one that it was made for?"
        ) from error


def prepared_batches(
    network: Network,
    batches: ImageBatches,
    *,
    progress: BatchProgress | None = None,
    labels: bool = False,
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Iterate over batches as ``run`` does but without the forward pass, for methods that make passes of their own.

    Yields:
        Images as the network takes them, and their labels on the same device; see ``run``.
    """
    for done, batch in enumerate(batches, 1):
        images, batch_labels = (batch, None) if isinstance(batch, Tensor) else batch
        if batch_labels is not None and not len(batch_labels) and len(images):  # batches of a set without labels
            batch_labels = None
        if labels:
            batch_labels = check_labels(batch_labels, len(images), network.num_classes)
        begin = 0
        for part in memory_parts(to_network(network, images)):
            end = begin + len(part)
            yield part, None if batch_labels is None else batch_labels[begin:end].to(part.device)
            count(len(part), PASSED)
            begin = end
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


def stream(
    network: Network, batches: Batches, layers: Iterable[str] = (), *, check_finite: bool = True
) -> Iterator[tuple[Outputs, Tensor]]:
    """Iterate over (Outputs, labels) of labelled batches: ``run`` without the images."""
    for outputs, _, labels in run(network, batches, layers=layers, check_finite=check_finite, labels=True):
        assert labels is not None
        yield outputs, labels


def accuracy(network: Network, batches: Batches, *, check_finite: bool = True) -> float:
    """Compute the share of labelled images whose class a network predicts.

    Raises:
        DataError: there are no images.
    """
    passes = stream(network, batches, check_finite=check_finite)
    hits = [outputs.logits.argmax(1) == labels for outputs, labels in passes]
    if not hits:
        raise DataError("Expected images to measure the accuracy on but got none.")
    every = torch.cat(hits)
    return int(every.sum()) / len(every)


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
    if images.dtype == torch.int64 and images.dim() == 3 and _takes_tokens(network):
        return images.to(device_of(network))
    vectors = next((module for module in network.modules() if isinstance(module, FeatureInput)), None)
    if vectors is None:
        what, shape, fits = "images", "c, h, w", images.dim() == 4
    else:
        size = network.head.in_features
        what, shape, fits = "feature vectors", f"{size}", images.shape[1:] == (size,)
    if not fits or not images.is_floating_point():
        kind = str(images.dtype).removeprefix("torch.")
        raise BadOutputsError(
            f"Expected {what} of shape (N, {shape}) in floating point but got {tuple(images.shape)} in {kind}."
        )
    require_finite(f"the {what}", images)
    own = next(network.parameters(), None) if vectors is None else vectors.unit
    moved = images if own is None else images.to(own.device, own.dtype)
    return moved.contiguous(memory_format=torch.channels_last) if faster_channels_last(network, moved) else moved


def _takes_tokens(network: Network) -> bool:
    """Return whether the input of a network is tokens (N, k, L) and not images."""
    return any(isinstance(module, Classifier) and module.takes_tokens for module in network.modules())


def takes_vectors(network: Network) -> bool:
    """Return whether the input of a network is feature vectors (N, d) and not images."""
    return any(isinstance(module, FeatureInput) for module in network.modules())


def faster_channels_last(network: Network, images: Tensor) -> bool:
    """Return whether the channels-last format is faster: float32 on the CPU through networks of offaxis.networks.

    Other networks may flatten their maps with ``view``, which fails in this format.
    """
    if images.device.type != "cpu" or images.dtype != torch.float32 or images.dim() != 4:
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
    has_mps = torch.backends.mps.is_available()
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu")
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError, TypeError, NotImplementedError):
        # PyTorch does not know it, was not built for it, or has no such device here
        usable = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        usable += ["mps"] if has_mps else []
        raise ArgumentError(
            f"Expected a device that PyTorch can use here (auto, {', '.join(usable)}) but got {str(device)!r}."
        ) from None
    return torch.device(device)


def is_slow_in_bfloat16(device: torch.device) -> bool:
    """Return whether the device is an x86 CPU without instructions for bfloat16, which all need AVX-512."""
    if device.type != "cpu" or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")


def check_labels(labels: Tensor | None, count: int, num_classes: int) -> Tensor:
    """Return labels (N,) in int64; raise DetectorError unless there are ``count`` of them, all whole numbers in 0..C-1."""
    if labels is None:
        raise DetectorError(
            "Expected batches of (images, labels) but got images alone. Pass a labelled set or a DataLoader of pairs."
        )
    if labels.shape != (count,):
        raise DetectorError(f"Expected {count} labels for {count} images but got shape {tuple(labels.shape)}.")
    whole = labels.long()
    if not torch.equal(whole.to(labels.dtype), labels):
        raise DetectorError("Expected labels that are whole numbers, one class for each image, but some are not.")
    if count and not 0 <= int(whole.min()) <= int(whole.max()) < num_classes:
        raise DetectorError(
            f"Expected labels in 0..{num_classes - 1}, as the network has {num_classes} classes, but got labels from "
            f"{int(whole.min())} to {int(whole.max())}. Use images of the network's own classes."
        )
    return whole


def require_finite(what: str, tensor: Tensor) -> None:
    """Raise BadOutputsError where a tensor, called ``what`` in the message, holds NaN or infinity."""
    if not torch.isfinite(tensor).all():
        raise BadOutputsError(
            f"Expected finite numbers but there is NaN or infinity in {what}. Check the images and the training."
        )


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
