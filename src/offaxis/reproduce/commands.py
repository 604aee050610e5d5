"""The trainings and evaluations of a reproduction: what each computes, whether it is done, and the command that does it."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offaxis.data import CATALOGUE, relation
from offaxis.errors import ArgumentError, RunError
from offaxis.evaluation.protocols import POOLS, sets_for
from offaxis.files import digest, write_text
from offaxis.jobs import (
    EvaluationRun,
    Kind,
    Note,
    ProtocolName,
    TrainingRun,
    evaluate_run,
    evaluation_words,
    train_run,
    training_words,
)
from offaxis.reproduce.settings import Settings
from offaxis.training import read_run


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
        cost: what it costs.
        device: where it runs.
        data: where the catalogue's sets are kept.
    """

    words: tuple[str, ...]
    out: Path
    cost: CommandCost
    device: str = "auto"
    data: Path | None = None

    @property
    def command(self) -> str:
        """The command as it is typed, where ``OFFAXIS_DATA`` is what it is here."""
        where: tuple[str, ...] = () if self.device == "auto" else ("--device", self.device)
        if self.data is not None and str(self.data) != os.environ.get("OFFAXIS_DATA"):
            where += ("--data", str(self.data))
        return shlex.join(("offaxis", *self.words, *where))

    @property
    def name(self) -> str:
        """A name that no other command of the reproduction has."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether it has been run to its end."""
        raise NotImplementedError

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

    training: TrainingRun

    @property
    def name(self) -> str:
        """The name of the network's folder."""
        return self.training.name

    @property
    def done(self) -> bool:
        """Whether the network is trained."""
        return (self.out / "model.safetensors").exists()

    def check(self) -> None:
        """Raise RunError where the network in the folder was trained by another recipe."""
        if not (self.done or (self.out / "run.json").exists()):
            return
        expected, trained = _expected_fields(self.training), _recorded_fields(read_run(self.out)["settings"])
        differs = [name for name in expected if name in trained and expected[name] != trained[name]]
        if differs:
            raise RunError(
                f"Expected a network trained with {_listed(expected, differs)} but the one in {self.out} was trained with "
                f"{_listed(trained, differs)}: name other folders (--out, --runs), or remove this one and the results "
                "that were computed with it."
            )

    def run(self, quiet: bool = False, note: Note = lambda _: None) -> None:
        """Train the network, or continue its training."""
        train_run(
            self.training,
            out=self.out,
            resume=True,
            device=self.device,
            data=self.data,
            command=("offaxis", *self.words),
            quiet=quiet,
            note=note,
        )


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(Command):
    """An evaluation; a file records that it is done, as the store alone does not show it.

    Attributes:
        evaluation: what is evaluated.
        key: what tells its record from others: its words, with the sets that pools stand for on this machine.
        records: the folder for such records.
        needs: files without which a record means nothing: the networks, and the store.
    """

    evaluation: EvaluationRun
    key: tuple[str, ...]
    records: Path
    needs: tuple[Path, ...]

    @property
    def name(self) -> str:
        """The name of the file that records it."""
        return f"evaluate-{digest(list(self.key))}"

    @property
    def done(self) -> bool:
        """Whether it has been run to its end, with the networks that are there."""
        return all(path.exists() for path in (self.records / self.name, *self.needs))

    def mark(self) -> None:
        """Record that it has been run to its end."""
        write_text(self.records / self.name, self.command + "\n")

    def forget(self) -> None:
        """Remove that record; the results stay in the store."""
        (self.records / self.name).unlink(missing_ok=True)

    def run(self, quiet: bool = False, note: Note = lambda _: None) -> None:
        """Evaluate the networks into the store, and mark it as done."""
        command = ("offaxis", *self.words)
        evaluate_run(
            self.evaluation,
            out=self.out,
            device=self.device,
            data=self.data,
            command=command,
            quiet=quiet,
            note=note,
        )
        self.mark()


def _expected_fields(run: TrainingRun) -> dict[str, Any]:
    """Return what run.json must say of a run; crop and flip follow the images, unless they are given."""
    recipe = run.numbers().to_json()
    given = run.overrides.given()
    fields = {name: value for name, value in recipe.items() if name not in ("crop", "flip") or name in given}
    if run.head == "cosine":
        fields["start"] = run.head_arguments.get("start", "sizes")
    return {**fields, "dropout": run.dropout, "precision": run.precision, "seed": run.seed}


def _recorded_fields(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the same fields out of run.json, as far as it has them."""
    network = settings["network"] or {}
    places = {**settings["head"], **settings, **network}
    return {**settings["recipe"], **{n: places[n] for n in ("start", "dropout", "precision", "seed") if n in places}}


def _listed(fields: dict[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {fields[name]}" for name in names)


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
    """

    scale: Settings
    out: Path
    runs: Path
    data: Path | None = None
    device: str = "auto"

    @property
    def store(self) -> Path:
        """The results store, shared by all items of a scale."""
        return self.out / "results"

    def train(self, run: TrainingRun) -> TrainCommand:
        """Return the command that trains a network, or continues its training."""
        epochs = run.numbers().epochs
        images = float(CATALOGUE[run.id].counts["train"] * epochs) if run.id in CATALOGUE else 0.0
        folder = self.runs / run.name
        return TrainCommand(
            words=("train", *training_words(run), "--resume", "--out", str(folder)),
            out=folder,
            cost=CommandCost(run.architecture, run.id, images, images),
            device=self.device,
            data=self.data,
            training=run,
        )

    def evaluate(
        self,
        runs: Sequence[TrainingRun],
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
        first, shared = runs[0], self.scale.evaluation
        evaluation = EvaluationRun(
            networks=tuple(str(self.runs / run.name) for run in runs),
            id=first.id,
            ood=tuple(ood),
            detectors=tuple(detectors),
            protocol=protocol,
            tune=tune,
            kind=kind,
            label=shared.label,
            images=shared.images,
            fit_images=shared.fit_images,
            batch_size=shared.batch_size,
        )
        sets = ",".join(_sets_here(first.id, ood, self.data))
        return EvaluateCommand(
            words=("evaluate", *evaluation_words(evaluation, ",".join(ood)), "--out", str(self.store)),
            out=self.store,
            cost=self._evaluation_cost(evaluation, first),
            device=self.device,
            data=self.data,
            evaluation=evaluation,
            key=("evaluate", *evaluation_words(evaluation, sets), "--out", str(self.store)),
            records=self.out / "done",
            needs=(self.store / "store.json", *(self.runs / run.name / "model.safetensors" for run in runs)),
        )

    def _evaluation_cost(self, evaluation: EvaluationRun, first: TrainingRun) -> CommandCost:
        limit = evaluation.images or 10**9
        images = float(sum(min(count, limit) for count in _counts(first.id, evaluation.ood)))
        passes = GRID_PASSES if evaluation.tune else GIVEN_PASSES
        costs = [passes.get(name, (0.0, 0.0)) for name in evaluation.detectors]
        forward, backward = 1 + sum(f for f, _ in costs), sum(b for _, b in costs)
        count = len(evaluation.networks)
        return CommandCost(first.architecture, first.id, count * images * forward, count * images * backward)


def _sets_here(id_name: str, ood: Sequence[str], data: Path | None) -> Sequence[str]:
    """Return the sets as they are named, or, where there are pools among them, those on this machine."""
    if not any(name in POOLS for name in ood):
        return ood
    try:
        return sets_for(id_name, ood, data)[0]
    except ArgumentError:
        return ()


def _counts(id_name: str, ood: Sequence[str]) -> list[int]:
    """Return the numbers of test images of the ID set and of the OOD sets."""
    names = [name for entry in ood for name in POOLS.get(entry, (entry,)) if name in CATALOGUE]
    used = [name for name in dict.fromkeys(names) if name != id_name and not relation(id_name, name).refused]
    return [CATALOGUE[name].counts["test"] for name in (id_name, *used) if name in CATALOGUE]
