"""The page on evaluation: its snippets run, its commands exist, and it names every metric."""

import re
from pathlib import Path

import pytest

from offaxis import metrics
from offaxis.cli import app
from offaxis.evaluation import Store

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(compile(snippet, "docs/evaluation.md", "exec"), {})
    rows = [line.strip("| ").split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert {row[0].strip() for row in rows} == {
        "cosine",
        "max-softmax",
        "odin (default)",
        "odin (tuned)",
        "odin (oracle)",
    }
    assert len(Store("results").results()) == 2 * (3 + 1) + 2


def test_commands_and_metrics_exist() -> None:
    commands = {command.name for command in app.registered_commands}
    assert set(re.findall(r"`?offaxis (\w+)", PAGE)) <= commands
    section = PAGE.partition("## The metrics")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert len(rows) >= 9
    assert all(callable(getattr(metrics, name)) for name in rows)
