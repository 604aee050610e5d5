"""offaxis score that stops and goes on: journals, killed processes, full disks, files that are there already."""

import dataclasses
import errno
import io
import os
import random
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import offaxis
from offaxis import Model
from offaxis.cli import app
from offaxis.data.containers import ImageSource
from offaxis.errors import ArgumentError, DataError, StorageError
from offaxis.options import ScoreOptions
from offaxis.score import images, score_images
from offaxis.score.rows import Journal
from tests.hostile.damage import flipped
from tests.model.scored import rows_of, scored
from tests.models import World, write_images
from tests.waiting import eventually

run = CliRunner().invoke


def stop_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """Let scoring stop after some batches, as Ctrl-C does."""
    real, judged = Model.predict_batch, list[int]()

    def predict_batch(self: Model, pixels: torch.Tensor) -> Any:
        if len(judged) == batches:
            raise KeyboardInterrupt
        judged.append(len(pixels))
        return real(self, pixels)

    monkeypatch.setattr(Model, "predict_batch", predict_batch)


def test_a_run_that_stopped_goes_on(
    bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, names = tmp_path / "out.jsonl", [str(path) for path in pictures]
    whole = scored(bundle, names, tmp_path / "whole.jsonl", batch=4)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            scored(bundle, names, out, batch=4)
    assert not out.exists()
    with pytest.raises(ArgumentError, match="--resume"):
        scored(bundle, names, out)
    with (tmp_path / "out.jsonl.journal").open("a") as file:
        file.write('{"path": "cut of')
    assert scored(bundle, names, out, batch=4, resume=True) == whole
    with pytest.raises(ArgumentError, match="--overwrite"):
        scored(bundle, names, out)
    assert scored(bundle, names, out, batch=4, overwrite=True) == whole


@pytest.mark.parametrize("name", ["out.summary.json", "out.html"])
def test_files_beside_the_rows_are_not_replaced_unasked(
    name: str, bundle: Path, pictures: list[Path], tmp_path: Path
) -> None:
    """They may be of out.csv, where rows go to out.jsonl, or not of this program at all."""
    (tmp_path / name).write_text("mine")
    for options in ({}, {"resume": True}):
        with pytest.raises(ArgumentError, match=f"{name} is there already and would be replaced beside out.jsonl"):
            scored(bundle, [str(pictures[0])], tmp_path / "out.jsonl", **options)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"
    if name == "out.html":
        scored(bundle, [str(pictures[0])], tmp_path / "out.jsonl", top=0)  # has no page
        assert (tmp_path / name).read_text() == "mine"
    scored(bundle, [str(pictures[0])], tmp_path / "out.jsonl", overwrite=True)
    assert (tmp_path / name).read_text() != "mine"


def test_a_summary_of_other_rows_is_not_taken_for_that_of_these(
    bundle: Path, pictures: list[Path], tmp_path: Path
) -> None:
    scored(bundle, [str(pictures[0])], tmp_path / "out.jsonl")
    scored(bundle, [str(pictures[0])], tmp_path / "out.ndjson", overwrite=True)
    with pytest.raises(ArgumentError, match=r"out\.summary\.json is the summary of out\.ndjson"):
        scored(bundle, [str(pictures[0])], tmp_path / "out.jsonl", resume=True)


def test_a_journal_that_is_not_of_this_run_is_refused(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    journal, names = tmp_path / "out.jsonl.journal", [str(pictures[0])]
    journal.write_text("notes of a user")
    with pytest.raises(ArgumentError, match="not known to be of this run, as .*out.summary.json is missing"):
        scored(bundle, names, tmp_path / "out.jsonl", resume=True)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["notes of a user"]
    journal.unlink()
    scored(bundle, names, tmp_path / "out.jsonl")
    (tmp_path / "out.jsonl").rename(journal)
    other = tmp_path / "other.oax"
    model = offaxis.load(bundle)
    dataclasses.replace(model, calibration=model.calibration.with_alpha(0.1)).save(other)
    for wrong, paths, options in (
        ("another bundle", (other, names), {}),
        ("other paths", (bundle, names[:0]), {}),
        ("not flagged at this --fdr", (bundle, names), {"fdr": 0.2}),
        ("in another format", (bundle, names), {"format": "csv"}),
    ):
        with pytest.raises(ArgumentError, match=f"holds .*{wrong}"):
            scored(*paths, tmp_path / "out.jsonl", resume=True, **options)
    assert len(scored(bundle, names, tmp_path / "out.jsonl", resume=True)) == 1


def test_a_damaged_row_of_a_journal_is_told(
    bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    names = [str(path) for path in pictures]
    with monkeypatch.context() as patch:
        patch.setattr("offaxis.score.rows.Journal.finish", lambda *_, **__: pytest.fail("stopped"))
        with pytest.raises(pytest.fail.Exception):
            scored(bundle, names, out)
    whole = journal.read_bytes()
    start = whole.index(b"\n") + 1
    for damage in (b"\0\0\0\n", b"{}\n", b'{"path": "x"}\n', b"[" * 100_000 + b"\n"):
        journal.write_bytes(whole[:start] + damage + whole[start:])
        with pytest.raises(DataError, match=r"Row 2 of .*out.jsonl.journal is damaged"):
            scored(bundle, names, out, resume=True)
    journal.write_bytes(whole)
    left = tmp_path / ".out.jsonl.0123abcd.part"
    left.touch()  # by a process that was killed while it wrote
    assert len(scored(bundle, names, out, resume=True)) == len(names)
    assert not left.exists()


def test_to_resume_a_finished_run_is_no_error(bundle: Path, model: Model, pictures: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    words = ["score", str(bundle), *map(str, pictures), "--out", str(out), "--quiet"]
    assert run(app, words).exit_code == 0
    rows = out.read_bytes()
    done = run(app, [*words, "--resume"])
    assert done.exit_code == 0, done.output
    assert "finished before" in done.stderr
    assert f"{len(pictures)} images scored" in done.stderr
    assert out.read_bytes() == rows
    other = tmp_path / "other.oax"
    dataclasses.replace(model, calibration=model.calibration.with_alpha(0.1)).save(other)
    with pytest.raises(ArgumentError, match="another bundle"):
        score_images(model, ScoreOptions(bundle=other, paths=tuple(words[2:3]), out=str(out), resume=True, quiet=True))
    summary = tmp_path / "out.summary.json"
    summary.write_bytes(flipped(summary.read_bytes(), random.Random(0)))
    with pytest.raises(ArgumentError, match="damaged"):
        score_images(model, ScoreOptions(bundle=bundle, paths=tuple(words[2:3]), out=str(out), resume=True, quiet=True))
    summary.unlink()
    with pytest.raises(ArgumentError, match="not known to be finished"):
        score_images(model, ScoreOptions(bundle=bundle, paths=tuple(words[2:3]), out=str(out), resume=True, quiet=True))


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.parquet"])
@pytest.mark.parametrize("fdr", [None, 0.5])
def test_new_images_of_a_folder_are_scored_the_next_evening(
    name: str, fdr: float | None, bundle: Path, world: World, tmp_path: Path
) -> None:
    if name == "x.parquet":
        pytest.importorskip("pyarrow")
    folder, whole, out = tmp_path / "images", tmp_path / "whole" / name, tmp_path / name
    write_images(folder, world.test, 9)
    flags = [] if fdr is None else ["--fdr", str(fdr)]
    words = ["score", str(bundle), str(folder), "--quiet", *flags, "--out"]
    assert run(app, [*words, str(whole)]).exit_code == 0
    kept = {file: file.read_bytes() for file in sorted(folder.iterdir())[5:]}
    for file in kept:
        file.unlink()
    assert run(app, [*words, str(out)]).exit_code == 0
    for file, data in kept.items():
        file.write_bytes(data)
    done = run(app, [*words, str(out), "--resume"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "9 images scored" in done.stderr
    assert out.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.journal"))
    page = out.with_suffix(".html").read_text()
    assert page.count('<img src="data:image/jpeg') == 9  # those of the first evening too
    assert "nothing is new" in run(app, [*words, str(out), "--resume"]).stderr


def test_a_pipe_in_the_place_of_the_journal_does_not_hang(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.jsonl.journal")
    with pytest.raises(StorageError, match="no plain file"):
        scored(bundle, [str(pictures[0])], tmp_path / "out.jsonl", resume=True)


def test_a_killed_process_loses_no_row(bundle: Path, world: World, tmp_path: Path) -> None:
    """kill -9 in the middle, then --resume: every file has one row, as in a run that was left alone."""
    paths = write_images(tmp_path / "many", world.test, 100) * 3
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
    assert eventually(lambda: journal.exists() and journal.stat().st_size >= 5000, 240)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    done = subprocess.run([*command, "--resume", "--quiet"], capture_output=True, text=True, check=True)
    names = [row["path"] for row in rows_of(out)]
    assert names == sorted(names)
    assert len(names) == 400
    assert "400 images scored" in done.stderr


class FullDisk(io.RawIOBase):
    """A file on a disk without room."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def on_full_disk() -> IO[str]:
    return io.TextIOWrapper(io.BufferedWriter(FullDisk()), encoding="utf-8")


@pytest.mark.parametrize("rows", [1, 100])  # a few are held back until the flush, many are written before it
def test_a_full_disk_is_told_in_a_sentence(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    real, names = Journal.rows, [f"{tmp_path}/{number:0100}.png" for number in range(rows)]

    def begun(self: Journal) -> Any:
        yield from real(self)
        self.close()
        self._writer.file = self._file = on_full_disk()

    monkeypatch.setattr(Journal, "rows", begun)
    with pytest.raises(StorageError, match="No space left .*: free some space and resume"):
        scored(bundle, names, tmp_path / "out.jsonl", batch=rows)
    monkeypatch.setattr(sys, "stdout", on_full_disk())
    with pytest.raises(StorageError, match="Standard output cannot be written"):
        score_images(
            offaxis.load(bundle), ScoreOptions(bundle=bundle, paths=tuple(names), out="-", batch=rows, quiet=True)
        )
    assert sys.stdout.closed


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_run_killed_at_any_byte_goes_on(
    bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Also in the middle of a name with a line break and quotes, of one that is no formula, and before the first row."""
    folder, out, journal = tmp_path / "in", tmp_path / f"out.{suffix}", tmp_path / f"out.{suffix}.journal"
    folder.mkdir()
    monkeypatch.chdir(folder)
    names = ["=1+1.png", 'a"\n,b\n.png', "plain.png", "missing\n.png"]
    for name in names[:3]:
        Path(name).write_bytes(pictures[0].read_bytes())
    options: dict[str, Any] = {"bundle": bundle, "paths": tuple(names), "out": str(out), "batch": 1, "quiet": True}
    model = offaxis.load(bundle)
    score_images(model, ScoreOptions(**options))
    whole, summary = out.read_bytes(), out.with_suffix(".summary.json").read_text()
    breaks = [at + after for at, byte in enumerate(whole) if byte in b"\n\\" for after in (0, 1)]
    for kept in sorted({*range(0, len(whole), 23), *breaks, len(whole)}):
        out.unlink()
        journal.write_bytes(whole[:kept])
        score_images(model, ScoreOptions(**options, resume=True))
        assert out.read_bytes() == whole
        assert out.with_suffix(".summary.json").read_text() == summary


def test_a_finished_run_of_other_paths_or_flags_is_not_taken_for_this_one(
    bundle: Path, pictures: list[Path], tmp_path: Path
) -> None:
    out, paths = tmp_path / "out.jsonl", [str(path) for path in pictures[:3]]
    rows = scored(bundle, paths, out)
    assert scored(bundle, paths, out, resume=True) == rows
    with pytest.raises(ArgumentError, match="holds the rows of other paths"):
        scored(bundle, paths[:2], out, resume=True)
    with pytest.raises(ArgumentError, match="rows that were not flagged at this --fdr"):
        scored(bundle, paths, out, resume=True, fdr=0.2)
    with pytest.raises(ArgumentError, match="rows that were flagged at another level"):
        scored(bundle, paths, out, resume=True, alpha=0.2)
    scored(bundle, paths, out, overwrite=True, fdr=0.2)
    with pytest.raises(ArgumentError, match="rows that were not flagged at this --fdr"):
        scored(bundle, paths, out, resume=True)
    scored(bundle, paths, out, resume=True, fdr=0.2)


@pytest.mark.parametrize("again", [{}, {"resume": True}, {"overwrite": True}])
def test_a_journal_that_another_process_writes_is_refused(
    bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: dict[str, bool]
) -> None:
    out = tmp_path / "out.jsonl"
    run = {"bundle": "b", "paths": "p", "format": "csv", "fdr": None, "alpha": 0.05}
    first = Journal(out, run)
    first.begin(resume=False, overwrite=False)
    first.summary.unlink()
    if "resume" in again:
        monkeypatch.setattr(Journal, "_summary_of_this_run", lambda _: {})
    written = first.path.read_bytes()
    with pytest.raises(ArgumentError, match="Another process is writing"):
        scored(bundle, [str(pictures[0])], out, **again)
    assert first.path.read_bytes() == written
    first.close()
    scored(bundle, [str(pictures[0])], out, overwrite=True)
    assert len(rows_of(out)) == 1


def test_rows_of_other_paths_are_not_mixed_in(
    bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, names = tmp_path / "out.jsonl", [str(path) for path in pictures]
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            scored(bundle, names[:4], out, batch=1)
    kept = (tmp_path / "out.jsonl.journal").read_bytes()
    with pytest.raises(ArgumentError, match="rows of other paths than those that were named: .* add --overwrite"):
        scored(bundle, names[4:6], out, resume=True)
    assert (tmp_path / "out.jsonl.journal").read_bytes() == kept
    words = ["score", str(bundle), *names[4:6], "--out", str(out), "--quiet", "--resume"]
    assert isinstance(run(app, words).exception, ArgumentError)
    words = ["score", str(bundle), "-", "--out", str(out), "--quiet", "--resume"]
    listed = run(app, words, input="\n".join(names[4:6]))  # a list on standard input likewise
    assert "rows of other paths" in str(listed.exception)
    assert [row["path"] for row in scored(bundle, names[:4], out, batch=1, resume=True)] == names[:4]


@pytest.mark.parametrize("kind", ["zip", "npy"])
def test_what_has_a_row_is_not_read_again_inside_a_file_of_many(
    kind: str, bundle: Path, pictures: list[Path], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = tmp_path / f"many.{kind}", tmp_path / "out.jsonl"
    if kind == "npy":
        np.save(file, world.test.batch(torch.arange(6)).permute(0, 2, 3, 1).numpy())
    else:
        with zipfile.ZipFile(file, "w") as pack:
            for path in pictures[:6]:
                pack.write(path, path.name)
    whole = scored(bundle, [str(file)], tmp_path / "whole.jsonl", batch=2)
    assert len(whole) == 6
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            scored(bundle, [str(file)], out, batch=2)
    decoded: list[str] = []
    real = images._decode

    def decode(model: Model, item: ImageSource) -> Any:
        decoded.append(item.name)
        return real(model, item)

    monkeypatch.setattr(images, "_decode", decode)
    assert scored(bundle, [str(file)], out, batch=2, resume=True) == whole
    assert 0 < len(decoded) <= 4
    assert set(decoded) <= {row["path"] for row in whole[2:]}
