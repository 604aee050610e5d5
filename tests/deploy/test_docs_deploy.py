"""The page on deployment: its snippets run, its commands exist."""

import re
from pathlib import Path

from offaxis.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def test_the_snippets_run_in_order() -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 3
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), names)


def test_the_commands_exist() -> None:
    shown = set(re.findall(r"\$ offaxis (\w+)", PAGE.read_text(encoding="utf-8")))
    assert shown <= {command.name for command in app.registered_commands}
    assert {"bundle", "calibrate", "score", "export", "serve"} <= shown
