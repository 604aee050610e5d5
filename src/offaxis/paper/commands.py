"""The trainings and evaluations of a reproduction: what each computes, whether it is done, and the command that does it."""

import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis.data import CATALOGUE, relation
from offaxis.data.catalogue import data_root, known
from offaxis.data.load import own_path
from offaxis.errors import ArgumentError, DataError, RunError
from offaxis.evaluation.protocols import POOLS, sets_for
from offaxis.files import digest, write_text
from offaxis.networks import by_name
from offaxis.networks.classifier import Classifier
from offaxis.networks.run import to_network
from offaxis.options import EvaluateOptions, Kind, ProtocolName, TrainOptions
from offaxis.paper.settings import Settings
from offaxis.training import read_run
from offaxis.training.recipe import recipe_of
from offaxis.training.record import recorded_options

Note = Callable[[str], None]
"""Called with a sentence for the user."""


def variant_of(run: TrainOptions) -> str:
    """Return what tells a training from others of the same network and head, such as ``scale 16 decay-head``."""
    numbers = {"scale": run.scale, "hidden": run.hidden, "tau": run.tau, "margin": run.margin}
    parts = [f"{name} {v if isinstance(v, str) else f'{v:g}'}" for name, v in numbers.items() if v is not None]
    parts += ["start sizes"] if run.start == "sizes" else []  # names without a start are older than this choice
    parts += ["decay-head"] if run.decay_head else []
    parts += ["frozen"] if run.freeze else []
    parts += ["leave-out {}/{}".format(*run.leave_out)] if run.leave_out is not None else []
    return " ".join(parts)


def run_name(run: TrainOptions, special: str = "") -> str:
    """Return the name of a training's folder, such as ``wrn-28-10-cosine-scale-16-cifar10-seed0``."""
    variant = f"{variant_of(run)} {special}".strip().replace(" ", "-").replace("/", "of")
    return "-".join(filter(None, (run.architecture, run.head, variant, run.id, f"seed{run.seed}")))


@dataclass(frozen=True)
class CommandCost:
    """The cost of a command, in images.

    Attributes:
        network: the architecture that they go through.
        id: the set whose images have their size.
        forward: images through the network.
        backward: images back through it.
    """

    network: str
    id: str
    forward: float
    backward: float


@dataclass(frozen=True, kw_only=True)
class Command:
    """A training or an evaluation.

    Attributes:
        words: what follows ``offaxis`` in the shell.
        out: the folder of the trained network, or the results store.
        name: no other command of the reproduction has it.
        record: the file by which it is known to have been run to its end.
        needs: files without which that means nothing.
        cost: what it costs.
        running: the options that results do not depend on: where it writes and runs, and where image sets are kept.
    """

    words: tuple[str, ...]
    out: Path
    name: str
    record: Path
    needs: tuple[Path, ...] = ()
    cost: CommandCost
    running: dict[str, Any]

    @property
    def command(self) -> str:
        """The command as it is typed, where ``OFFAXIS_DATA`` is what it is here."""
        return shlex.join(["offaxis", *self.argv(self.running["device"])])

    def argv(self, device: str) -> list[str]:
        """Return what follows ``offaxis`` on a device, where ``OFFAXIS_DATA`` is what it is here."""
        data = self.running["data"]
        where = [] if device == "auto" else ["--device", device]
        where += [] if data is None or str(data) == os.environ.get("OFFAXIS_DATA") else ["--data", str(data)]
        return [*self.words, *where]

    @property
    def done(self) -> bool:
        """Whether it has been run to its end, with the networks that are there."""
        return all(path.exists() for path in (self.record, *self.needs))

    def mark(self) -> None:
        """Record that it has been run to its end, where its output does not show it."""

    def forget(self) -> None:
        """Remove that record; the output stays."""

    def check(self) -> None:
        """Raise RunError where there is output already that was computed with other settings."""

    def run(self, quiet: bool = False, note: Note = lambda _: None) -> None:
        """Run it in this process, and mark it as done."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TrainCommand(Command):
    """A training; ``offaxis train`` continues it where it stopped.

    Attributes:
        training: what is trained.
    """

    training: TrainOptions

    def check(self) -> None:
        """Raise RunError where the network in the folder was trained with other options."""
        if not (self.done or (self.out / "run.json").exists()):
            return
        recorded = recorded_options(read_run(self.out))
        differs = {} if recorded is None else self.training.differences(recorded)
        if differs:
            wanted, found = (", ".join(f"{name} {pair[place]}" for name, pair in differs.items()) for place in (0, 1))
            raise RunError(
                f"Expected a network trained with {wanted} but the one in {self.out} was trained with {found}: name other "
                "folders (--out, --runs), or remove this one and the results that were computed with it."
            )

    def run(self, quiet: bool = False, note: Note = lambda _: None) -> None:
        """Train the network, or continue its training."""
        from offaxis.training.start import train_by_options

        options = replace(self.training, **self.running, resume=True, quiet=quiet)
        train_by_options(options, ("offaxis", *self.words), note)


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(Command):
    """An evaluation; a file records that it is done, as the store alone does not show it.

    Attributes:
        evaluation: what is evaluated.
    """

    evaluation: EvaluateOptions

    def mark(self) -> None:
        """Record that it has been run to its end."""
        write_text(self.record, self.command + "\n")

    def forget(self) -> None:
        """Remove that record; the results stay in the store."""
        self.record.unlink(missing_ok=True)

    def run(self, quiet: bool = False, note: Note = lambda _: None) -> None:
        """Evaluate the networks into the store, and mark it as done."""
        from offaxis.evaluation.evaluating import evaluate_by_options

        options = replace(self.evaluation, **self.running, quiet=quiet)
        evaluate_by_options(options, ("offaxis", *self.words), note)
        self.mark()


GRID_PASSES = {"odin": (41.0, 4.0), "mahalanobis": (13.0, 4.0), "leave-out": (29.0, 4.0)}
"""Forward and backward passes an image over a whole grid; Mahalanobis goes only as far as each layer, about half way."""
GIVEN_PASSES = {"odin": (2.0, 1.0), "leave-out": (2.0, 1.0)}


@dataclass(frozen=True)
class Reproduction:
    """Where a reproduction lives and how large it is.

    Attributes:
        scale: how large.
        out: the folder for everything.
        runs: the folder for trainings; those that are there already are used as they are.
        data: where the catalogue's sets are kept; None for the default.
        device: where networks run.
        name: returns the name of a training's folder.
    """

    scale: Settings
    out: Path
    runs: Path
    data: Path | None = None
    device: str = "auto"
    name: Callable[[TrainOptions], str] = run_name

    @property
    def store(self) -> Path:
        """The results store, shared by all items of a scale."""
        return self.out / "results"

    def _running(self, out: Path) -> dict[str, Any]:
        return {"out": out, "device": self.device, "data": self.data}

    def train(self, run: TrainOptions) -> TrainCommand:
        """Return the command that trains a network, or continues its training."""
        epochs = recipe_of(run).epochs
        images = float(CATALOGUE[run.id].counts["train"] * epochs) if run.id in CATALOGUE else 0.0
        folder = self.runs / self.name(run)
        return TrainCommand(
            words=("train", *run.words(), "--resume", "--out", str(folder)),
            out=folder,
            name=folder.name,
            record=folder / "model.safetensors",
            cost=CommandCost(run.architecture, run.id, images, images),
            running=self._running(folder),
            training=run,
        )

    def evaluate(
        self,
        runs: Sequence[TrainOptions],
        ood: Sequence[str],
        detectors: Sequence[str],
        protocol: ProtocolName = "one-vs-one",
        *,
        tune: bool = True,
        kind: Kind = "single",
    ) -> EvaluateCommand:
        """Return the command that evaluates one network, or several combined into one.

        It is done for the sets that pools stand for on this machine now: a new set of a pool makes it undone.
        """
        first, folders = runs[0], [self.runs / self.name(run) for run in runs]
        evaluation = replace(
            self.scale.evaluation,
            networks=tuple(map(str, folders)),
            id=first.id,
            ood=tuple(ood),
            detectors=tuple(detectors),
            protocol=protocol,
            tune=tune,
            kind=kind,
        )
        here = replace(evaluation, ood=tuple(_sets_here(first.id, ood, self.data)))
        words, key = (["evaluate", *each.words(), "--out", str(self.store)] for each in (evaluation, here))
        name = f"evaluate-{digest(key)}"  # tells the words, with the sets that pools stand for
        return EvaluateCommand(
            words=tuple(words),
            out=self.store,
            name=name,
            record=self.out / "done" / name,
            needs=(self.store / "store.json", *(folder / "model.safetensors" for folder in folders)),
            cost=_evaluation_cost(evaluation, first),
            running=self._running(self.store),
            evaluation=evaluation,
        )


def _evaluation_cost(evaluation: EvaluateOptions, first: TrainOptions) -> CommandCost:
    """Return the cost of evaluating networks on the test images of the ID set and of the OOD sets."""
    names = [name for entry in evaluation.ood for name in POOLS.get(entry, (entry,)) if name in CATALOGUE]
    used = [name for name in dict.fromkeys(names) if name != first.id and not relation(first.id, name).refused]
    counts = [CATALOGUE[name].counts["test"] for name in (first.id, *used) if name in CATALOGUE]
    images = float(len(evaluation.networks) * sum(min(count, evaluation.images or count) for count in counts))
    passes = GRID_PASSES if evaluation.tune else GIVEN_PASSES
    costs = [passes.get(name, (0.0, 0.0)) for name in evaluation.detectors]
    forward, backward = 1 + sum(f for f, _ in costs), sum(b for _, b in costs)
    return CommandCost(first.architecture, first.id, images * forward, images * backward)


def _sets_here(id_name: str, ood: Sequence[str], data: Path | None) -> Sequence[str]:
    """Return the sets as they are named, or, where there are pools among them, those on this machine."""
    if not any(name in POOLS for name in ood):
        return ood
    try:
        return sets_for(id_name, ood, data)[0]
    except ArgumentError:
        return ()


def check_sets(
    steps: Iterable[Command], shown: Sequence[str] = (), data: Path | None = None, note: Note = lambda _: None
) -> None:
    """Look for every image set that commands need, before the first of them runs.

    Args:
        steps: the commands that are yet to run.
        shown: sets whose images a figure shows.
        data: where the catalogue's sets are kept.
        note: called with the sets of a pool that will be left out, as they are not here.

    Raises:
        DataError: a set is missing, or too many of a pool are; the message lists all of them.
        ArgumentError: there is no such set.
    """
    missing: dict[str, None] = {name: None for name in shown if not _has_splits(name, data, "test")}
    left_out: dict[str, None] = {}
    for step in steps:
        options = step.evaluation if isinstance(step, EvaluateCommand) else None
        id_name = str(step.cost.id)
        if not _has_splits(id_name, data, "train", "test"):
            missing[id_name] = None
        if options is None:
            continue
        present = []
        for name in options.ood:
            members = [each for each in POOLS.get(name, (name,)) if not relation(id_name, each).refused]
            here = [each for each in members if _has_splits(each, data, "test")]
            present += [each for each in here if name not in POOLS or relation(id_name, each).group != "noise"]
            (left_out if name in POOLS else missing).update(dict.fromkeys(each for each in members if each not in here))
        if len(present) < (2 if options.protocol == "less-biased" else 1):
            missing.update(left_out)
    if missing:
        raise DataError(
            f"Expected all image sets in {data_root(data)} before anything is computed but {len(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing or incomplete: {', '.join(missing)}. Fetch each with offaxis data "
            "get NAME, or name the folder that has them (--data)."
        )
    if left_out:
        note(f"Not on this machine, and left out of the results: {', '.join(left_out)} (offaxis data get NAME).")


def _has_splits(name: str, data: Path | None, *splits: str) -> bool:
    """Tell whether a set of the catalogue has these splits on this machine, or a folder of the user's is there."""
    if name not in CATALOGUE and own_path(name).exists():
        return True
    return set(splits) <= set(known(name).available(data_root(data)))


# how long commands take on this machine -------------------------------------------------------------------------------

PROBE = 2.0  # seconds that a network is timed for, at least
TRIALS = 3
MOST_IMAGES = 64  # of a trial; large networks are timed with fewer


class Range(NamedTuple):
    """A time in seconds: on a machine with nothing else to do, and on one that stays as busy as it is now."""

    low: float
    high: float

    @property
    def text(self) -> str:
        """Both ends in words, or one where they are the same."""
        low, high = duration_text(self.low), duration_text(self.high)
        return low if low == high else f"{low} (nothing else runs) to {high} (as busy as now)"


@cache
def seconds_per_image(network: str, id_name: str) -> tuple[Range, Range]:
    """Measure the (forward, backward) seconds of an image on this machine's CPU, over some seconds of noise images.

    The lower ends are processor time over threads, the fastest of the trials, which other programs hardly change; the
    upper ends are elapsed time, the median of the trials.
    """
    channels, height, width = CATALOGUE[id_name].shape if id_name in CATALOGUE else (3, 32, 32)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        classifier = by_name(network)(num_classes=10, in_channels=channels, head="cosine")
        images = to_network(classifier, torch.randn(MOST_IMAGES, channels, height, width))
    _trial(classifier, images[:2])  # warms up
    elapsed = _trial(classifier, images[:2])[0].sum()
    count = int(np.clip(2 * PROBE / TRIALS / elapsed, 2, MOST_IMAGES))
    end = time.perf_counter() + PROBE
    trials: list[NDArray[np.float64]] = []
    while len(trials) < TRIALS or time.perf_counter() < end:
        trials.append(_trial(classifier, images[:count]))
    high, processor = np.median(trials, 0)[0] / count, np.min(trials, 0)[1] / count
    low = processor / torch.get_num_threads()
    forward, backward = (Range(float(a), float(max(a, b))) for a, b in zip(low, high, strict=True))
    return forward, backward


def _trial(network: Classifier, images: Tensor) -> NDArray[np.float64]:
    """Return the seconds (2, 2), elapsed and of the processor, of a forward and of a backward pass."""
    clocks = [(time.perf_counter(), time.process_time())]
    total = network(images).sum()
    clocks.append((time.perf_counter(), time.process_time()))
    total.backward()
    clocks.append((time.perf_counter(), time.process_time()))
    return np.diff(clocks, axis=0).T


def total_seconds(steps: Iterable[Command]) -> Range:
    """Estimate the time of commands one after the other, without the time to read images."""
    low = high = 0.0
    for step in steps:
        for images, each in zip(
            (step.cost.forward, step.cost.backward), seconds_per_image(step.cost.network, step.cost.id), strict=True
        ):
            low, high = low + images * each.low, high + images * each.high
    return Range(low, high)


def duration_text(duration: float) -> str:
    """Return a time in words.

    Examples:
        >>> duration_text(90), duration_text(4000), duration_text(200_000)
        ('2 minutes', '1.1 hours', '2.3 days')
    """
    for unit, length, most in (("seconds", 1, 60), ("minutes", 60, 60), ("hours", 3600, 24), ("days", 86400, 1000)):
        if duration / length < most:
            return f"{duration / length:.{1 if length > 60 else 0}f} {unit}"
    return f"{duration / 86400 / 365:.0f} years"
