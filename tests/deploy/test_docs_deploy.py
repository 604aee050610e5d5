"""The page on deployment shows the commands of deployment."""

import re
from pathlib import Path

from offaxis.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def test_the_commands_exist() -> None:
    shown = set(re.findall(r"\$ offaxis (\w+)", PAGE.read_text(encoding="utf-8")))
    assert shown <= {command.name for command in app.registered_commands}
    assert {"bundle", "calibrate", "score", "export", "serve"} <= shown
