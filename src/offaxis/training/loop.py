"""The training loop: images or batches -> a trained Classifier."""

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offaxis.data import Normalise
from offaxis.errors import ArgumentError, TrainingStopped
from offaxis.names import RECIPES
from offaxis.networks.classifier import Classifier
from offaxis.networks.run import accuracy, is_slow_in_bfloat16, resolve_device
from offaxis.networks.weights import restore
from offaxis.progress import Progress
from offaxis.training import checkpoint as checkpoints
from offaxis.training.batches import TrainingBatches, make_training_batches, make_validation_batches
from offaxis.training.checkpoint import Checkpoint
from offaxis.training.recipe import Recipe, usual_recipe
from offaxis.training.record import RunFolder, Trained, open_run, run_record
from offaxis.training.step import CollapseGuard, Loss, RunningMeans, Stepper, StopRequest, cross_entropy

if TYPE_CHECKING:
    from lightning_fabric import Fabric

AfterEpoch = Callable[[int, Classifier], None]
"""(number of the epoch, from 1; the network after it, in eval mode) -> None."""


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
            ``nn.CrossEntropyLoss(label_smoothing=0.1)``, which is given the logits.
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
    classifier = checked_classifier(classifier)
    fabric = fabric_on(device)
    if str(fabric.strategy.precision.precision).startswith("bf16") and is_slow_in_bfloat16(fabric.device):
        warnings.warn(
            "This CPU has no instructions for bfloat16: training takes many times as long as in 32 bits (--precision "
            "32-true, Fabric(precision='32-true')).",
            stacklevel=2,
        )
    launch(fabric)
    recipe = RECIPES[usual_recipe(classifier)]() if recipe is None else recipe
    batches = make_training_batches(classifier, data, recipe, seed=seed, normalise=normalise, fabric=fabric)
    to_validate = None if validation is None else make_validation_batches(classifier, validation, batches)
    folder = None if out is None else RunFolder.of(out)
    record = run_record(classifier, batches, loss, fabric, folder)
    with folder or nullcontext():
        checkpoint = open_run(fabric, folder, record, resume)
        training = _Training(
            classifier,
            batches,
            validation=to_validate,
            stepper=Stepper(classifier, batches, loss, fabric),
            folder=folder,
            settings=record["settings"],
            after_epoch=after_epoch,
        )
        with torch.random.fork_rng():
            history = training.run(checkpoint, quiet)
    return Trained(
        classifier=classifier.eval(),
        normalise=batches.normalise,
        classes=batches.classes,
        history=tuple(history),
        folder=None if folder is None else folder.path,
        record=record,
    )


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


def fabric_on(device: "str | torch.device | Fabric") -> "Fabric":
    """Make a Fabric of one process on a device, in 32 bits; a Fabric is returned as it is."""
    from lightning_fabric import Fabric  # takes a second to import, which `offaxis --help` need not

    if isinstance(device, Fabric):
        return device
    chosen = resolve_device(device)
    return Fabric(accelerator=chosen.type, devices=device_numbers(chosen))


def device_numbers(device: torch.device) -> int | list[int]:
    """Return ``devices`` of a Fabric for one device: the number of a GPU where one is named; a CPU has no number."""
    return 1 if device.index is None or device.type == "cpu" else [device.index]


class _Training:
    """One training in progress."""

    def __init__(
        self,
        classifier: Classifier,
        batches: TrainingBatches,
        *,
        validation: Iterable[tuple[Tensor, Tensor]] | None,
        stepper: Stepper,
        folder: RunFolder | None,
        settings: dict[str, Any],
        after_epoch: AfterEpoch | None,
    ) -> None:
        self.classifier, self.batches, self.plan, self.stepper = classifier, batches, batches.plan, stepper
        self.validation, self.fabric, self.folder, self.settings = validation, stepper.fabric, folder, settings
        self.after_epoch = after_epoch
        recipe, per_epoch = self.plan.recipe, self.plan.steps_per_epoch
        self.every = (folder and folder.log_every) or max(1, min(50, per_epoch // 10))
        self.guard = CollapseGuard(
            num_classes=classifier.num_classes,
            window=max(10, min(100, per_epoch // 2)),
            clip=recipe.clip,
            learning_rate=recipe.learning_rate,
        )
        self.scaled = getattr(classifier.head, "scale", None) is not None
        self.epoch_means = RunningMeans()
        self.history: list[dict[str, Any]] = []

    def run(self, checkpoint: Checkpoint | None, quiet: bool) -> list[dict[str, Any]]:
        """Take all remaining steps; return one record per epoch."""
        first = 0 if checkpoint is None else self._restore(checkpoint)
        progress = Progress("training", self.plan.steps, quiet or not self.fabric.is_global_zero, first)
        with progress, StopRequest() as request:
            self._steps(first, progress, request)
        if self.folder is not None and self.fabric.is_global_zero:
            self.folder.finish(self.classifier)
        if self.history and self.fabric.is_global_zero:
            last = self.history[-1]
            plain = self.stepper.plain_loss and not getattr(self.classifier.head, "normalises_logits", False)
            self.guard.check_end(last["loss"], last["accuracy"], by_accuracy=not plain)
        return self.history

    def _steps(self, first: int, progress: Progress, request: StopRequest) -> None:
        per_epoch, last = self.plan.steps_per_epoch, self.plan.steps
        pending, since, begun = torch.zeros((), device=self.fabric.device), first, time.monotonic()
        for step, share in zip(range(first, last), self.batches.read(first, last), strict=True):
            pending = pending + self.stepper.step(step, share)
            done = step + 1
            epoch_ends = done % per_epoch == 0
            if done % self.every == 0 or epoch_ends:
                now = time.monotonic()
                self._report(pending, done, done - since, now - begun, progress)
                pending, since, begun = torch.zeros((), device=self.fabric.device), done, now
            if epoch_ends:
                self._end_epoch(done, progress)
                begun = time.monotonic()
            if self._must_stop(request, done, epoch_ends):
                if since != done:
                    self._report(pending, done, done - since, time.monotonic() - begun, progress)
                self._stop(request, done)

    def _report(self, pending: Tensor, done: int, steps: int, seconds: float, progress: Progress) -> None:
        """Log the last steps, show them, and check that nothing went wrong."""
        total = self.fabric.all_reduce(pending, reduce_op="sum")
        assert isinstance(total, Tensor)
        recent = RunningMeans()
        recent.add(total.tolist(), seconds)
        self.epoch_means.add(recent.sums, seconds)
        means = recent.means(self.scaled)
        record = self._record("step", done, means)
        self._log(record)
        shown = {
            "epoch": f"{record['epoch']}/{self.plan.recipe.epochs}",
            "loss": f"{means['loss']:.3f}",
            "accuracy": f"{means['accuracy']:.1%}",
            "lr": f"{record['learning_rate']:g}",
        }
        shown |= {"scale": f"{means['scale']:.2f}"} if self.scaled else {}
        progress.to(done, shown | {"images/s": f"{means['images_per_second'] or 0:.0f}"})
        self.guard.check(done, steps, means["loss"], means["scale"])

    def _end_epoch(self, done: int, progress: Progress) -> None:
        record = self._record("epoch", done, self.epoch_means.means(self.scaled))
        record["seconds"] = round(self.epoch_means.seconds, 3)
        if self.validation is not None:
            with self.fabric.autocast():
                record["validation_accuracy"] = accuracy(self.classifier, self.validation, check_finite=False)
            progress.say(f"epoch {record['epoch']}: validation accuracy {record['validation_accuracy']:.2%}")
        self._log(record)
        self.history.append(record)
        if self.after_epoch is not None:
            self.classifier.eval()
            self.after_epoch(record["epoch"], self.classifier)
            self.classifier.train()
        self.epoch_means = RunningMeans()
        self._save(done)

    def _record(self, kind: str, done: int, means: dict[str, Any]) -> dict[str, Any]:
        epoch = (done - 1) // self.plan.steps_per_epoch + 1
        return {"kind": kind, "step": done, "epoch": epoch, "learning_rate": self.plan.learning_rate(done - 1), **means}

    def _log(self, record: dict[str, Any]) -> None:
        if self.folder is not None and self.fabric.is_global_zero:
            self.folder.log(record)

    def _save(self, done: int) -> None:
        if self.folder is not None and self.fabric.is_global_zero:
            means = self.epoch_means
            so_far = {"sums": means.sums, "seconds": means.seconds, "history": self.history}
            checkpoints.save_checkpoint(self.folder.checkpoint, self.stepper.state(done, self.settings, so_far))
        self.fabric.barrier()

    def _restore(self, checkpoint: Checkpoint) -> int:
        assert self.folder is not None
        restore(self.classifier, checkpoint.weights, self.folder.checkpoint)
        self.stepper.restore(checkpoint)
        progress = checkpoint.progress
        self.epoch_means = RunningMeans(list(progress["sums"]), progress["seconds"])
        self.history = list(progress["history"])
        return checkpoint.step

    def _must_stop(self, request: StopRequest, done: int, epoch_ends: bool) -> bool:
        """Return whether any process got a signal; with several, they ask each other only when they log."""
        requested = request.number is not None
        if self.fabric.world_size == 1 or not (done % self.every == 0 or epoch_ends):
            return requested and self.fabric.world_size == 1
        total = self.fabric.all_reduce(torch.tensor(float(requested), device=self.fabric.device), reduce_op="sum")
        return float(total) > 0  # type: ignore[arg-type]

    def _stop(self, request: StopRequest, done: int) -> None:
        if done == self.plan.steps:
            return
        if not self.batches.whole_epochs:  # else the checkpoint of the last epoch is the one to resume from
            self._save(done)
        name = signal.Signals(request.number or signal.SIGTERM).name
        raise TrainingStopped(
            f"Stopped by {name} after step {done} of {self.plan.steps}. {self._how_to_resume(done)}", request.number
        )

    def _how_to_resume(self, done: int) -> str:
        if self.folder is None:
            return "Nothing was kept, as no folder was named: a training with train(..., out=...) can be resumed."
        finished = done // self.plan.steps_per_epoch
        if self.batches.whole_epochs and not finished:
            return "Nothing was kept, as no epoch was finished: a training on a DataLoader is resumed epoch by epoch."
        saved = f"Its state after epoch {finished} is saved" if self.batches.whole_epochs else "Its state is saved"
        return (
            f"{saved}: resume it with offaxis train --resume and the same options, or train(..., out="
            f"{str(self.folder.path)!r}, resume=True)."
        )
