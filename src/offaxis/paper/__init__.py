"""The paper's own tables as data, and the comparison with ours."""

from offaxis.paper.cells import Cell, Key, as_csv
from offaxis.paper.comparison import Difference, compare
from offaxis.paper.tables import CITATION, TABLES, Table, table

__all__ = ["CITATION", "TABLES", "Cell", "Difference", "Key", "Table", "as_csv", "compare", "table"]
