"""Every example runs as it stands, and the tree is as the page on the architecture shows it."""

import ast
import io
import os
import re
import runpy
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import httpx
import pytest
from PIL import Image
from typer.testing import CliRunner

import offaxis
from offaxis.cli import app
from offaxis.data.embedded import small_digits
from offaxis.onnx import with_engine
from tests.serve.serving import running

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "offaxis"


def run(name: str, folder: Path) -> str:
    """Run an example in a folder, as a program but in this process, and return what it prints."""
    printed = io.StringIO()
    with chdir(folder), redirect_stdout(printed), patch.object(sys, "argv", [name]):
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    return printed.getvalue()


def run_apart(name: str, folder: Path) -> str:
    """Run an example in a process of its own."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


def test_a_network_of_ones_own_is_attached_and_trained(folder: Path) -> None:
    assert re.search(r"validation accuracy \d\d\.\d%", run("attach_and_train.py", folder=folder))
    assert (folder / "runs" / "digits" / "model.safetensors").exists()


@pytest.fixture(scope="module")
def kept(folder: Path) -> Path:
    """The bundle and the run that the other tasks start from."""
    assert "flags" in run("calibrate_and_keep.py", folder=folder)
    assert (folder / "digits.oax").exists()
    return folder


def test_images_are_scored(kept: Path) -> None:
    lines = run("score_images.py", folder=kept).splitlines()
    assert [line.split()[0] for line in lines] == ["small-digits", "letters", "photographs"]


def test_detectors_are_evaluated(kept: Path) -> None:
    printed = run("evaluate_detectors.py", folder=kept)
    assert all(name in printed for name in ("cosine", "two-cosines", "energy", "knn"))


def test_a_detector_of_ones_own_is_evaluated(kept: Path) -> None:
    assert "margin" in run_apart("own_detector.py", folder=kept)


def test_data_of_ones_own_is_used(kept: Path) -> None:
    lines = run("own_data.py", folder=kept).splitlines()
    assert [line.split(":")[0] for line in lines] == ["Dataset", "DataLoader", "folder"]


@pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
@pytest.mark.parametrize(
    ("name", "shown"),
    [("pytorch_ood_in_offaxis", "| pytorch-ood-she"), ("offaxis_in_pytorch_ood", "'AUROC': 0.")],
)
def test_detectors_move_between_pytorch_ood_and_offaxis(
    name: str, shown: str, ood: object, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    example["main"](epochs=1)
    assert shown in capsys.readouterr().out
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    parts = [
        part for part in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if textwrap.indent(part, "") in source
    ]
    parts += [
        part for part in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if textwrap.indent(part, "    ") in source
    ]
    assert parts, "the page shows a part of the file"


def rows() -> list[list[str]]:
    """The rooms and files in each row of the first table of the page on the architecture."""
    table = (ROOT / "docs" / "architecture.md").read_text().split("|---|---|---|\n", 1)[1].split("\n\n", 1)[0]
    return [re.findall(r"`([\w.]+)/?`", line.split("|")[1]) for line in table.splitlines()]


def test_the_table_of_rooms_is_the_tree() -> None:
    there = {p.name for p in PACKAGE.iterdir() if (p.is_dir() and p.name != "__pycache__") or p.suffix == ".py"}
    assert {name for row in rows() for name in row} == there - {"__init__.py", "__main__.py"}


READERS = {
    "networks/open.py": ("training", "bundle"),
    "networks/classifier.py": ("training",),
    "evaluation/results.py": ("reports",),
}
"""Calls down the tree: a run and a bundle are read by the rooms that wrote them; ``check_training`` is a training's;
results are written in LaTeX as a report's tables are."""


def test_imports_point_up_the_tree() -> None:
    order = {name.removesuffix(".py"): number for number, row in enumerate(rows()) for name in row}
    for file in PACKAGE.rglob("*.py"):
        part = file.relative_to(PACKAGE).with_suffix("").parts[0]
        if part.startswith("__"):
            continue
        tree = ast.parse(file.read_text())
        types = [
            node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ]
        for_types = {id(inner) for node in types for inner in ast.walk(node)}
        for node in ast.walk(tree):
            named = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
            if named and named.startswith("offaxis.") and id(node) not in for_types:
                room = named.split(".")[1]
                down = room in READERS.get(file.relative_to(PACKAGE).as_posix(), ())
                assert down or order[room] <= order[part], f"{file} imports {named}"


def hops(way: str) -> list[tuple[str, str]]:
    """The files and functions that the page on the architecture shows for one way of an image."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split(f"### {way}\n", 1)[1].split("\n### ", 1)[0]
    return re.findall(r"^\| \d+ \| `([\w/.]+)` \| `(\w+)` \|$", section, flags=re.MULTILINE)


@contextmanager
def recorded_calls() -> Iterator[list[tuple[str, str]]]:
    """The (file, function) of every call inside the package while the block lasts, in this thread and in new ones."""
    calls: list[tuple[str, str]] = []
    inside = str(PACKAGE) + os.sep

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(inside):
            calls.append((code.co_filename.removeprefix(inside).replace(os.sep, "/"), code.co_name))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None is what removes it


def check_order(way: str, calls: list[tuple[str, str]], files: int) -> None:
    """Check that the hops of the page were called, each after the one before it, in so many files at the most."""
    expected = hops(way)
    assert len(expected) >= 7
    assert len({file for file, _ in expected}) <= files
    rest = iter(calls)
    for hop in expected:
        assert hop in rest, f"{hop} is not called after the hops before it"


@pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
def test_the_way_of_an_image_is_as_the_docs_show_it(tmp_path: Path) -> None:
    digits = small_digits("train")
    for number, (image, label) in enumerate(zip(digits.images[:120], digits.labels.tolist(), strict=False)):
        file = tmp_path / "digits" / ("test" if number % 3 else "train") / str(label) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(file)

    def invoke(*words: str) -> None:
        done = CliRunner().invoke(app, [*words])
        assert done.exit_code == 0, done.output

    images, out = str(tmp_path / "digits"), str(tmp_path / "run")
    with recorded_calls() as calls:
        invoke(
            "train",
            "--id",
            images,
            "--network",
            "wrn-10-1",
            "--epochs",
            "1",
            "--batch-size",
            "20",
            "--out",
            out,
            "--quiet",
        )
    check_order("`offaxis train`", calls, 12)
    store = str(tmp_path / "results")
    with recorded_calls() as calls:
        invoke("evaluate", out, "--ood", "uniform", "--detectors", "cosine,knn", "--images", "40", "--out", store)
        invoke("report", store, "--out", str(tmp_path / "report"))
    check_order("`offaxis evaluate` to `offaxis report`", calls, 12)
    bundle = tmp_path / "digits.oax"
    with recorded_calls() as calls:
        invoke("bundle", out, "--calibrate", images, "--alpha", "0.2", "--out", str(bundle))
    check_order("`offaxis bundle`", calls, 12)
    with recorded_calls() as calls:
        invoke("score", str(bundle), images, "--engine", "onnx", "--out", str(tmp_path / "scores.csv"))
    check_order("`offaxis score`, a batch", calls, 6)
    model = with_engine(offaxis.load(bundle), "onnx")
    with recorded_calls() as calls, running(model) as (address, _):
        (file,) = list((tmp_path / "digits" / "test").rglob("1.png"))
        answer = httpx.post(f"{address}/v1/predict", content=file.read_bytes(), timeout=30)
        assert answer.status_code == 200, answer.text
    check_order("`offaxis serve`, one request", calls, 7)


def test_the_tree_of_the_docs_is_the_tree() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    lines = page.split("```text\n")[1].split("```")[0].splitlines()
    shown: dict[str, set[str]] = {}
    for line in lines:
        if not line.startswith(" "):
            room, *names = line.split()
            shown[room] = set(names)
        else:
            shown[room] |= set(line.split())
    source = ROOT / "src" / "offaxis"
    rooms = {"offaxis/": source, **{f"{init.parent.name}/": init.parent for init in source.glob("*/__init__.py")}}
    found = {
        name: {file.stem for file in room.glob("*.py")} - {"__init__"}
        | ({f"{init.parent.name}/" for init in room.glob("*/__init__.py")} if room != source else set())
        for name, room in rooms.items()
    }
    assert shown == found


@pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
def test_a_researchers_head_and_detector_are_compared(folder: Path) -> None:
    printed = run_apart("researcher.py", folder=folder)
    assert "| soft-distance" in printed
    assert "soft-distance (tuned)" in printed
    assert re.search(
        r"prototypes: soft-distance \(tuned\) minus linear: max-softmax: [+-]\d+\.\d\d points of auroc", printed
    )
    assert r"\begin{tabular}" in printed
    assert "The class found worst: " in printed


@pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
def test_a_plan_of_the_paper_runs_each_command_once(tmp_path: Path) -> None:
    printed = run("paper_plan.py", folder=tmp_path).splitlines()
    running = [line for line in printed if line.startswith("running: ")]
    assert len(running) == len(set(running)) == 6  # two trainings, shared, and two evaluations for each
    assert (tmp_path / "paper" / "histograms" / "histograms.svg").exists()
    again = run("paper_plan.py", folder=tmp_path)
    assert "running: " not in again
