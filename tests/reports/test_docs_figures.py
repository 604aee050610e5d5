"""The page on figures: its snippets run, and it names every figure."""

import re
from pathlib import Path

import pytest

from offaxis.reports import figures

PAGE = (Path(__file__).parents[2] / "docs" / "figures.md").read_text(encoding="utf-8")


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(compile(snippet, "docs/figures.md", "exec"), {})
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        f"{name}.{suffix}" for name in ("fixed-scale", "head", "less-biased") for suffix in ("png", "svg")
    ]
    assert capsys.readouterr().out.split() == re.findall(r"# (svhn .*)", PAGE)[0].split()


def test_every_figure_has_its_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    helpers = {"Panel", "Space", "as_png_data_uri", "as_svg", "save_figure", "tsne"}
    assert rows == set(vars(figures)["__all__"]) - helpers
