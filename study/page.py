"""Put the tables of the study's store into docs/results.md: ``python -m study.page [--check]``.

The page is written by hand but for what stands between ``<!-- table NAME ID -->`` and ``<!-- end -->``.
"""

import re
import sys
from pathlib import Path

from offaxis.atomic import write_text
from offaxis.reports.tables import markdown
from study.tables import TABLES

PAGE = Path("docs/results.md")
BLOCK = re.compile(r"(<!-- table (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """The page with its tables made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}{_table(found[2], found[3])}{found[4]}", text)


def _table(name: str, id_name: str) -> str:
    return "\n" + markdown(TABLES[name](id_name)).replace("### ", "**", 1).replace("\n\n", "**\n\n", 1) + "\n"


def main() -> None:
    """Write the page, or say whether it is as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    new = filled(text)
    if "--check" in sys.argv:
        sys.exit(0 if new == text else f"{PAGE} is not what the store gives: python -m study.page")
    write_text(PAGE, new)


if __name__ == "__main__":
    main()
