"""What a person sees of long work and of its results: a bar on a terminal, plain lines elsewhere, cards in notebooks."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

SECONDS_BETWEEN_LINES = 10.0


def visible(text: str) -> str:
    r"""Return text for a terminal: characters that it would obey or not show, as a file name can hold, become ``\x1b``.

    Examples:
        >>> print(visible("red\x1b[31m.png"))
        red\x1b[31m.png
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def print_note(text: str, style: str | None = None) -> None:
    """Print a sentence to standard error, as it is but for what a terminal would obey."""
    Console(stderr=True).print(visible(text), style=style, markup=False, highlight=False, soft_wrap=True)


class Progress:
    """Show the progress of work: a bar on a terminal, a line every ten seconds elsewhere.

    Args:
        title: what is being done.
        total: number of steps; None where it is not known.
        quiet: show nothing.
        done: number of steps done before, for resumed work.

    Examples:
        >>> with Progress("scoring", total=3, quiet=True) as progress:
        ...     for i in range(3):
        ...         progress.to(i + 1, {"images": f"{i}"})
    """

    def __init__(self, title: str, total: int | None, quiet: bool = False, done: int = 0) -> None:
        self.title, self.total, self.first, self.quiet = title, total, done, quiet
        console = Console(stderr=True)
        self.lines = not quiet and not console.is_terminal
        self.started = self.printed = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self.bar = RichProgress(*columns, console=console, disable=quiet or self.lines)
        self.task = self.bar.add_task(title, total=total, completed=done, note="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def to(self, done: int, notes: Mapping[str, str] | None = None) -> None:
        """Set the number of completed steps, with figures to show beside it."""
        note = "  ".join(f"{name} {value}" for name, value in (notes or {}).items())
        self.bar.update(self.task, completed=done, note=note)
        now = time.monotonic()
        if self.lines and (done == self.total or now - self.printed >= SECONDS_BETWEEN_LINES):
            self.printed = now
            if self.total is None:
                print_note(f"{self.title} {done:,}  {note}")
            else:
                left = (self.total - done) / self.rate(done)
                print_note(f"{self.title} {done}/{self.total}  {note}  {_duration(left)} left")

    def rate(self, done: int) -> float:
        """Return the steps a second so far."""
        return max(done - self.first, 1) / max(time.monotonic() - self.started, 1e-6)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if not self.quiet:
            self.bar.console.print(visible(text), highlight=False, markup=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    """Return a time as people say it: 95 s, 12 min or 3 h 20 min."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class CountProgress:
    """Show the progress of work whose length is not known: counts on a terminal, a line every ten seconds elsewhere.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.counts: dict[str, int] = {}
        self.quiet, self.printed = quiet, time.monotonic()
        self.console = Console(stderr=True)
        self.status = self.console.status("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.status.stop()

    def to(self, done: int, what: str = "images") -> None:
        """Set the number of what is done."""
        self.counts[what] = done
        text = ", ".join(f"{number:,} {name}" for name, number in self.counts.items())
        if self.quiet:
            return
        if self.console.is_terminal:
            self.status.start()  # once there is something to show
            self.status.update(text)
        elif time.monotonic() - self.printed >= SECONDS_BETWEEN_LINES:
            self.printed = time.monotonic()
            print_note(text)


_watched: ContextVar[CountProgress | None] = ContextVar("watched", default=None)


@contextmanager
def counting(quiet: bool = False) -> Iterator[None]:
    """Show how many images are read and run through networks inside the block, as ``count`` is told.

    Args:
        quiet: show nothing.
    """
    with CountProgress(quiet) as progress:
        token = _watched.set(progress)
        try:
            yield
        finally:
            _watched.reset(token)


def count(more: int, what: str) -> None:
    """Add to the number of what is done, where a ``counting`` block shows it."""
    progress = _watched.get()
    if progress is not None:
        progress.to(progress.counts.get(what, 0) + more, what)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[int] = ()) -> str:
    """Return a table for a notebook, with its numbers to the right.

    Args:
        head: titles of the columns, as plain text.
        rows: cells, as HTML.
        best: numbers of the rows that are shown bold.
    """
    cell_style = ("padding:.15em .6em;text-align:left", "padding:.15em .6em;text-align:right")
    titles = "".join(f'<th style="{cell_style[n > 0]}">{escape(t)}</th>' for n, t in enumerate(head))
    lines = []
    for number, row in enumerate(rows):
        bold = ";font-weight:bold" if number in best else ""
        cells = (f'<td style="{cell_style[n > 0]}{bold}">{cell}</td>' for n, cell in enumerate(row))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table style="font-size:inherit"><thead><tr>{titles}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def html_card(title: str, rows: Mapping[str, str], below: str = "") -> str:
    """Return a card for a notebook: a title, and a line for each name with its value.

    Args:
        title: HTML.
        rows: name, as plain text -> value, as HTML; rows without a value are left out.
        below: HTML.
    """
    lines = "".join(
        f'<div style="opacity:.7">{escape(name)}</div><div>{value}</div>' for name, value in rows.items() if value
    )
    return (
        '<div style="display:inline-block;border:1px solid rgba(128,128,128,.5);border-radius:6px;padding:.6em 1em;'
        f'font-family:sans-serif;font-size:13px"><div style="margin-bottom:.4em"><b>{title}</b></div>'
        f'<div style="display:grid;grid-template-columns:auto auto;gap:.15em 1.2em">{lines}</div>{below}</div>'
    )


def html_bar(share: float, colour: str = "#4051b5") -> str:
    """Return a bar that is filled to a share in [0, 1], with the share in percent beside it."""
    return (
        '<span style="display:inline-block;width:8em;height:.7em;background:rgba(128,128,128,.25);border-radius:3px">'
        f'<span style="display:block;width:{100 * share:.0f}%;height:100%;background:{colour};border-radius:3px"></span>'
        f"</span> {share:.1%}"
    )


def html_histogram(values: Sequence[float], mark: float) -> str:
    """Return a small drawing of how values are spread, those above a mark in red."""
    low, high = min(*values, mark), max(*values, mark)
    counts = [0] * 40
    width = (high - low) / len(counts) or 1.0
    for value in values:
        counts[min(int((value - low) / width), len(counts) - 1)] += 1
    bars = "".join(
        f'<rect x="{6 * n}" y="{40 - 40 * count / max(counts):.1f}" width="5" height="{40 * count / max(counts):.1f}" '
        f'fill="{"#c62828" if low + (n + 0.5) * width > mark else "#4051b5"}"/>'
        for n, count in enumerate(counts)
    )
    place = 6 * (mark - low) / width
    line = f'<line x1="{place:.1f}" x2="{place:.1f}" y1="0" y2="40" stroke="#c62828" stroke-dasharray="2 2"/>'
    return f'<svg width="240" height="42" viewBox="0 0 240 42" style="margin-top:.5em">{bars}{line}</svg>'
