"""offaxis score: every source, every format, bad files, interruptions."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import offaxis
from offaxis import Model
from offaxis.cli import app
from offaxis.deploy.score import Options, score
from offaxis.errors import ArgumentError, DataError

from .conftest import World, write_images

run = CliRunner().invoke


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def scored(bundle: Path, paths: list[str], out: Path, **options: Any) -> list[dict[str, Any]]:
    score(bundle, offaxis.load(bundle), paths, Options(str(out), quiet=True, **options))
    return rows_of(out)


@pytest.fixture
def mixed(tmp_path: Path, world: World) -> Path:
    """A folder with images, a folder in it, two archives and three bad files."""
    folder = tmp_path / "mixed"
    inner = write_images(folder / "b", world.test, 5)
    write_images(folder, world.test, 3)
    with zipfile.ZipFile(folder / "c.zip", "w") as pack:
        for path in inner:
            pack.write(path, f"deep/{path.name}")
        pack.writestr("deep/bad.png", b"no image")
    with tarfile.open(folder / "d.tar.gz", "w:gz") as tar:
        tar.add(inner[0], "one.png")
    (folder / "broken.png").write_bytes(inner[0].read_bytes()[:60])
    (folder / "notes.txt").write_text("hello")
    (folder / ".hidden").write_text("ignored")
    return folder


def test_folders_archives_and_bad_files_give_rows_in_order(bundle: Path, mixed: Path, tmp_path: Path) -> None:
    rows = scored(bundle, [str(mixed)], tmp_path / "out.jsonl", batch=4)
    names = [row["path"].removeprefix(f"{mixed}/") for row in rows]
    assert names == [
        "000.png", "001.png", "002.png", *[f"b/00{i}.png" for i in range(5)], "broken.png",
        *[f"c.zip::deep/00{i}.png" for i in range(5)], "c.zip::deep/bad.png", "d.tar.gz::one.png", "notes.txt",
    ]  # fmt: skip
    by_name = dict(zip(names, rows, strict=True))
    assert "damaged or truncated" in by_name["broken.png"]["error"]
    assert by_name["notes.txt"]["error"] == "this is not an image file"
    assert by_name["broken.png"]["verdict"] is None
    # one picture, one answer, wherever it came from; a batch of another size may round otherwise
    same = [by_name[name] for name in ("000.png", "b/000.png", "c.zip::deep/000.png", "d.tar.gz::one.png")]
    assert len({(row["class"], row["verdict"], round(row["score"], 5)) for row in same}) == 1
    summary = json.loads((tmp_path / "out.summary.json").read_text())
    assert summary["images"] == 14
    assert summary["bad_files"] == 3
    assert len(summary["strangest"]) == 14
    assert summary["strangest"][0]["score"] >= summary["strangest"][-1]["score"]
    assert (tmp_path / "out.strangest.png").stat().st_size > 100
    assert not (tmp_path / "out.jsonl.journal").exists()


def test_rows_are_what_predict_says(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    rows = scored(bundle, [str(path) for path in pictures], tmp_path / "out.jsonl")
    expected = offaxis.load(bundle).predict(pictures)
    assert [row["score"] for row in rows] == [p.score for p in expected]
    assert [row["verdict"] for row in rows] == [p.verdict.value for p in expected]


def test_three_formats_say_the_same(bundle: Path, mixed: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = scored(bundle, [str(mixed)], tmp_path / "a.jsonl")
    model = offaxis.load(bundle)
    for name in ("a.csv", "a.parquet"):
        score(bundle, model, [str(mixed)], Options(str(tmp_path / name), quiet=True))
    with (tmp_path / "a.csv").open(newline="") as file:
        from_csv = list(csv.DictReader(file))
    assert [row["path"] for row in from_csv] == [row["path"] for row in rows]
    assert [float(row["score"]) if row["score"] else None for row in from_csv] == [row["score"] for row in rows]
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == rows


def test_a_run_that_stopped_goes_on(bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: Any) -> None:
    out, names = tmp_path / "out.jsonl", [str(path) for path in pictures]
    whole = scored(bundle, names, tmp_path / "whole.jsonl", batch=4)
    judged: list[int] = []
    real = Model.judge

    def judge(self: Model, pixels: torch.Tensor) -> Any:
        if len(judged) == 2:
            raise KeyboardInterrupt
        judged.append(len(pixels))
        return real(self, pixels)

    monkeypatch.setattr(Model, "judge", judge)
    with pytest.raises(KeyboardInterrupt):
        scored(bundle, names, out, batch=4)
    assert not out.exists()
    monkeypatch.setattr(Model, "judge", real)
    with pytest.raises(ArgumentError, match="--resume"):
        scored(bundle, names, out)
    with (tmp_path / "out.jsonl.journal").open("a") as file:
        file.write('{"path": "cut of')
    assert scored(bundle, names, out, batch=4, resume=True) == whole
    with pytest.raises(ArgumentError, match="--overwrite"):
        scored(bundle, names, out)
    assert scored(bundle, names, out, batch=4, overwrite=True) == whole


def test_a_journal_of_another_bundle_is_refused(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out.csv.journal").write_text('{"format": "offaxis-score-1", "bundle": "another"}\n')
    with pytest.raises(DataError, match="another bundle"):
        scored(bundle, [str(pictures[0])], tmp_path / "out.csv", resume=True)


def test_a_killed_process_loses_no_row(bundle: Path, world: World, tmp_path: Path) -> None:
    """kill -9 in the middle, then --resume: every file has one row, as in a run that was left alone."""
    paths = write_images(tmp_path / "many", world.test, 100) * 7
    for number, path in enumerate(paths):
        (tmp_path / "many" / f"copy{number:05}.png").write_bytes(path.read_bytes())
    out = tmp_path / "out.jsonl"
    command = [
        sys.executable,
        "-m",
        "offaxis",
        "score",
        str(bundle),
        str(tmp_path / "many"),
        "--out",
        str(out),
        "--batch",
        "1",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    journal = tmp_path / "out.jsonl.journal"
    deadline = time.monotonic() + 60
    while (not journal.exists() or journal.stat().st_size < 5000) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    done = subprocess.run([*command, "--resume", "--quiet"], capture_output=True, text=True, check=True)
    names = [row["path"] for row in rows_of(out)]
    assert names == sorted(names)
    assert len(names) == 800
    assert "800 images judged" in done.stderr


def test_standard_input_and_output(bundle: Path, pictures: list[Path]) -> None:
    listed = "\n".join(map(str, pictures[:3])) + "\n/nowhere/x.png\n"
    done = run(app, ["score", str(bundle), "-", "--quiet"], input=listed)
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["path"] for row in rows] == listed.split()
    assert rows[3]["error"] == "there is no such file"
    assert "3 images judged, 1 files" in done.stderr


def test_what_cannot_be_is_told_before_work_begins(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    assert isinstance(run(app, ["score", str(bundle), "nowhere.png"]).exception, DataError)
    assert isinstance(run(app, ["score", str(bundle), str(pictures[0]), "--out", "x.doc"]).exception, ArgumentError)
    assert isinstance(
        run(app, ["score", str(bundle), str(pictures[0]), "--format", "parquet"]).exception, ArgumentError
    )


@pytest.mark.scale
def test_ray_gives_the_same_rows(bundle: Path, mixed: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    here = scored(bundle, [str(mixed)], tmp_path / "here.jsonl", batch=4)
    command = [
        sys.executable,
        "-m",
        "offaxis",
        "score",
        str(bundle),
        str(mixed),
        "--out",
        str(tmp_path / "there.jsonl"),
    ]
    subprocess.run([*command, "--engine", "ray", "--batch", "4", "--workers", "1"], check=True, timeout=240)
    assert rows_of(tmp_path / "there.jsonl") == here
