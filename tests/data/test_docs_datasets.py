"""The page on image sets shows every command of ``offaxis data``."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"


def test_the_commands_exist() -> None:
    from offaxis.cli.data import app

    shown = set(re.findall(r"offaxis data (\w+)", PAGE.read_text(encoding="utf-8")))
    assert shown == {command.name for command in app.registered_commands}
