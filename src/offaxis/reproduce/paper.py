"""One number of the paper, and the files that hold them."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources

Key = tuple[str, str, str, str, str]
"""(network, id, ood, method, metric), in the names that offaxis uses."""


@dataclass(frozen=True)
class Cell:
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


COLUMNS = tuple(field.name for field in fields(Cell))


@cache
def read(table: str) -> tuple[Cell, ...]:
    """The cells of a table in the order in which they are printed."""
    text = resources.files("offaxis.reproduce").joinpath("data", f"{table}.csv").read_text(encoding="utf-8")
    return tuple(_cell(row) for row in csv.DictReader(io.StringIO(text)))


def as_csv(cells: Iterable[Cell]) -> str:
    """Cells as CSV; numbers have as many digits as they are printed with."""
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


def _cell(row: dict[str, str]) -> Cell:
    mean, std, bold = row.pop("mean"), row.pop("std"), row.pop("bold")
    return Cell(mean=float(mean) if mean else None, std=float(std) if std else None, bold=bold == "yes", **row)
