"""Long work shows how far it is: a bar with an estimate on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """A bar, or a line now and then where there is no terminal, or nothing at all.

    Args:
        title: what is being done.
        total: how many steps it takes.
        quiet: show nothing.
        done: steps that were done before, for work that goes on where it stopped.

    Example:
        >>> with Progress("scoring", total=3, quiet=True) as progress:
        ...     for i in range(3):
        ...         progress.to(i + 1, {"images": f"{i}"})
    """

    def __init__(self, title: str, total: int, quiet: bool = False, done: int = 0) -> None:
        self.title, self.total, self.begun_at = title, total, done
        self.console = Console(stderr=True)
        self.bar: RichProgress | None = None
        self.lines = not quiet and not self.console.is_terminal
        self.started = self.spoken = time.monotonic()
        if not quiet and self.console.is_terminal:
            self.bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.bar.add_task(title, total=total, completed=done, note="")

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def to(self, done: int, notes: Mapping[str, str] | None = None) -> None:
        """Say that ``done`` steps of the total are done, with figures to show beside."""
        note = "  ".join(f"{name} {value}" for name, value in (notes or {}).items())
        if self.bar is not None:
            self.bar.update(self.task, completed=done, note=note)
        now = time.monotonic()
        if self.lines and (done >= self.total or now - self.spoken >= SECONDS_BETWEEN_LINES):
            self.spoken = now
            left = (now - self.started) / max(done - self.begun_at, 1) * (self.total - done)
            sys.stderr.write(f"{self.title} {done}/{self.total}  {note}  {left:.0f} s left\n")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False)
        elif self.lines:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


class CountProgress:
    """Work whose end is not known: a number that rises on a terminal, a line now and then elsewhere.

    Args:
        what: what is counted.
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False, what: str = "images") -> None:
        self.what = what
        self.console = Console(stderr=True)
        self.status = self.console.status("") if not quiet and self.console.is_terminal else None
        self.lines = not quiet and self.status is None
        self.spoken = time.monotonic()

    def __enter__(self) -> Self:
        if self.status is not None:
            self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is not None:
            self.status.stop()

    def to(self, done: int) -> None:
        """Say that ``done`` are done."""
        if self.status is not None:
            self.status.update(f"{done:,} {self.what}")
        elif self.lines and time.monotonic() - self.spoken >= SECONDS_BETWEEN_LINES:
            self.spoken = time.monotonic()
            sys.stderr.write(f"{done:,} {self.what}\n")
            sys.stderr.flush()
