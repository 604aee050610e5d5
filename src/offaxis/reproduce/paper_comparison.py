"""Our numbers beside the paper's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from offaxis.errors import ArgumentError
from offaxis.reproduce.paper import Cell, Key
from offaxis.reproduce.paper_tables import table


@dataclass(frozen=True)
class Difference:
    """One of our numbers and the paper's, in the paper's unit (percent).

    Attributes:
        network: ours.
        id: the ID set.
        ood: the OOD set.
        method: the detector.
        metric: what was measured.
        ours: our number.
        paper: the paper's.
        std: the paper's standard deviation, or None where it gives none.
        difference: ours minus the paper's.
    """

    network: str
    id: str
    ood: str
    method: str
    metric: str
    ours: float
    paper: float
    std: float | None
    difference: float


def compare(ours: Mapping[Key, float], name: str, network: str | None = None) -> list[Difference]:
    """Ours, the paper's and the difference, for every number of ours that the table has too, in the table's order.

    Args:
        ours: (network, id, ood, method, metric) -> value in percent.
        name: the table.
        network: the paper's network to compare with where ours is another one, for instance a small relative.

    Example:
        >>> [row] = compare({("wrn-28-10", "cifar10", "svhn", "cosine", "auroc"): 99.4}, "one-vs-one")
        >>> row.paper, round(row.difference, 2)
        (99.52, -0.12)
    """
    places = {cell.key: (place, cell) for place, cell in enumerate(table(name))}
    networks = list(dict.fromkeys(key[0] for key in places))
    if network is not None and network not in networks:
        raise ArgumentError(f"Expected a network of the table {name!r}, {' or '.join(networks)}, but got {network!r}.")
    found: list[tuple[int, Difference]] = []
    for key, value in ours.items():
        if not math.isfinite(value):
            raise ArgumentError(f"Expected a number for {' / '.join(filter(None, key))} but got {value}.")
        place, cell = places.get((network or key[0], *key[1:]), (0, None))
        if cell is not None and cell.mean is not None:
            found.append((place, _difference(key, float(value), cell.mean, cell)))
    return [row for _, row in sorted(found, key=lambda item: item[0])]


def _difference(key: Key, ours: float, paper: float, cell: Cell) -> Difference:
    return Difference(*key, ours=ours, paper=paper, std=cell.std, difference=ours - paper)
