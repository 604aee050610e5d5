"""The results of the second study: one file of rows for each step, committed; exact metrics, a line for each.

A row says what was judged (``id``, ``network``, ``head``, ``seed``, ``unseen``: the choice of unseen classes or None), by
what (``detector``) and beside what (``ood``), and has every metric. A row without a detector is of a network: its accuracy.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offaxis.files import write_text

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]
KEY = ("id", "network", "head", "seed", "unseen")
"""What tells networks apart."""


def path_of(step: str) -> Path:
    """Return the file of a step's rows."""
    return RESULTS / f"{step}.jsonl"


def read(step: str) -> list[Row]:
    """Read the rows of a step; none where it has not run."""
    path = path_of(step)
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def networks(step: str) -> set[tuple[Any, ...]]:
    """Return the keys of the networks whose rows are complete."""
    return {tuple(row[k] for k in KEY) for row in read(step) if "accuracy" in row}


def replace(step: str, network: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Put the rows of one network into a step's file, in place of earlier ones, in an order that does not depend on runs."""
    key = tuple(network[k] for k in KEY)
    kept = [row for row in read(step) if tuple(row[k] for k in KEY) != key]
    every = sorted([*kept, *({**network, **row} for row in rows)], key=_order)
    RESULTS.mkdir(exist_ok=True)
    write_text(path_of(step), "".join(json.dumps(row) + "\n" for row in every))


def _order(row: Row) -> tuple[str, ...]:
    return tuple(str(row.get(k, "")) for k in (*KEY, "detector", "ood"))


def select(rows: Sequence[Row], **fields: Any) -> Iterator[Row]:
    """Iterate over the rows that have these values; a tuple of values means any of them."""
    for row in rows:
        if all(row.get(k) in v if isinstance(v, tuple) else row.get(k) == v for k, v in fields.items()):
            yield row
