"""The snippets of the page on image sets run as they stand."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"


def test_the_snippets_run_in_order() -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 4
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), names)


def test_the_commands_exist() -> None:
    from offaxis.cli.data import app

    shown = set(re.findall(r"offaxis data (\w+)", PAGE.read_text(encoding="utf-8")))
    assert shown == {command.name for command in app.registered_commands}
