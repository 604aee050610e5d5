"""The training loop: images or batches -> a trained Classifier."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.data import Normalise
from offaxis.errors import ArgumentError, TrainingStopped
from offaxis.heads import Outputs
from offaxis.names import RECIPES
from offaxis.networks.classifier import Classifier
from offaxis.networks.run import accuracy, is_slow_in_bfloat16, resolve_device
from offaxis.networks.saved import restore
from offaxis.options import Precision
from offaxis.progress import Progress
from offaxis.training.batches import Share, TrainingBatches, make_training_batches, make_validation_batches
from offaxis.training.check import CollapseGuard
from offaxis.training.recipe import Recipe, usual_recipe
from offaxis.training.record import (
    Checkpoint,
    Loss,
    RunFolder,
    Trained,
    open_run,
    run_record,
    save_checkpoint,
    takes_logits,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

AfterEpoch = Callable[[int, Classifier], None]
"""(number of the epoch, from 1; the network after it, in eval mode) -> None."""


def cross_entropy(out: Outputs, labels: Tensor) -> Tensor:
    """Compute the mean cross-entropy of the logits, the loss of the paper; a training with it takes the head's own."""
    return F.cross_entropy(out.logits, labels)


def train(
    classifier: Classifier,
    data: Any,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    out: "str | Path | RunFolder | None" = None,
    resume: bool = False,
    normalise: Normalise | None = None,
    validation: Any = None,
    loss: Loss = cross_entropy,
    after_epoch: AfterEpoch | None = None,
    device: "str | torch.device | Fabric" = "auto",
    quiet: bool = False,
) -> Trained:
    """Train a classifier, in place.

    The same seed, weights and machine give the same result, bit for bit on the CPU, interrupted or not: everything
    random is a function of the seed and the step. The initial weights are the caller's: call ``torch.manual_seed`` before
    making the network.

    Args:
        classifier: the network, made by offaxis.networks or ``attach``; of one that torch.compile has wrapped, the network
            inside is trained, uncompiled.
        data: labelled training images: an ImageSet, a torch or Hugging Face dataset, a pair of tensors (images, labels);
            or a DataLoader of (images, labels), whose batches are used unchanged: it shuffles, augments and normalises.
        recipe: epochs, batch size, learning rate and so on; if None that of :func:`offaxis.training.usual_recipe`:
            ``laptop()`` from scratch, ``finetune()`` for a network that is trained already.
        seed: of the images' order, crops, flips and dropout.
        out: a folder for checkpoints, the log and the trained weights; None keeps nothing.
        resume: resume the run in ``out`` if there is one; with a DataLoader, from the end of its last finished epoch.
        normalise: mean and std; those of ``data`` if None. Must be None with a DataLoader.
        validation: like ``data``: labelled images whose accuracy is measured after each epoch, without effect on the
            training.
        loss: what is minimised: (Outputs, labels (N,)) -> the batch's mean loss, or one of PyTorch, such as
            ``nn.CrossEntropyLoss(label_smoothing=0.1)``, which is given the logits. The default is the head's own:
            cross-entropy, with a margin where the head has one.
        after_epoch: called in every process with the number of each epoch, from 1, and the network in eval mode, before
            the epoch's checkpoint is written; it must not change the network. A resumed training calls it for the epochs
            that it trains itself, not for those before.
        device: ``"auto"`` (CUDA, else MPS, else the CPU), ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``, one of them in 32
            bits; or a Fabric, which has device, precision and processes.
        quiet: show no progress.

    Raises:
        DataError: the images or labels cannot be trained on.
        ArgumentError: this is no Classifier, the loss is not one number, or there is no such device.
        NotFiniteError, ScaleCollapseError: the training failed; the message says why and what helps.
        TrainingStopped: Ctrl-C or SIGTERM; the state is saved where there is a folder.
    """
    classifier, fabric = checked_classifier(classifier), fabric_on(device)
    if str(fabric.strategy.precision.precision).startswith("bf16") and is_slow_in_bfloat16(fabric.device):
        warnings.warn(
            "This CPU has no instructions for bfloat16: training takes many times as long as in 32 bits (--precision "
            "32-true, Fabric(precision='32-true')).",
            stacklevel=2,
        )
    launch(fabric)
    recipe = RECIPES[usual_recipe(classifier)]() if recipe is None else recipe
    batches = make_training_batches(classifier, data, recipe, seed=seed, normalise=normalise, fabric=fabric)
    held_out = None if validation is None else make_validation_batches(classifier, validation, batches)
    folder = RunFolder.of(out)
    record = run_record(classifier, batches, loss, fabric, folder)
    with folder or nullcontext(), torch.random.fork_rng():
        checkpoint = open_run(fabric, folder, record, resume)
        training = _Training(classifier, batches, loss, fabric, folder, held_out, after_epoch)
        history = training.run(checkpoint, quiet)
    return Trained.of(classifier, batches, history, folder, record)


def checked_classifier(classifier: Classifier) -> Classifier:
    """Return the Classifier itself, where torch.compile has wrapped it; raise ArgumentError for anything else."""
    inner: object = getattr(classifier, "_orig_mod", classifier)
    if not isinstance(inner, Classifier):
        raise ArgumentError(
            f"Expected a Classifier but got a {type(classifier).__name__}: offaxis.attach(network) gives it a cosine head, "
            "attach(network, head='linear') a linear one."
        )
    return inner


def launch(fabric: "Fabric") -> None:
    """Start the processes of a Fabric, unless ``fabric run`` has started them."""
    if os.environ.get("LT_CLI_USED") != "1":
        fabric.launch()


def fabric_on(
    device: "str | torch.device | Fabric", devices: int = 1, nodes: int = 1, precision: Precision = "32-true"
) -> "Fabric":
    """Make a Fabric of one process on a device, or of several; a Fabric is returned as it is."""
    from lightning_fabric import Fabric  # takes a second to import, which `offaxis --help` need not

    if isinstance(device, Fabric):
        return device
    chosen, several = resolve_device(device), devices * nodes > 1
    numbered = chosen.index is not None and chosen.type != "cpu" and not several
    try:
        return Fabric(
            accelerator=chosen.type,
            devices=[chosen.index] if numbered else devices,
            num_nodes=nodes,
            precision=precision,
            strategy="ddp" if several else "auto",
        )
    except (RuntimeError, ValueError, TypeError, ImportError) as error:
        raise ArgumentError(
            f"Expected --device, --devices and --precision to be what this machine has but got {device}, {devices} and "
            f"{precision}: {' '.join(str(error).split())} Try --device auto --devices 1."
        ) from error


@dataclass
class _Training:
    """One training in progress."""

    classifier: Classifier
    batches: TrainingBatches
    loss: Loss
    fabric: "Fabric"
    folder: RunFolder | None
    validation: Iterable[tuple[Tensor, Tensor]] | None
    after_epoch: AfterEpoch | None

    def __post_init__(self) -> None:
        classifier, recipe, steps = self.classifier, self.batches.recipe, self.batches.steps_per_epoch
        self.recipe = recipe
        self.writes = self.folder if self.fabric.is_global_zero else None
        self.every = (self.folder and self.folder.log_every) or max(1, min(50, steps // 10))
        self.scaled = getattr(classifier.head, "scale", None) is not None
        self.sums, self.seconds = [0.0] * 4, 0.0  # of the epoch so far
        self.pending = torch.zeros(4, device=self.fabric.device)  # since the last report, as the next two
        self.reported, self.waiting = 0, 0.0
        self.history: list[dict[str, Any]] = []
        window = max(10, min(100, steps // 2))
        self.guard = CollapseGuard(classifier.num_classes, window, recipe.clip, recipe.learning_rate)
        # Small convolutional networks train faster with channels last, on the CPU too (benchmarks/memory_format.py).
        classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        classifier.train()
        optimizer = torch.optim.SGD(
            classifier.parameter_groups(recipe.weight_decay, recipe.decay_head, recipe.backbone_rate),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
        )
        self.module, self.optimizer = self.fabric.setup(_LossModule(classifier, self.loss), optimizer)
        self.clip = None if recipe.clip is None else RelativeClip(recipe.clip, self.fabric.device)

    def run(self, checkpoint: Checkpoint | None, quiet: bool) -> list[dict[str, Any]]:
        """Take all remaining steps; return one record per epoch."""
        first = 0 if checkpoint is None else self._restore(checkpoint)
        progress = Progress("training", self.batches.steps, quiet or not self.fabric.is_global_zero, first)
        with progress, _signals() as received:
            self._steps(first, progress, received)
        if self.writes is not None:
            self.writes.finish(self.classifier)
        if self.history and self.fabric.is_global_zero:
            by_accuracy = self.loss is not cross_entropy or getattr(self.classifier.head, "normalises_logits", False)
            self.guard.check_end(self.history[-1]["loss"], self.history[-1]["accuracy"], by_accuracy=by_accuracy)
        return self.history

    def _steps(self, first: int, progress: Progress, received: list[int]) -> None:
        last = self.batches.steps
        begun = time.monotonic()
        for step, share in zip(range(first, last), self.batches.read(first, last), strict=True):
            self.pending = self.pending + self._step(step, share)
            done = step + 1
            epoch_ends = done % self.batches.steps_per_epoch == 0
            reports = epoch_ends or done % self.every == 0
            stops = done < last and self._must_stop(received, reports)
            if reports or stops:
                self.waiting, begun = self.waiting + time.monotonic() - begun, time.monotonic()
            if reports:
                self._report(done, progress)
            if epoch_ends:
                self._end_epoch(done, progress)
                begun = time.monotonic()
            if stops:
                self._stop(received, done)

    def _step(self, number: int, share: Share) -> Tensor:
        """Take one step, from 0; return what ``batch_sums`` computes."""
        images, labels = self.batches.prepare(number, share, self.fabric.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.batches.learning_rate(number) * group.get("rate", 1.0)
        torch.manual_seed(self.batches.derived_seed("dropout", number * self.batches.processes + self.batches.rank))
        loss, sums = self.module(images, labels)
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        limits = [] if self.clip is None else [self.clip.limit()]
        limits += [] if self.recipe.max_norm is None else [torch.tensor(self.recipe.max_norm, device=loss.device)]
        if limits:
            largest: Any = torch.stack(limits).min()  # a tensor, so that no device has to wait
            norm = self.fabric.clip_gradients(self.module, self.optimizer, max_norm=largest, error_if_nonfinite=False)
            if self.clip is not None and norm is not None:
                self.clip.add(norm.detach())
        self.optimizer.step()
        measured: Tensor = sums
        return measured

    def _report(self, done: int, progress: Progress) -> None:
        """Log the last steps, show them, and check that nothing went wrong."""
        total = self.fabric.all_reduce(self.pending, reduce_op="sum")
        assert isinstance(total, Tensor)
        recent: list[float] = total.tolist()
        self.sums = [a + b for a, b in zip(self.sums, recent, strict=True)]
        self.seconds += self.waiting
        means = mean_values(recent, self.waiting, self.scaled)
        record = self._record("step", done, means)
        shown = {
            "epoch": f"{record['epoch']}/{self.recipe.epochs}",
            "loss": f"{means['loss']:.3f}",
            "accuracy": f"{means['accuracy']:.1%}",
            "lr": f"{record['learning_rate']:g}",
        }
        shown |= {"scale": f"{means['scale']:.2f}"} if self.scaled else {}
        progress.to(done, shown | {"images/s": f"{means['images_per_second'] or 0:.0f}"})
        self.guard.check(done, done - self.reported, means["loss"], means["scale"])
        self.pending, self.reported, self.waiting = torch.zeros_like(total), done, 0.0

    def _end_epoch(self, done: int, progress: Progress) -> None:
        means = mean_values(self.sums, self.seconds, self.scaled) | {"seconds": round(self.seconds, 3)}
        if self.validation is not None:
            with self.fabric.autocast():
                means["validation_accuracy"] = accuracy(self.classifier, self.validation, check_finite=False)
            progress.say(f"epoch {len(self.history) + 1}: validation accuracy {means['validation_accuracy']:.2%}")
        self.history.append(self._record("epoch", done, means))
        if self.after_epoch is not None:
            self.classifier.eval()
            self.after_epoch(len(self.history), self.classifier)
            self.classifier.train()
        self.sums, self.seconds = [0.0] * 4, 0.0
        self._save(done)

    def _record(self, kind: str, done: int, means: dict[str, Any]) -> dict[str, Any]:
        """Log a line and return it."""
        where = {"kind": kind, "step": done, "epoch": (done - 1) // self.batches.steps_per_epoch + 1}
        record = {**where, "learning_rate": self.batches.learning_rate(done - 1), **means}
        if self.writes is not None:
            self.writes.log(record)
        return record

    def _save(self, done: int) -> None:
        """Write a checkpoint: all that the remaining steps depend on, after ``done`` steps."""
        if self.writes is not None:
            progress = {
                "run": self.writes.key(),
                "sums": self.sums,
                "seconds": self.seconds,
                "pending": self.pending.tolist(),
                "reported": self.reported,
                "waiting": self.waiting,
                "history": self.history,
                "precision": self.fabric.strategy.precision.state_dict(),
                "relative_clip": None if self.clip is None else self.clip.state(),
            }
            state, named = self.optimizer.state, self.classifier.named_parameters()
            buffers = {name: state[p].get("momentum_buffer") for name, p in named if p in state}
            momentum = {name: buffer for name, buffer in buffers.items() if buffer is not None}
            saved = Checkpoint(done, progress, self.classifier.state_dict(), momentum)
            save_checkpoint(self.writes.checkpoint, saved)
        self.fabric.barrier()

    def _restore(self, checkpoint: Checkpoint) -> int:
        """Resume from a checkpoint; return how many steps are done."""
        assert self.folder is not None
        restore(self.classifier, checkpoint.weights, self.folder.checkpoint)
        for name, parameter in self.classifier.named_parameters():
            if name in checkpoint.momentum:
                # zeros_like keeps the memory layout of the parameter, and with it the order of floating-point sums
                buffer = torch.zeros_like(parameter).copy_(checkpoint.momentum[name])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer
        progress = checkpoint.progress
        self.fabric.strategy.precision.load_state_dict(progress["precision"])
        if self.clip is not None:
            self.clip.restore(progress["relative_clip"])
        self.sums, self.seconds, self.history = progress["sums"], progress["seconds"], progress["history"]
        if "pending" in progress:  # those of older versions reported where they stopped
            self.pending = torch.tensor(progress["pending"], device=self.fabric.device)
            self.waiting = progress["waiting"]
        self.reported = progress.get("reported", checkpoint.step)
        return checkpoint.step

    def _must_stop(self, received: list[int], reports: bool) -> bool:
        """Return whether any process got a signal; with several, they ask each other only when they log."""
        if self.fabric.world_size == 1:
            return bool(received)
        if not reports:
            return False
        total = self.fabric.all_reduce(torch.tensor(float(len(received)), device=self.fabric.device), reduce_op="sum")
        return float(total) > 0  # type: ignore[arg-type]

    def _stop(self, received: list[int], done: int) -> None:
        whole, finished = self.batches.whole_epochs, done // self.batches.steps_per_epoch
        if not whole:  # else the checkpoint of the last epoch is the one to resume from
            self._save(done)
        number = received[0] if received else signal.SIGTERM
        if self.folder is None:
            left = "Nothing was kept, as no folder was named: a training with train(..., out=...) can be resumed."
        elif whole and not finished:
            left = "Nothing was kept, as no epoch was finished: a training on a DataLoader is resumed epoch by epoch."
        else:
            left = (
                f"Its state{f' after epoch {finished}' * whole} is saved: resume it with offaxis train --resume and the same "
                f"options, or train(..., out={str(self.folder.path)!r}, resume=True)."
            )
        name = signal.Signals(number).name
        raise TrainingStopped(f"Stopped by {name} after step {done} of {self.batches.steps}. {left}", number)


class _LossModule(nn.Module):
    """Forward pass, loss and logged sums as one module, which Fabric can wrap for several processes."""

    def __init__(self, classifier: Classifier, loss: Loss) -> None:
        super().__init__()
        self.classifier = classifier
        self.loss: Any = loss
        self.of_logits = takes_logits(loss)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        out = self.classifier.outputs(images)
        own: Any = self.classifier.head.loss if self.loss is cross_entropy else self.loss
        loss: Tensor = own(out.logits if self.of_logits else out, labels)
        if loss.dim():
            raise ArgumentError(
                f"Expected a loss that is one number, the mean over a batch, but got one of shape {tuple(loss.shape)}: "
                "reduction='mean', or take the mean of it."
            )
        return loss, batch_sums(out, labels, loss)


def batch_sums(out: Outputs, labels: Tensor, loss: Tensor) -> Tensor:
    """Compute the sums (4,) over a batch of loss, hits and scale, and the number of images, on the batch's device."""
    with torch.no_grad():
        count = loss.new_tensor(float(len(labels)))
        hits = (out.logits.argmax(1) == labels).sum().to(loss.dtype)
        scale = loss.new_zeros(()) if out.scale is None else out.scale.sum().to(loss.dtype)
        return torch.stack([loss.detach() * count, hits, scale, count])


def mean_values(sums: list[float], seconds: float, scaled: bool) -> dict[str, Any]:
    """Compute mean loss, accuracy in [0, 1], mean scale (None where the head has none) and images per second of sums."""
    loss, hits, scale, count = sums
    return {
        "loss": loss / count,
        "accuracy": hits / count,
        "scale": scale / count if scaled else None,
        "images_per_second": round(count / seconds, 1) if seconds else None,
    }


class RelativeClip:
    """Gradient clipping relative to the running mean of the gradient's norm.

    The limit is ``factor`` times the mean of the norms so far (of about the last 50, later on), each counted after
    clipping. So one bad batch, whose gradient may be ten times the average, moves the weights no more than ``factor``
    ordinary batches would, while ordinary gradients are not clipped, whatever the network's size.
    """

    memory = 50

    def __init__(self, factor: float, device: torch.device) -> None:
        self.factor = factor
        self.count = torch.zeros((), device=device)
        self.mean = torch.zeros((), device=device)

    def limit(self) -> Tensor:
        """Return the largest norm that the next gradient may have; infinity before the first."""
        return torch.where(self.mean > 0, self.factor * self.mean, torch.inf)

    def add(self, norm: Tensor) -> None:
        """Add a gradient's norm before clipping to the running mean.

        Norms that are not finite are ignored: in 16 bits gradients overflow now and then, and such a step is skipped.
        """
        clipped = torch.minimum(norm.to(self.mean), self.limit())
        counts = torch.isfinite(clipped)
        self.count = self.count + counts
        moved = self.mean + (clipped - self.mean) / self.count.clamp(1, self.memory)
        self.mean = torch.where(counts, moved, self.mean)

    def state(self) -> list[float]:
        """Return what a checkpoint keeps: the number of norms and their running mean."""
        return [int(self.count), float(self.mean)]

    def restore(self, state: list[float]) -> None:
        """Resume from what ``state`` returned."""
        self.count = torch.full_like(self.count, state[0])
        self.mean = torch.full_like(self.mean, state[1])


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield a list for the first SIGINT or SIGTERM inside the block, which is not acted on; a second one acts as before."""
    received, before = list[int](), dict[int, Any]()

    def restore_handlers() -> None:
        while before:
            signal.signal(*before.popitem())

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        restore_handlers()

    if threading.current_thread() is threading.main_thread():  # elsewhere Python forbids handlers
        before |= {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        restore_handlers()
