"""The notebook: kept without outputs, ready for Colab, and run from its first cell to its last by nbmake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "offaxis_in_ten_minutes.ipynb"


def test_it_is_kept_without_outputs_and_names_its_kernel() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 8
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"  # the one that Colab has
    text = "".join("".join(cell["source"]) for cell in code)
    for step in ("attach(", "train(", "Model.calibrated(", "predict(", "evaluate(", "report"):
        assert step in text


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_it_runs_from_its_first_cell_to_its_last() -> None:
    pytest.importorskip("nbmake", reason="needs offaxis[notebook]")
    settings = {**os.environ, "PYTHONPATH": str(NOTEBOOK.parents[1] / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--nbmake",
            "-q",
            "-p",
            "no:cacheprovider",
            "--override-ini=addopts=",
            NOTEBOOK,
        ],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=settings,
    )
    assert done.returncode == 0, done.stdout + done.stderr
