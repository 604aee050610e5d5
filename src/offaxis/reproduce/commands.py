"""From a network's description to the commands that train and evaluate it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offaxis.data import CATALOGUE, relation
from offaxis.errors import ArgumentError
from offaxis.evaluation.protocols import POOLS, sets_for
from offaxis.files import digest, write_text
from offaxis.reproduce.settings import NetworkRecipe, Settings
from offaxis.training import RECIPES


@dataclass(frozen=True)
class CommandCost:
    """What a step costs, in images.

    Attributes:
        network: what they go through.
        id: the set that says how large an image is.
        forward: images through the network.
        backward: images back through it.
    """

    network: str
    id: str
    forward: float
    backward: float


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        words: what follows ``offaxis``.
        outcome: the file that says that it is done; None to leave a mark of our own.
        marks: the folder for such marks.
        work: what it costs.
        needs: files without which such a mark says nothing: what it was made from, and what came out.
        key: what tells its mark from others; its words unless given.
    """

    words: tuple[str, ...]
    outcome: Path | None
    marks: Path
    work: CommandCost
    needs: tuple[Path, ...] = ()
    key: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """As it is typed."""
        return shlex.join(("offaxis", *self.words))

    @property
    def done(self) -> bool:
        """Whether it has been run to its end."""
        return all(path.exists() for path in (self.outcome or self._mark, *self.needs))

    def mark(self) -> None:
        """Remember that it has been run to its end."""
        if self.outcome is None:
            write_text(self._mark, self.command + "\n")

    def forget(self) -> None:
        """Remember it no longer; what came out stays."""
        if self.outcome is None:
            self._mark.unlink(missing_ok=True)

    @property
    def _mark(self) -> Path:
        return self.marks / f"{self.words[0]}-{digest(list(self.key or self.words))}"


GRID_PASSES = {"odin": (41.0, 4.0), "mahalanobis": (13.0, 4.0), "leave-out": (29.0, 4.0)}
"""Forward and backward passes an image over a whole grid; Mahalanobis goes only as far as each layer, about half way."""
GIVEN_PASSES = {"odin": (2.0, 1.0), "leave-out": (2.0, 1.0)}


@dataclass(frozen=True)
class TrainingRun:
    """One training.

    Attributes:
        trained: network and recipe.
        id: the ID set.
        seed: of the training.
        head: its name.
        variant: more words for ``offaxis train``: scale, hidden, decay, the classes that are left out.
        options: words that do not show in its name, such as another recipe's epochs.
    """

    trained: NetworkRecipe
    id: str
    seed: int
    head: str
    variant: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        extra = "".join(f"-{word.lstrip('-').replace('/', 'of')}" for word in self.variant)
        return f"{self.trained.network}-{self.head}{extra}-{self.id}-seed{self.seed}"


@dataclass(frozen=True)
class Reproduction:
    """Where a reproduction lives and how large it is.

    Attributes:
        scale: how large.
        out: the folder for everything.
        runs: the folder for trainings; those that are there already are used as they are.
    """

    scale: Settings
    out: Path
    runs: Path

    @property
    def store(self) -> Path:
        """The results store, shared by all items of a scale."""
        return self.out / "results"

    def train(self, run: TrainingRun) -> Command:
        """The command that trains a network; it goes on where it stopped."""
        words = ("train", "--id", run.id, "--network", run.trained.network, "--head", run.head, *run.variant)
        options = (*run.trained.options, *run.options)
        words += ("--recipe", run.trained.recipe, *options, "--seed", str(run.seed), "--resume")
        epochs = RECIPES[run.trained.recipe]().epochs
        if "--epochs" in options:  # the last word counts, as in the shell
            epochs = int(options[len(options) - options[::-1].index("--epochs")])
        images = float(CATALOGUE[run.id].counts["train"] * epochs) if run.id in CATALOGUE else 0.0
        folder = self.runs / run.name
        work = CommandCost(run.trained.network, run.id, images, images)
        return Command((*words, "--out", str(folder)), self._network(run), self.out / "done", work)

    def evaluate(
        self,
        runs: Sequence[TrainingRun],
        ood: Sequence[str],
        detectors: Sequence[str],
        protocol: str = "one-vs-one",
        tune: bool = True,
        together: str = "single",
    ) -> Command:
        """The command that evaluates one network, or several as one; done for the sets that pools stand for today."""
        first = runs[0]
        begin = ("evaluate", *(str(self.runs / run.name) for run in runs), "--id", first.id, "--ood")
        words: tuple[str, ...] = (
            "--detectors",
            ",".join(detectors),
            "--protocol",
            protocol,
            *(() if tune else ("--no-tune",)),
        )
        words += ("--as", together) if together != "single" else ()
        words += (*self.scale.evaluation, "--out", str(self.store))
        images = float(sum(min(count, self._limit) for count in _counts(first.id, ood)))
        costs = [(GRID_PASSES if tune else GIVEN_PASSES).get(name, (0.0, 0.0)) for name in detectors]
        forward, backward = 1 + sum(f for f, _ in costs), sum(b for _, b in costs)
        many = len(runs)
        work = CommandCost(first.trained.network, first.id, many * images * forward, many * images * backward)
        needs = (self.store / "store.json", *(self._network(run) for run in runs))
        key = (*begin, ",".join(_sets_here(first.id, ood)), *words)
        return Command((*begin, ",".join(ood), *words), None, self.out / "done", work, needs, key)

    def _network(self, run: TrainingRun) -> Path:
        return self.runs / run.name / "model.safetensors"

    @property
    def _limit(self) -> int:
        words = self.scale.evaluation
        return int(words[words.index("--images") + 1]) if "--images" in words else 10**9


def _sets_here(id_name: str, ood: Sequence[str]) -> Sequence[str]:
    """The sets as they are named, or, where there are pools among them, those that would be used on this machine."""
    if not any(name in POOLS for name in ood):
        return ood
    try:
        return sets_for(id_name, ood)[0]
    except ArgumentError:
        return ()


def _counts(id_name: str, ood: Sequence[str]) -> list[int]:
    names = [name for entry in ood for name in POOLS.get(entry, (entry,)) if name in CATALOGUE]
    used = [name for name in dict.fromkeys(names) if name != id_name and not relation(id_name, name).refused]
    return [CATALOGUE[name].counts["test"] for name in (id_name, *used) if name in CATALOGUE]
