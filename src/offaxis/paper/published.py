"""The paper's own tables as data, and the comparison with ours."""

import csv
import io
import math
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


@cache
def read_table(table: str) -> tuple[PaperCell, ...]:
    """Read the cells of a table, in the order in which they are printed."""
    text = resources.files("offaxis.paper").joinpath("data", f"{table}.csv").read_text(encoding="utf-8")
    return tuple(_cell(row) for row in csv.DictReader(io.StringIO(text)))


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


def _cell(row: dict[str, str]) -> PaperCell:
    mean, std, bold = row.pop("mean"), row.pop("std"), row.pop("bold")
    return PaperCell(mean=float(mean) if mean else None, std=float(std) if std else None, bold=bold == "yes", **row)


CITATION = (
    "Techapanurak, Suganuma, Okatani. Hyperparameter-Free Out-of-Distribution Detection Using Softmax of Scaled Cosine "
    "Similarity. 2019, arXiv:1905.10628"
)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes:
        name: what offaxis calls it.
        number: its number in the paper; the supplement's tables are counted on from the paper's.
        title: what it shows.
        notes: what its numbers do not say by themselves.
    """

    name: str
    number: int
    title: str
    notes: tuple[str, ...] = ()


_ROWS = (
    "A row names the set that was tested. The supplement says that it names the assumed set, but the rows of Baseline and "
    "Ours have the means of the one-vs-one table, all of them, so the numbers of ODIN and Mahalanobis are means over the "
    "sets that were assumed, and their deviations are over these sets and the five networks."
)

TABLES: dict[str, PaperTable] = {
    paper_table.name: paper_table
    for paper_table in (
        PaperTable(
            "classification",
            1,
            "Classification accuracy (%) with a standard and with a cosine head",
            ("Mean and standard deviation of five trainings.",),
        ),
        PaperTable(
            "one-vs-one-main",
            2,
            "AUROC (%), one-vs-one: tuned on the set that is tested",
            ("The nine sets of the main paper; `one-vs-one` has all sets and three metrics.",),
        ),
        PaperTable(
            "ablation",
            3,
            "AUROC (%) of TIN (r) against CIFAR, ten variants of the head",
            (
                "Row 1 has 89.22 and 76.59 where the one-vs-one tables have 89.21 and 76.67 for the same network and set, and "
                "row 8 has 97.66 where they have 97.65: all are kept as printed.",
            ),
        ),
        PaperTable("time", 4, "Seconds for a batch of 128 images"),
        PaperTable(
            "less-biased",
            5,
            "Less-biased evaluation, crops without their frame (TIN (c)*, LSUN (c)*)",
            (_ROWS, "There is no row for WRN-28-10, CIFAR-100 and Uniform."),
        ),
        PaperTable(
            "less-biased-framed",
            6,
            "Less-biased evaluation, crops with their black frame (TIN (c), LSUN (c))",
            (_ROWS,),
        ),
        PaperTable(
            "one-vs-one",
            7,
            "One-vs-one evaluation: tuned on the set that is tested, three metrics",
            ("Mean and standard deviation of five trainings.",),
        ),
        PaperTable(
            "ensembles",
            8,
            "Ensembles of five networks, one-vs-one",
            (
                "leave-out-published is what the leave-out paper reports (a dash where it does not), leave-out what the "
                "authors measured with public code, chosen on iSUN.",
                "The AUPR of leave-out looks like one with as many OOD as ID images counted (SVHN: AUROC 94.39, AUPR 95.06, "
                "with 26,032 images against 10,000): it cannot be compared with the other columns.",
            ),
        ),
    )
}


def paper_table(name: str) -> list[PaperCell]:
    """Return the cells of a table, in the order in which they are printed.

    Examples:
        >>> [cell.printed for cell in paper_table("time") if cell.method == "cosine"]
        ['0.08', '0.22']
    """
    if name not in TABLES:
        raise ArgumentError(f"Expected a table of the paper out of {', '.join(TABLES)} but got {name!r}.")
    return list(read_table(name))


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
            found.append((place, _difference(key, float(value), cell.mean, cell)))
    return [row for _, row in sorted(found, key=lambda item: item[0])]


def _difference(key: Key, ours: float, paper: float, cell: PaperCell) -> Difference:
    return Difference(*key, ours=ours, paper=paper, std=cell.std, difference=ours - paper)
