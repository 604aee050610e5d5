"""Every page: its snippets run in their order, and each command that it shows exists with its options."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from offaxis.cli import app
from offaxis.detectors import DETECTORS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = {"README.md", "evaluation.md", "figures.md"}
"""Pages whose snippets are tested together with what they print."""
SNIPPETS = [p for p in PAGES if p.name not in ELSEWHERE and "```python" in p.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", SNIPPETS, ids=lambda page: page.name)
def test_the_snippets_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(snippet, page.name, "exec"), names)
    DETECTORS.pop("margin", None)  # what a page registers is gone again afterwards


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists_with_its_options(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^ {4}offaxis .*|^\$ offaxis .*|`offaxis [^`]*`", text, re.MULTILINE)
    for line in lines:
        words = re.split(r"\s+#\s", line.strip("`$ "))[0].split()[1:]
        command, words = _command(words)
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        shown = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert shown <= {*options, "--help"}, line


def _command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that some words begin with, and the rest of them."""
    found: Any = typer.main.get_command(app)
    while hasattr(found, "commands") and words and not words[0].startswith("-"):
        assert words[0] in found.commands, words
        found, words = found.commands[words[0]], words[1:]
    return found, words


def test_the_tests_that_keep_the_promises_exist() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 30
    for file, test in named:
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), (file, test)
