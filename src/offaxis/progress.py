"""Progress of long work: a bar with the time left on a terminal, plain lines elsewhere."""

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
    """Show the progress of work whose length is known: a bar on a terminal, a line every ten seconds elsewhere.

    Args:
        title: what is being done.
        total: number of steps.
        quiet: show nothing.
        done: number of steps done before, for resumed work.

    Example:
        >>> with Progress("scoring", total=3, quiet=True) as progress:
        ...     for i in range(3):
        ...         progress.to(i + 1, {"images": f"{i}"})
    """

    def __init__(self, title: str, total: int, quiet: bool = False, done: int = 0) -> None:
        self.title, self.total, self.first = title, total, done
        self.console = Console(stderr=True)
        self.bar: RichProgress | None = None
        self.lines = not quiet and not self.console.is_terminal
        self.started = self.printed = time.monotonic()
        if not quiet and self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self.bar = RichProgress(*columns, console=self.console)
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
        """Set the number of completed steps, with figures to show beside it."""
        note = "  ".join(f"{name} {value}" for name, value in (notes or {}).items())
        if self.bar is not None:
            self.bar.update(self.task, completed=done, note=note)
        now = time.monotonic()
        if self.lines and (done >= self.total or now - self.printed >= SECONDS_BETWEEN_LINES):
            self.printed = now
            left = (now - self.started) / max(done - self.first, 1) * (self.total - done)
            sys.stderr.write(f"{self.title} {done}/{self.total}  {note}  {left:.0f} s left\n")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False)
        elif self.lines:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


class CountProgress:
    """Show the progress of work whose length is not known: a count on a terminal, a line every ten seconds elsewhere.

    Args:
        quiet: show nothing.
        what: what is counted.
    """

    def __init__(self, quiet: bool = False, what: str = "images") -> None:
        self.what = what
        self.console = Console(stderr=True)
        self.status = self.console.status("") if not quiet and self.console.is_terminal else None
        self.lines = not quiet and self.status is None
        self.printed = time.monotonic()

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
        """Set the number of completed items."""
        if self.status is not None:
            self.status.update(f"{done:,} {self.what}")
        elif self.lines and time.monotonic() - self.printed >= SECONDS_BETWEEN_LINES:
            self.printed = time.monotonic()
            sys.stderr.write(f"{done:,} {self.what}\n")
            sys.stderr.flush()
