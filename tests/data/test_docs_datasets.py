"""The page on image sets shows every command of ``offaxis data``."""

import re
from pathlib import Path

from offaxis.options import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"


def test_the_commands_exist() -> None:
    shown = set(re.findall(r"offaxis data (\w+)", PAGE.read_text(encoding="utf-8")))
    assert shown == {words.removeprefix("data ") for words in COMMANDS if words.startswith("data ")}
