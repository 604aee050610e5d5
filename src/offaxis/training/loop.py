"""Images -> trained Classifier: the training loop."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offaxis.data import ImageSet, Normalise
from offaxis.errors import TrainingStopped
from offaxis.heads.batch_norm import synchronise
from offaxis.networks.classifier import Classifier
from offaxis.progress import Progress
from offaxis.training import checkpoint as checkpoints
from offaxis.training.checkpoint import Checkpoint
from offaxis.training.guard import CollapseGuard, StopRequest
from offaxis.training.plan import Plan
from offaxis.training.recipe import Recipe, laptop
from offaxis.training.run import RunFolder, Trained, check_images, find_earlier, settings_of
from offaxis.training.step import Loss, RunningMeans, Stepper, cross_entropy

if TYPE_CHECKING:
    from lightning_fabric import Fabric

AfterEpoch = Callable[[int, Classifier], None]
"""(number of the epoch, from 1; the network as it is then, in eval mode) -> None."""


def train(
    classifier: Classifier,
    data: ImageSet,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    normalise: Normalise | None = None,
    validation: ImageSet | None = None,
    loss: Loss = cross_entropy,
    after_epoch: AfterEpoch | None = None,
    fabric: "Fabric | None" = None,
    sync_bn: bool = False,
    log_every: int | None = None,
    title: str = "training",
    quiet: bool = False,
) -> Trained:
    """Train a classifier, in place.

    The same seed, weights and machine give the same result, bit for bit on the CPU, interrupted or not: everything
    random is a function of the seed and the step. The first weights are the caller's: call ``torch.manual_seed`` before
    making the network.

    Args:
        classifier: the network, made by offaxis.networks or ``attach``.
        data: labelled training images.
        recipe: epochs, batch size, learning rate and so on; ``laptop()`` if None.
        seed: of the images' order, crops, flips and dropout.
        out: a folder for checkpoints, the log and the trained weights; None keeps nothing.
        resume: go on with the run in ``out`` if there is one.
        normalise: mean and std; those of ``data`` if None.
        validation: labelled images whose accuracy is measured after each epoch; they have no effect on the training.
        loss: what is minimised.
        after_epoch: called in every process with the number of each epoch, from 1, and the network in eval mode, before
            the epoch's checkpoint is written; it must not change the network. A resumed training calls it for the epochs
            that it trains itself, not for those before.
        fabric: device, precision and processes; one device in 32 bits if None.
        sync_bn: batch normalisations of the backbone, too, take their statistics over all processes. Those of the scale
            always do.
        log_every: steps between two lines of the log; about ten an epoch if None.
        title: what the progress bar calls it.
        quiet: show no progress.

    Raises:
        NotFiniteError, ScaleCollapseError: training went wrong; the message says why and what helps.
        TrainingStopped: Ctrl-C or SIGTERM; the state is saved where there is a folder.
    """
    recipe = recipe or laptop()
    check_images(classifier, data, validation)
    if fabric is None:
        from lightning_fabric import Fabric  # takes a second to import, which `offaxis --help` need not

        fabric = Fabric(accelerator="auto", devices=1)
    fabric.launch()
    if sync_bn:
        synchronise(classifier)
    normalise = normalise or Normalise.from_images(data)
    plan = Plan(len(data), recipe, seed, fabric.world_size, fabric.global_rank)
    settings = settings_of(classifier, data, plan, normalise, loss, fabric, sync_bn)
    folder = None if out is None else RunFolder(Path(out))
    found = find_earlier(fabric, folder, settings, resume)
    training = _Training(classifier, data, plan, normalise, validation, loss, fabric, folder, settings, log_every)
    training.after_epoch = after_epoch
    with torch.random.fork_rng():
        history = training.run(found, title, quiet)
    return Trained(classifier.eval(), normalise, data.classes, tuple(history), folder.path if folder else None)


class _Training:
    """One training under way."""

    def __init__(
        self,
        classifier: Classifier,
        data: ImageSet,
        plan: Plan,
        normalise: Normalise,
        validation: ImageSet | None,
        loss: Loss,
        fabric: "Fabric",
        folder: RunFolder | None,
        settings: dict[str, Any],
        log_every: int | None,
    ) -> None:
        self.classifier, self.data, self.plan, self.normalise = classifier, data, plan, normalise
        self.validation, self.fabric, self.folder, self.settings = validation, fabric, folder, settings
        recipe = plan.recipe
        self.every = log_every or max(1, min(50, plan.steps_per_epoch // 10))
        window = max(10, min(100, plan.steps_per_epoch // 2))
        self.watch = CollapseGuard(classifier.num_classes, window, recipe.clip, recipe.learning_rate)
        self.scaled = getattr(classifier.head, "scale", None) is not None
        self.stepper = Stepper(classifier, plan, normalise, loss, fabric)
        self.epoch_tally = RunningMeans()
        self.history: list[dict[str, Any]] = []
        self.after_epoch: AfterEpoch | None = None

    def run(self, found: Checkpoint | None, title: str, quiet: bool) -> list[dict[str, Any]]:
        """All steps that are left; returns one record an epoch."""
        first = 0 if found is None else self._restore(found)
        self.last = last = self.plan.steps
        progress = Progress(title, last, quiet or not self.fabric.is_global_zero, first)
        with progress, StopRequest() as request:
            self._steps(first, last, progress, request)
        if self.folder is not None and self.fabric.is_global_zero:
            self.folder.finish(self.classifier)
        if self.history and self.fabric.is_global_zero:
            self.watch.end(self.history[-1]["loss"])
        return self.history

    def _steps(self, first: int, last: int, progress: Progress, request: StopRequest) -> None:
        per_epoch = self.plan.steps_per_epoch
        pending, since, begun = torch.zeros((), device=self.fabric.device), first, time.monotonic()
        ahead = self.data.stream(indices for indices, _, _ in self.plan.batches(first, last))
        assert self.data.labels is not None
        for step, share, images in zip(range(first, last), self.plan.batches(first, last), ahead, strict=True):
            indices, start, total = share
            pending = pending + self.stepper.step(step, images, self.data.labels[indices], start, total)
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
        """Log the last steps, show them, and look whether something went wrong."""
        total = self.fabric.all_reduce(pending, reduce_op="sum")
        assert isinstance(total, Tensor)
        tally = RunningMeans()
        tally.add(total.tolist(), seconds)
        self.epoch_tally.add(tally.sums, seconds)
        means = tally.means(self.scaled)
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
        self.watch.look(done, steps, means["loss"], means["scale"])

    def _end_epoch(self, done: int, progress: Progress) -> None:
        record = self._record("epoch", done, self.epoch_tally.means(self.scaled))
        record["seconds"] = round(self.epoch_tally.seconds, 3)
        if self.validation is not None:
            record["validation_accuracy"] = self._accuracy(self.validation)
            progress.say(f"epoch {record['epoch']}: validation accuracy {record['validation_accuracy']:.2%}")
        self._log(record)
        self.history.append(record)
        if self.after_epoch is not None:
            self.classifier.eval()
            self.after_epoch(record["epoch"], self.classifier)
            self.classifier.train()
        self.epoch_tally = RunningMeans()
        self._save(done)

    @torch.no_grad()
    def _accuracy(self, images: ImageSet) -> float:
        assert images.labels is not None
        self.classifier.eval()
        hits = 0
        for indices in torch.arange(len(images)).split(512):
            batch = self.stepper.prepare(images.batch(indices).to(self.fabric.device))
            with self.fabric.autocast():
                predicted = self.classifier(self.fabric.strategy.precision.convert_input(batch)).argmax(1)
            hits += int((predicted.cpu() == images.labels[indices]).sum())
        self.classifier.train()
        return hits / len(images)

    def _record(self, kind: str, done: int, means: dict[str, Any]) -> dict[str, Any]:
        epoch = (done - 1) // self.plan.steps_per_epoch + 1
        return {"kind": kind, "step": done, "epoch": epoch, "learning_rate": self.plan.learning_rate(done - 1), **means}

    def _log(self, record: dict[str, Any]) -> None:
        if self.folder is not None and self.fabric.is_global_zero:
            self.folder.log(record)

    def _save(self, done: int) -> None:
        if self.folder is not None and self.fabric.is_global_zero:
            tally = self.epoch_tally
            so_far = {"sums": tally.sums, "seconds": tally.seconds, "history": self.history}
            checkpoints.save_checkpoint(self.folder.checkpoint, self.stepper.state(done, self.settings, so_far))
        self.fabric.barrier()

    def _restore(self, found: Checkpoint) -> int:
        assert self.folder is not None
        checkpoints.restore(self.classifier, found.weights, self.folder.checkpoint)
        self.stepper.restore(found)
        self.epoch_tally = RunningMeans(list(found.progress["sums"]), found.progress["seconds"])
        self.history = list(found.progress["history"])
        return found.step

    def _must_stop(self, request: StopRequest, done: int, epoch_ends: bool) -> bool:
        """Whether any process was asked to stop; with several, they ask each other only now and then."""
        asked = request.number is not None
        if self.fabric.world_size == 1 or not (done % self.every == 0 or epoch_ends):
            return asked and self.fabric.world_size == 1
        total = self.fabric.all_reduce(torch.tensor(float(asked), device=self.fabric.device), reduce_op="sum")
        return float(total) > 0  # type: ignore[arg-type]

    def _stop(self, request: StopRequest, done: int) -> None:
        if done < self.last:
            self._save(done)
            name = signal.Signals(request.number or signal.SIGTERM).name
            how = (
                f"Its state is saved: go on with offaxis train --resume and the same options, or train(..., out="
                f"{str(self.folder.path)!r}, resume=True)."
                if self.folder is not None
                else "Nothing was kept, as no folder was named: train(..., out=...) makes a training that can go on."
            )
            raise TrainingStopped(f"Stopped by {name} after step {done} of {self.last}. {how}", request.number)
