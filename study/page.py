"""Put the tables of both studies into their pages and the README: ``python -m study.page``.

All are written by hand but for what stands between ``<!-- table NAME ID -->`` and ``<!-- end -->``.
"""

import re
from pathlib import Path

from offaxis.files import write_text
from offaxis.reports.tables import markdown
from study import regret
from study import tables as first
from study.field_tables import TABLES as FIELD_TABLES
from study.second import answers
from study.second import tables as second

PAGES = tuple(
    Path(name)
    for name in (
        "docs/results.md",
        "study/report/answers.md",
        "study/report/first.md",
        "study/report/second.md",
        "study/report/field.md",
        "study/report/regret.md",
        "study/report/head-start.md",
        "README.md",
    )
)
TABLES = {**first.TABLES, **second.TABLES, **answers.TABLES, **FIELD_TABLES, **regret.TABLES}
BLOCK = re.compile(r"(<!-- table (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """Return the page with its tables made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}{_table(match[2], match[3])}{match[4]}", text)


def _table(name: str, id_name: str) -> str:
    return "\n" + markdown(TABLES[name](id_name)).replace("### ", "**", 1).replace("\n\n", "**\n\n", 1) + "\n"


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        write_text(page, filled(page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
