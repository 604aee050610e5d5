"""One command of a reproduction: it depends on nothing but its words and on what is in its folders."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from offaxis.atomic import write_text
from offaxis.protocols.result import digest


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
    """

    words: tuple[str, ...]
    outcome: Path | None
    marks: Path
    work: Work

    @property
    def command(self) -> str:
        """As it is typed."""
        return shlex.join(("offaxis", *self.words))

    @property
    def done(self) -> bool:
        """Whether it has been run to its end."""
        return (self.outcome or self._mark).exists()

    def mark(self) -> None:
        """Remember that it has been run to its end."""
        if self.outcome is None:
            write_text(self._mark, self.command + "\n")

    @property
    def _mark(self) -> Path:
        return self.marks / f"{self.words[0]}-{digest(list(self.words))}"
