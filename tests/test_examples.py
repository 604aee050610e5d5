"""Every example runs as it stands, and the README shows it as it stands."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "offaxis"


def test_the_quickstart_runs_and_separates_digits_from_photographs() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"AUROC of photographs against digits: ([\d.]+)", done.stdout)
    assert found is not None
    assert float(found[1]) > 0.8


@pytest.mark.parametrize("name", ["quickstart.py"])
def test_the_readme_shows_the_file(name: str) -> None:
    code = (ROOT / "examples" / name).read_text().split('"""', 2)[2].strip()
    assert code in (ROOT / "README.md").read_text()


def tree() -> list[str]:
    """What the README's tree names, in its order."""
    readme = (ROOT / "README.md").read_text()
    drawn = readme.split("```\nsrc/offaxis/", 1)[1].split("```", 1)[0]
    return re.findall(r"^  ([\w.]+)/?\s", drawn, flags=re.MULTILINE)


def test_the_tree_in_the_readme_is_the_tree() -> None:
    there = {p.name for p in PACKAGE.iterdir() if (p.is_dir() and p.name != "__pycache__") or p.suffix == ".py"}
    assert set(tree()) == there - {"__init__.py", "__main__.py"}


def test_imports_point_up_the_tree() -> None:
    order = [name.removesuffix(".py") for name in tree()]
    for file in PACKAGE.rglob("*.py"):
        part = file.relative_to(PACKAGE).with_suffix("").parts[0]
        if part.startswith("__"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            named = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
            if named and named.startswith("offaxis."):
                assert order.index(named.split(".")[1]) <= order.index(part), f"{file} imports {named}"
