"""The paper's own tables as data, and the comparison with ours."""

import csv
import io
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources

from offaxis.errors import ArgumentError

Key = tuple[str, str, str, str, str]
"""(network, id, ood, method, metric), in the names that offaxis uses."""


@dataclass(frozen=True)
class PaperCell:
    """One number, or one dash, of a table.

    Attributes:
        table: its name in ``TABLES``.
        network: ``densenet-100-12`` or ``wrn-28-10``.
        id: the ID set, as the catalogue calls it; empty where the table has none.
        ood: the OOD set that was tested; empty where the table has none.
        method: the detector; in ``classification`` the head; in ``ablation`` ``row-1`` to ``row-10``.
        metric: ``accuracy_at_tpr``, ``auroc``, ``aupr_in`` or ``accuracy``, in percent; or ``seconds`` for 128 images.
        mean: the number, or None where a dash is printed.
        std: the standard deviation in parentheses, or None where there is none.
        bold: whether it is printed in bold.
        printed: the cell's text.
        printed_network: what the table calls the network.
        printed_id: what the table calls the ID set.
        printed_ood: what the table calls the OOD set, slips of the pen included.
        printed_method: what the table calls the method; in ``ablation`` what it was made of.
    """

    table: str
    network: str
    id: str
    ood: str
    method: str
    metric: str
    mean: float | None
    std: float | None
    bold: bool
    printed: str
    printed_network: str
    printed_id: str
    printed_ood: str
    printed_method: str

    @property
    def key(self) -> Key:
        """What tells the cell from all others of its table."""
        return self.network, self.id, self.ood, self.method, self.metric


COLUMNS = tuple(field.name for field in fields(PaperCell))


_DATA = resources.files("offaxis.paper").joinpath("data")


def as_csv(cells: Iterable[PaperCell]) -> str:
    """Return cells as CSV; numbers have as many digits as they are printed with."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell in cells:
        mean, _, rest = cell.printed.partition("(")
        digits = {
            "mean": "" if cell.mean is None else mean,
            "std": rest.rstrip(")"),
            "bold": "yes" if cell.bold else "",
        }
        writer.writerow([digits.get(column, getattr(cell, column)) for column in COLUMNS])
    return buffer.getvalue()


CITATION = (
    "Techapanurak, Suganuma, Okatani. Hyperparameter-Free Out-of-Distribution Detection Using Softmax of Scaled Cosine "
    "Similarity. 2019, arXiv:1905.10628"
)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes:
        number: its number in the paper; the supplement's tables are counted on from the paper's.
        title: what it shows.
        notes: what its numbers do not say by themselves.
    """

    number: int
    title: str
    notes: tuple[str, ...]


TABLES = {
    name: PaperTable(table["number"], table["title"], tuple(table["notes"]))
    for name, table in tomllib.loads((_DATA / "tables.toml").read_text(encoding="utf-8")).items()
}
"""Name -> table, in the order of the paper."""


@cache
def paper_table(name: str) -> tuple[PaperCell, ...]:
    """Return the cells of a table, in the order in which they are printed.

    Examples:
        >>> [cell.printed for cell in paper_table("time") if cell.method == "cosine"]
        ['0.08', '0.22']
    """
    if name not in TABLES:
        raise ArgumentError(f"Expected a table of the paper out of {', '.join(TABLES)} but got {name!r}.")
    cells: list[PaperCell] = []
    for row in csv.DictReader(io.StringIO((_DATA / f"{name}.csv").read_text(encoding="utf-8"))):
        mean, std, bold = (row.pop(column) for column in ("mean", "std", "bold"))
        values = {"mean": float(mean) if mean else None, "std": float(std) if std else None}
        cells.append(PaperCell(**row, **values, bold=bold == "yes"))  # type: ignore[arg-type]
    return tuple(cells)


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
    """

    network: str
    id: str
    ood: str
    method: str
    metric: str
    ours: float
    paper: float
    std: float | None

    @property
    def difference(self) -> float:
        """Ours minus the paper's."""
        return self.ours - self.paper


def compare_with_paper(ours: Mapping[Key, float], name: str, network: str | None = None) -> list[Difference]:
    """Compare numbers with the paper's: ours, its and the difference, for every number that the table has, in its order.

    Args:
        ours: (network, id, ood, method, metric) -> value in percent.
        name: the table.
        network: the paper's network to compare with where ours is another one, for instance a small relative.

    Examples:
        >>> [row] = compare_with_paper({("wrn-28-10", "cifar10", "svhn", "cosine", "auroc"): 99.4}, "one-vs-one")
        >>> row.paper, round(row.difference, 2)
        (99.52, -0.12)
    """
    places = {cell.key: (place, cell) for place, cell in enumerate(paper_table(name))}
    networks = list(dict.fromkeys(key[0] for key in places))
    if network is not None and network not in networks:
        raise ArgumentError(f"Expected a network of the table {name!r}, {' or '.join(networks)}, but got {network!r}.")
    found: list[tuple[int, Difference]] = []
    for key, value in ours.items():
        if not math.isfinite(value):
            raise ArgumentError(f"Expected a number for {' / '.join(filter(None, key))} but got {value}.")
        place, cell = places.get((network or key[0], *key[1:]), (0, None))
        if cell is not None and cell.mean is not None:
            found.append((place, Difference(*key, ours=float(value), paper=cell.mean, std=cell.std)))
    return [row for _, row in sorted(found, key=lambda item: item[0])]
