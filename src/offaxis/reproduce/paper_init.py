"""The paper's own tables as data, and the comparison with ours."""

from offaxis.reproduce.paper import Cell, Key, as_csv
from offaxis.reproduce.paper_comparison import Difference, compare
from offaxis.reproduce.paper_tables import CITATION, TABLES, Table, table

__all__ = ["CITATION", "TABLES", "Cell", "Difference", "Key", "Table", "as_csv", "compare", "table"]
