"""Every example runs as it stands, and the README shows it as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_quickstart_runs_and_separates_digits_from_photographs() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py"],
        capture_output=True, text=True, timeout=240, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(r"AUROC of photographs against digits: ([\d.]+)", done.stdout)
    assert found is not None
    assert float(found[1]) > 0.8


@pytest.mark.parametrize("name", ["quickstart.py"])
def test_the_readme_shows_the_file(name: str) -> None:
    code = (ROOT / "examples" / name).read_text().split('"""', 2)[2].strip()
    assert code in (ROOT / "README.md").read_text()


def test_the_tree_in_the_readme_is_the_tree() -> None:
    readme = (ROOT / "README.md").read_text()
    tree = readme.split("```\nsrc/offaxis/", 1)[1].split("```", 1)[0]
    named = set(re.findall(r"^  ([\w.]+)/?\s", tree, flags=re.MULTILINE))
    package = ROOT / "src" / "offaxis"
    there = {p.name for p in package.iterdir() if (p.is_dir() and p.name != "__pycache__") or p.suffix == ".py"}
    assert named == there - {"__init__.py", "__main__.py"}
