"""One command of a reproduction: it depends on nothing but its words and on what is in its folders."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from offaxis.evaluation.results import digest
from offaxis.files import write_text


@dataclass(frozen=True)
class Work:
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
class Step:
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
    work: Work
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
