"""offaxis score: every source, every format, bad files, interruptions."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import offaxis
from offaxis import Model, Verdict, progress
from offaxis.cli import app
from offaxis.errors import ArgumentError, BadOutputsError, DataError, TooFewImagesError
from offaxis.options import ScoreOptions
from offaxis.score import score_images, write_score_page
from offaxis.score.page import spread
from offaxis.score.rows import RowWriter, row_of
from tests.model.scored import rows_of, scored
from tests.models import World, write_images

run = CliRunner().invoke


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
    (folder / "photo.jxl").write_text("hello")
    (folder / ".hidden").write_text("ignored")
    return folder


def test_folders_archives_and_bad_files_give_rows_in_order(bundle: Path, mixed: Path, tmp_path: Path) -> None:
    rows = scored(bundle, [str(mixed)], tmp_path / "out.jsonl", batch=4)
    names = [row["path"].removeprefix(f"{mixed}/") for row in rows]
    assert names == [
        "000.png",
        "001.png",
        "002.png",
        *[f"b/00{i}.png" for i in range(5)],
        "broken.png",
        *[f"c.zip::deep/00{i}.png" for i in range(5)],
        "c.zip::deep/bad.png",
        "d.tar.gz::one.png",
        "notes.txt",
        "photo.jxl",
    ]
    by_name = dict(zip(names, rows, strict=True))
    assert "damaged or truncated" in by_name["broken.png"]["error"]
    assert by_name["notes.txt"]["error"] == "this is not an image file"
    assert by_name["photo.jxl"]["error"] == "images of this format are not read: convert it to JPEG"
    assert by_name["broken.png"]["verdict"] is None
    # one picture, one answer, wherever it came from; a batch of another size may round otherwise
    same = [by_name[name] for name in ("000.png", "b/000.png", "c.zip::deep/000.png", "d.tar.gz::one.png")]
    assert len({(row["class"], row["verdict"], round(row["score"], 5)) for row in same}) == 1
    summary = json.loads((tmp_path / "out.summary.json").read_text())
    assert summary["images"] == 14
    assert summary["bad_files"] == 4
    assert len(summary["top"]) == 14
    assert summary["top"][0]["score"] >= summary["top"][-1]["score"]
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert page.count('<span class="picture"><img src="data:image/jpeg') == 14
    assert not (tmp_path / "out.jsonl.journal").exists()


def test_where_nothing_can_be_scored_the_command_fails(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"none")
    done = run(app, ["score", str(bundle), str(tmp_path / "a.png"), "--out", str(tmp_path / "out.csv"), "--quiet"])
    assert isinstance(done.exception, DataError)
    assert "Expected an image" in (tmp_path / "out.csv").read_text()


def test_rows_are_what_predict_says(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    rows = scored(bundle, [str(path) for path in pictures], tmp_path / "out.jsonl")
    expected = offaxis.load(bundle).predict(pictures)
    assert [row["score"] for row in rows] == [p.score for p in expected]
    assert [row["verdict"] for row in rows] == [p.verdict.value for p in expected]


def test_three_formats_say_the_same(bundle: Path, mixed: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = scored(bundle, [str(mixed)], tmp_path / "a.jsonl")
    model = offaxis.load(bundle)
    for name in ("b.csv", "c.parquet"):
        score_images(model, ScoreOptions(bundle=bundle, paths=(str(mixed),), out=str(tmp_path / name), quiet=True))
    with (tmp_path / "b.csv").open(newline="") as file:
        from_csv = list(csv.DictReader(file))
    assert [row["path"] for row in from_csv] == [row["path"] for row in rows]
    assert list(from_csv[0])[:3] == ["path", "verdict", "class"]
    assert "class_p_value" not in from_csv[0]  # which decides nothing in this bundle
    assert [row["score"] for row in from_csv] == [
        str(float(f"{row['score']:.4g}")) if row["score"] else "" for row in rows
    ]
    assert parquet.read_table(tmp_path / "c.parquet").to_pylist() == rows


def test_the_page_is_named_where_one_was_written(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    words = ["score", str(bundle), str(pictures[0]), "--out", str(tmp_path / "out.csv"), "--quiet", "--overwrite"]
    told = f"The images with the highest scores: {tmp_path / 'out.html'}"
    assert told in run(app, words).stderr
    assert told in run(app, [*words[:-1], "--resume"]).stderr
    assert told not in run(app, [*words, "--top", "0"]).stderr
    assert (tmp_path / "out.html").exists()
    assert told not in run(app, [*words[:-1], "--resume"]).stderr


@pytest.mark.parametrize("runner", ["threads", "ray"])
def test_images_are_flagged_at_another_level(bundle: Path, pictures: list[Path], tmp_path: Path, runner: str) -> None:
    if runner == "ray":
        pytest.importorskip("ray")
    names = [str(path) for path in pictures]
    before = scored(bundle, names, tmp_path / "usual.jsonl")
    rows = scored(bundle, names, tmp_path / "half.jsonl", alpha=0.5, runner=runner)
    assert [row["p_value"] for row in rows] == pytest.approx([row["p_value"] for row in before], abs=1e-3)
    assert [row["verdict"] == "out-of-distribution" for row in rows] == [row["p_value"] <= 0.5 for row in rows]
    assert json.loads((tmp_path / "half.summary.json").read_text())["alpha"] == 0.5


def test_the_summary_tells_the_share_that_the_calibration_gives(
    model: Model, pictures: list[Path], world: World, tmp_path: Path
) -> None:
    few = model.recalibrated(world.calibration.subset(torch.arange(36)), per_class=False)
    several = {
        "about 2.7%": few,  # one place of 37
        "about 1.7%": model.recalibrated(world.calibration.subset(torch.arange(59)), confidence=0.95),
        "at most 5.0%": model.recalibrated(world.calibration, per_class=True),
    }
    for expected, made in several.items():
        made.save(tmp_path / "x.oax")
        done = run(app, ["score", str(tmp_path / "x.oax"), str(pictures[0]), "--quiet"])
        assert f"of new images that are like these, {expected} would be flagged." in done.stderr, done.output


def test_one_image_without_finite_outputs_costs_no_other_its_row(
    bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = scored(bundle, [str(path) for path in pictures], tmp_path / "whole.jsonl")
    Image.new("L", (8, 8), 255).save(tmp_path / "white.png")
    real = Model.predict_batch

    def predict_batch(self: Model, pixels: torch.Tensor) -> Any:
        if (pixels == 255).all((1, 2, 3)).any():
            raise BadOutputsError("NaN")
        return real(self, pixels)

    monkeypatch.setattr(Model, "predict_batch", predict_batch)
    names = [str(path) for path in [*pictures[:7], tmp_path / "white.png", *pictures[7:]]]
    rows = scored(bundle, names, tmp_path / "out.jsonl", batch=64)
    bad = rows.pop(7)
    assert "no finite numbers" in bad["error"]
    assert [row["verdict"] for row in rows] == [row["verdict"] for row in expected]
    assert [row["score"] for row in rows] == pytest.approx([row["score"] for row in expected], rel=1e-4)


def test_a_pipe_among_the_images_does_not_hang(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.png").write_bytes(pictures[0].read_bytes())
    for name in ("b.png", "c.zip", "d.tar"):
        os.mkfifo(folder / name)
    rows = scored(bundle, [str(folder)], tmp_path / "out.jsonl")
    assert [row["error"] is None for row in rows] == [True, False, False, False]
    assert "no plain file" in rows[1]["error"]
    assert all("no plain file" in row["error"] for row in rows[2:])


def test_names_that_are_not_utf8_have_rows_too(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    folder, odd = tmp_path / "odd", os.fsdecode(b"caf\xe9.png")
    folder.mkdir()
    (folder / odd).write_bytes(pictures[0].read_bytes())
    with tarfile.open(folder / "pack.tar", "w") as tar:
        tar.add(pictures[0], odd)
    with tarfile.open(folder / "refused.tar", "w") as tar:
        link = tarfile.TarInfo(odd)
        link.type, link.linkname = tarfile.SYMTYPE, "elsewhere"
        tar.addfile(link)
    names = [f"{folder}/caf\\xe9.png", f"{folder}/pack.tar::caf\\xe9.png", f"{folder}/refused.tar"]
    for kind in ("jsonl", "csv"):
        out = tmp_path / f"{kind}-out.{kind}"
        score_images(offaxis.load(bundle), ScoreOptions(bundle=bundle, paths=(str(folder),), out=str(out), quiet=True))
        assert "xe9.png" in out.read_text(encoding="utf-8")
    rows = rows_of(tmp_path / "jsonl-out.jsonl")
    assert [row["path"] for row in rows] == names
    assert rows[0]["score"] == rows[1]["score"]
    assert (tmp_path / "jsonl-out.html").read_text(encoding="utf-8").count("<img src=") == 2  # both images are on it
    assert "is a link" in rows[2]["error"]
    # a journal that holds the row already: the file is known again by the same text
    journal = tmp_path / "again.jsonl.journal"
    scored(bundle, [str(folder)], tmp_path / "again.jsonl")
    (tmp_path / "again.jsonl").unlink()
    journal.write_text(json.dumps({**rows[0], "score": 7.0}) + "\n")
    assert scored(bundle, [str(folder)], tmp_path / "again.jsonl", resume=True)[0]["score"] == 7.0


def test_a_list_of_names_that_are_not_utf8_is_taken(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    odd.write_bytes(pictures[0].read_bytes())
    done = run(app, ["score", str(bundle), "-", "--quiet"], input=os.fsencode(odd) + b"\n")
    assert done.exit_code == 0, done.output
    assert f"{tmp_path}/caf\\xe9.png," in done.stdout
    assert "1 image scored" in done.stderr


def test_links_to_folders_are_followed_once(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for place in (folder / "inner", tmp_path / "elsewhere"):
        place.mkdir(parents=True)
        (place / "one.png").write_bytes(pictures[0].read_bytes())
    for name, target in (("away", tmp_path / "elsewhere"), ("link", folder / "inner"), ("round", folder)):
        (folder / name).symlink_to(target)
    rows = scored(bundle, [str(folder)], tmp_path / "out.jsonl")
    assert [row["path"] for row in rows] == [f"{folder}/{name}/one.png" for name in ("inner", "away")]
    named = scored(bundle, [str(folder / "link")], tmp_path / "named.jsonl")
    assert [row["path"] for row in named] == [f"{folder}/link/one.png"]


def with_a_link_at_its_end(archive: Path, pictures: list[Path]) -> None:
    with tarfile.open(archive, "w") as tar:
        for path in pictures:
            tar.add(path, f"odd::{path.name}")
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "elsewhere"
        tar.addfile(link)


def test_archives_that_are_refused_late_are_summarised_all_the_same(
    bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("a::b")
    folder.mkdir()
    with_a_link_at_its_end(folder / "late.tar", pictures[:3])
    with zipfile.ZipFile(folder / "whole.zip", "w") as pack:
        pack.write(pictures[3], "one.png")
    rows = scored(bundle, [f"./{folder}"], tmp_path / "out.jsonl")
    assert [row["error"] is None for row in rows] == [True, True, True, False, True]
    assert "is a link" in rows[3]["error"]
    assert not (tmp_path / "out.jsonl.journal").exists()
    summary = json.loads((tmp_path / "out.summary.json").read_text())
    assert len(summary["top"]) == 4
    for fewer in ([summary["top"][0]], summary["top"]):
        write_score_page({**summary, "top": fewer}, tmp_path / "page.html", "a <title>", offaxis.load(bundle))
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert (
            page.count('<img src="data:image/jpeg') == page.count('<img class="map" src="data:image/png') == len(fewer)
        )
        assert page.count("<line") == 2 * len(fewer)  # the image, and the threshold
        assert 'type="range"' in page
        assert "a &lt;title&gt;" in page


def test_standard_input_and_output(bundle: Path, pictures: list[Path]) -> None:
    listed = "\n".join(map(str, pictures[:3])) + f"\n/nowhere/x.png\n/{'x' * 300}.png\n"
    done = run(app, ["score", str(bundle), "-", "--quiet"], input=listed)
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["path"] for row in rows] == listed.split()
    assert rows[3]["error"] == "the file cannot be read (No such file or directory)."
    assert "File name too long" in rows[4]["error"]
    assert "3 images scored, 2 files" in done.stderr


def test_lines_for_people_say_what_the_rows_say(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    paths = [str(pictures[0]), str(tmp_path / "bad.png")]
    words = run(app, ["score", str(bundle), *paths, "--format", "text", "--quiet"]).stdout.splitlines()
    row = next(csv.DictReader(io.StringIO(run(app, ["score", str(bundle), *paths, "--quiet"]).stdout)))
    p_value, probability = float(row["p_value"]), 100 * float(row["probability"])
    assert row["verdict"] == "in-distribution"
    said = f"{row['class']} ({probability:.0f} %), like the training images (p = {p_value:.2g})"
    assert words[0] == f"{paths[0]}: {said}"
    assert words[1].startswith(f"{paths[1]}: not scored, ")
    to_file = run(app, ["score", str(bundle), *paths, "--format", "text", "--out", str(tmp_path / "x.txt")])
    assert isinstance(to_file.exception, ArgumentError)
    (tmp_path / "inbox").mkdir()
    none = run(app, ["score", str(bundle), str(tmp_path / "inbox")])
    assert none.exit_code == 0  # nothing has come today
    assert "No images were found; they are files that end in ." in " ".join(none.stderr.split())


def test_names_cannot_command_a_spreadsheet_or_a_terminal(
    bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["=1+1.png", "+x.png", "@x.png", "a\x1b[31m\nb.png: 3 (99 %)\u202e.png"]
    for name in names:
        (tmp_path / name).write_bytes(pictures[0].read_bytes())
    monkeypatch.chdir(tmp_path)
    rows = list(csv.DictReader(io.StringIO(run(app, ["score", str(bundle), *names, "--quiet"]).stdout, newline="")))
    assert [row["path"] for row in rows] == ["./=1+1.png", "./+x.png", "./@x.png", names[3]]
    assert all(Path(row["path"]).is_file() for row in rows)
    Path("bad\x1b[2J.png").write_bytes(b"no image")
    text = run(app, ["score", str(bundle), names[3], "bad\x1b[2J.png", "--format", "text"])
    assert len(text.stdout.splitlines()) == 2
    assert text.stdout.startswith(r"a\x1b[31m\nb.png: 3 (99 %)\u202e.png: ")
    assert "\x1b" not in text.output


def test_a_class_is_no_formula(bundle: Path, model: Model) -> None:
    out = io.StringIO()
    row = row_of("a.png", model.predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))[0])
    RowWriter(out, "csv").add([{**row, "class": name} for name in ("=cmd()", "-1", "-1+cmd()", "tabby")])
    assert [line["class"] for line in csv.DictReader(io.StringIO(out.getvalue()))] == [
        *("'=cmd()", "-1", "'-1+cmd()", "tabby")
    ]


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
    command += ["--runner", "ray", "--batch", "4", "--workers", "1", "--engine", "torch"]  # as here, to the last bit
    subprocess.run(command, check=True, timeout=240)
    assert rows_of(tmp_path / "there.jsonl") == here


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_images_are_flagged_together(bundle: Path, mixed: Path, tmp_path: Path, suffix: str) -> None:
    """Noise beside digits: the flagged rows are those of the calibration's own rule, bad files have no flag."""
    random = torch.Generator().manual_seed(0)
    for i in range(40):
        pixels = torch.randint(0, 256, (8, 8), dtype=torch.uint8, generator=random).numpy()
        Image.fromarray(pixels).save(mixed / f"noise{i}.png")
    out = tmp_path / f"out{suffix}"
    done = run(app, ["score", str(bundle), str(mixed), "--fdr", "0.3", "--out", str(out), "--quiet"])
    assert done.exit_code == 0, done.output
    if suffix == ".csv":
        rows: list[dict[str, Any]] = [dict(row) for row in csv.DictReader(io.StringIO(out.read_text()))]
        for row in rows:
            row |= {"error": row["error"] or None, "flagged": row["flagged"] == "True"}
            row["p_value"] = None if row["error"] else float(row["p_value"])
    elif suffix == ".jsonl":
        rows = rows_of(out)
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    read = [row for row in rows if row["error"] is None]
    calibration = offaxis.load(bundle).calibration
    flags = calibration.control_fdr([row["p_value"] for row in read], 0.3)
    assert [row["flagged"] for row in read] == flags.flagged.tolist()
    assert sum(flags.flagged) > 5
    assert all(not row["flagged"] for row in rows if row["error"] is not None)
    summary = json.loads(out.with_suffix(".summary.json").read_text())["flagged_together"]
    assert (summary["fdr"], summary["flagged"], summary["fewest"]) == (0.3, int(flags.flagged.sum()), flags.least)
    assert summary["meaning"] in done.stderr
    printed = run(app, ["score", str(bundle), str(mixed), "--fdr", "0.3", "--format", "jsonl", "--quiet"])
    assert [json.loads(line)["flagged"] for line in printed.stdout.splitlines()].count(True) == summary["flagged"]


def test_a_bound_that_can_never_flag_is_refused_before_anything_is_scored(
    bundle: Path, mixed: Path, tmp_path: Path
) -> None:
    done = run(app, ["score", str(bundle), str(mixed), "--fdr", "0.001", "--out", str(tmp_path / "x.csv")])
    assert isinstance(done.exception, TooFewImagesError)
    assert "at least 999 calibration images" in str(done.exception)
    done = run(app, ["score", str(bundle), str(mixed), "--fdr", "10", "--out", str(tmp_path / "x.csv")])
    assert "Expected `fdr` to be a number between 0 and 1" in str(done.exception)
    assert not list(tmp_path.glob("x.*"))


def test_the_page_shows_the_rows_of_an_array_of_pixels(bundle: Path, world: World, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", world.test.batch(torch.arange(5)).numpy()[:, 0])
    rows = scored(bundle, [str(tmp_path / "x.npy")], tmp_path / "out.jsonl")
    assert [row["path"] for row in rows] == [f"{tmp_path / 'x.npy'}::{number}" for number in range(5)]
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert page.count('<span class="picture"><img src="data:image/jpeg') == 5
    assert "not there any more" not in page


@pytest.mark.parametrize(
    "options", [["--network", "net.py:make"], ["--detector", "mine.py:Mine"], ["--device", "cuda"]]
)
def test_what_workers_of_ray_do_not_get_is_refused(
    options: list[str], bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offaxis.detectors.registry.register_file", lambda _: "mine")
    out = tmp_path / "out.csv"
    done = run(app, ["score", str(bundle), str(pictures[0]), "--runner", "ray", "--out", str(out), *options])
    assert isinstance(done.exception, ArgumentError)
    assert "--runner ray" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_rows_do_not_go_where_the_page_goes(bundle: Path, pictures: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"another file than .*out\.html, where the page goes: name it \.csv"):
        scored(bundle, [str(pictures[0])], tmp_path / "out.html", format="csv")
    assert not list(tmp_path.glob("out*"))


def _features(count: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, 6, generator=torch.Generator().manual_seed(0)), dim=1)


def test_images_to_label_are_spread_and_flagged_ones_come_first() -> None:
    features, flagged = _features(30), [place % 3 == 0 for place in range(30)]
    chosen = spread(features, flagged, 14)
    assert len(set(chosen)) == 14
    assert all(flagged[place] for place in chosen[:10])
    assert not any(flagged[place] for place in chosen[10:])
    for count in range(1, 14):  # each is the farthest of those that may be chosen, by Euclid's distance
        pool = [i for i in range(30) if i not in chosen[:count] and (flagged[i] or count >= 10)]
        far = {i: float(torch.cdist(features[i : i + 1], features[chosen[:count]]).min()) for i in pool}
        assert far[chosen[count]] == pytest.approx(max(far.values()), abs=1e-5)
    assert spread(features, flagged, 99) == [*spread(features, flagged, 30)]


def test_the_images_that_teach_most_are_listed(bundle: Path, world: World, tmp_path: Path) -> None:
    write_images(tmp_path / "images", world.test, 12)
    (tmp_path / "images" / "copy.png").write_bytes((tmp_path / "images" / "000.png").read_bytes())
    words = ["score", str(bundle), str(tmp_path / "images"), "--out", str(tmp_path / "x.csv"), "--alpha", "0.5"]
    done = run(app, [*words, "--select", "8"])
    assert done.exit_code == 0, done.output
    assert f"to label next, which teach most: {tmp_path / 'x.select.txt'}" in done.stderr
    chosen = (tmp_path / "x.select.txt").read_text().splitlines()
    assert len(set(chosen)) == len(chosen) == 8
    assert sum(name.endswith(("copy.png", "000.png")) for name in chosen) <= 1  # a copy teaches nothing
    with (tmp_path / "x.csv").open(newline="") as file:
        out = {row["path"] for row in csv.DictReader(file) if row["verdict"] == "out-of-distribution"}
    first = [name in out for name in chosen]
    assert first == sorted(first, reverse=True)
    again = run(app, [*words, "--select", "3", "--resume"])  # the same order, though no pixels are here any more
    assert again.exit_code == 0, again.output
    assert (tmp_path / "x.select.txt").read_text().splitlines() == chosen[:3]
    assert "beside --select" in str(run(app, ["score", str(bundle), str(tmp_path), "--select", "3"]).exception)


def test_the_page_reads_no_image_again(
    bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offaxis.score.page.sources", lambda _: pytest.fail("it was decoded before"))
    scored(bundle, [str(path) for path in pictures], tmp_path / "x.jsonl")
    page = (tmp_path / "x.html").read_text()
    assert page.count('<img src="data:image/jpeg') == len(pictures)
    assert "not there any more" not in page
    assert "digits.oax · " in page  # which bundle, and when it was calibrated
    assert "calibrated on 20" in page


def test_those_who_score_see_how_many_of_how_many_are_done(
    bundle: Path, mixed: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    words = ["score", str(bundle), "--batch", "2", "--out", str(tmp_path / "x.csv"), *map(str, pictures)]
    lines = run(app, words).stderr.splitlines()
    assert re.fullmatch(rf"scored 2/{len(pictures)}   [\d.,]+ a second  \d+ s left", lines[0])
    assert f"Writing {tmp_path / 'x.html'} ..." in lines
    assert re.match(r"scored 2   [\d.,]+ a second", run(app, [*words[:5], str(tmp_path / "y.csv"), str(mixed)]).stderr)


def test_an_interrupted_run_says_how_it_goes_on(
    bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("offaxis.score.score_sources", stop)
    done = run(app, ["score", str(bundle), str(pictures[0]), "--out", str(tmp_path / "x.csv")])
    assert done.exit_code != 0
    assert f"{tmp_path / 'x.csv'}: stopped; continue with --resume." in done.stderr


def test_two_bundles_are_compared_on_each_folder(bundle: Path, model: Model, world: World, tmp_path: Path) -> None:
    model.recalibrated(alpha=0.6).save(tmp_path / "other.oax")
    write_images(tmp_path / "a", world.test, 9)
    write_images(tmp_path / "b", world.test, 4)
    (tmp_path / "b" / "bad.png").write_bytes(b"no image")
    out = tmp_path / "differ.csv"
    words = ["compare", str(bundle), str(tmp_path / "other.oax"), str(tmp_path / "a"), str(tmp_path / "b")]
    done = run(app, [*words, "--out", str(out), "--quiet"])
    assert done.exit_code == 0, (done.output, done.exception)
    expected = list[str]()
    for folder, count in (("a", 9), ("b", 4)):
        files = [str(tmp_path / folder / f"{place:03}.png") for place in range(count)]
        flagged = [[p.verdict is Verdict.OUT for p in offaxis.load(each).predict(files)] for each in words[1:3]]
        alone = [sum(a and not b for a, b in zip(x, y, strict=True)) for x, y in (flagged, flagged[::-1])]
        bad = ", 1 more that could not be read" * (folder == "b")
        expected += [f"{tmp_path / folder}: {count} images{bad}"]
        expected += [
            f"  {each} flags {sum(f)} ({sum(f) / count:.1%}), {n} of them alone"
            for each, f, n in zip(words[1:3], flagged, alone, strict=True)
        ]
        expected.append("  0 get another class")
    assert done.stdout.splitlines() == expected
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(int(line.split()[-4]) for line in expected if line.endswith("alone")) > 0
    assert {row["flagged_by"] for row in rows} == {str(tmp_path / "other.oax")}
    assert "There is no nowhere" in str(run(app, [*words[:3], "nowhere"]).exception)


def test_frames_of_a_film_have_rows_at_the_times_that_were_asked_for(
    bundle: Path, world: World, tmp_path: Path
) -> None:
    av = pytest.importorskip("av")
    film = tmp_path / "film.mkv"
    with av.open(str(film), "w") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width = stream.height = 32
        for shade in range(16):  # four seconds
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 15 * shade, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    words = ["score", str(bundle), str(film), "--quiet", "--out", str(tmp_path / "x.csv")]
    for every, names in (("1s", ["0.00s", "1.00s", "2.00s", "3.00s"]), ("2s", ["0.00s", "2.00s"])):
        assert run(app, [*words, "--every", every, "--overwrite"]).exit_code == 0
        with (tmp_path / "x.csv").open(newline="") as file:
            assert [row["path"] for row in csv.DictReader(file)] == [f"{film}::{name}" for name in names]
    assert "frames of films at other times" in str(run(app, [*words, "--resume"]).exception)
    assert "Expected --every to be a time above 0" in str(run(app, [*words, "--every", "never"]).exception)
