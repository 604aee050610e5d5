"""Folders of photographs from the shell: sizes, held-out images, networks from anywhere, and every wrong input."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import offaxis
from offaxis import progress
from offaxis.cli import app
from offaxis.errors import OffaxisError, OverlapError
from offaxis.evaluation.store import Store

run = CliRunner().invoke

NETWORK = """
import torch
from torch import nn
from offaxis.data import Normalise, Preprocessing

def plain():
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 9))

def sized():
    return plain(), Preprocessing((3, 40, 40), Normalise((0.4, 0.5, 0.6), (0.2, 0.2, 0.2)), "crop")

def fixed(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8), nn.ReLU(), nn.Linear(8, num_classes))

def ten():
    return offaxis.attach(plain(), num_classes=10)

import offaxis
"""


def _photo(folder: Path, name: str, seed: int) -> None:
    """Write a photograph of a size of its own: bright for even seeds, dark for odd ones."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(seed)
    height, width = chance.integers(30, 60, 2)
    pixels = chance.integers(0, 100, (height, width, 3), np.uint8) + np.uint8(120 * (seed % 2 == 0))
    Image.fromarray(pixels).save(folder / name)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Forty photographs of two classes, without train and test folders."""
    for seed in range(40):
        _photo(tmp_path / "photos" / ("day", "night")[seed % 2], f"{seed}.png", seed)
    (tmp_path / "nets.py").write_text(NETWORK)
    return tmp_path / "photos"


def _train(photos: Path, *options: str, out: str = "run") -> Path:
    folder = photos.parent / out
    network = [] if "--network" in options else ["--network", str(photos.parent / "nets.py:sized")]
    common = ["train", "--id", str(photos), "--out", str(folder), "--epochs", "2", "--batch-size", "8", "--quiet"]
    done = run(app, [*common, *network, *options])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return folder


def test_those_who_wait_see_how_many_images_are_done(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    folder, network = _train(photos, "--holdout", "0.5"), ["--network", str(tmp_path / "nets.py:sized")]
    x, y = str(tmp_path / "x.oax"), str(tmp_path / "y.oax")
    words = ["bundle", str(folder), "--calibrate", str(photos), "--alpha", "0.2", *network]
    done, quiet = run(app, [*words, "--out", x]), run(app, [*words, "--out", y, "--quiet"])
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert lines[0] == "1 images read"
    assert "40 images read" in lines  # training images and others
    last = [line for line in lines if "run through the network" in line][-1]
    read, passed = map(int, re.findall(r"\d+", last))
    assert read >= 40
    assert passed >= 20  # those to calibrate and to report on, and what they are compared with
    assert "images read" not in quiet.stderr
    for seed in range(100, 120):
        _photo(tmp_path / "new", f"{seed}.png", seed)
    again = run(app, ["calibrate", x, str(tmp_path / "new"), "--overwrite", *network])
    assert "20 images read" in again.stderr
    assert "20 run through the network" in again.stderr
    scored = run(app, ["score", str(folder), str(photos)])
    assert "It is a training run, of which `offaxis bundle" in str(scored.exception)


def test_the_whole_way_with_held_out_images_and_a_network_of_ones_own(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _train(photos, "--holdout", "0.5")
    settings = json.loads((folder / "run.json").read_text())["settings"]
    assert settings["data"]["options"] == {"size": [40, 40], "resize": "crop", "holdout": 0.5, "seed": 0}
    assert settings["data"]["path"] == str(photos)
    assert settings["normalise"]["mean"] == [0.4, 0.5, 0.6]
    network = ["--network", str(tmp_path / "nets.py:sized")]
    bundle = tmp_path / "x.oax"
    done = run(app, ["bundle", str(folder), "--calibrate", str(photos), "--out", str(bundle), *network])
    assert done.exit_code == 0, done.output
    model = offaxis.load(bundle, str(tmp_path / "nets.py:sized"))
    assert len(model.calibration.scores) == 20  # the held-out half: no training image among them
    assert model.preprocessing.shape == (3, 40, 40)
    assert model.preprocessing.resize == "crop"
    assert model.classes == ("day", "night")
    _photo(tmp_path / "far", "a.png", 3)
    options = ["--ood", str(tmp_path / "far"), "--detectors", "cosine,knn", "--out", str(tmp_path / "results")]
    for near, group in (([], "far"), (["--near", "far"], "near"), (["--near", str(tmp_path / "far")], "near")):
        done = run(app, ["evaluate", str(folder), *options, *near, *network, "--quiet"])
        assert done.exit_code == 0, (done.output, done.exception)
        assert {result.group for result in Store(tmp_path / "results").results()} == {group}
    assert {result.network for result in Store(tmp_path / "results").results()} == {"nets cosine"}
    with pytest.raises(OffaxisError, match="near sets out of far but got 'elsewhere'"):
        run(app, ["evaluate", str(folder), *options, "--near", "elsewhere", *network], catch_exceptions=False)
    monkeypatch.chdir(tmp_path.parent)  # the report finds the folders wherever they lie
    done = run(app, ["report", str(tmp_path / "results"), "--out", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report" / "index.html").read_text()
    assert "not on this machine" not in page
    assert "data:image/png" in page


def test_every_command_tells_the_next(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos.parent)
    for part in ("train/day", "train/night", "test/day", "test/night"):
        Path("sorted", part).mkdir(parents=True)
    for place, file in enumerate(sorted(photos.rglob("*.png"))):
        file.rename(Path("sorted", "test" if place % 2 else "train", file.parent.name, file.name))
    for seed in (50, 52, 54):
        _photo(Path("sorted/train/dusk"), f"{seed}.png", seed)
        _photo(Path("new"), f"{seed}.png", seed)
    common = [
        "train",
        "--id",
        "sorted",
        "--network",
        "nets.py:sized",
        "--epochs",
        "2",
        "--batch-size",
        "8",
        "--out",
        "run",
    ]
    trained = run(app, common)
    assert trained.exit_code == 0, trained.output
    assert "on 20 images that it was not trained on.\nAmong them is none of dusk.\n" in trained.stderr
    bundle = re.search("To calibrate it: offaxis (.*)", trained.stderr)
    assert bundle is not None
    assert bundle[1] == "bundle run --calibrate sorted --out run.oax --network nets.py:sized"
    bundled = run(app, [*shlex.split(bundle[1]), "--alpha", "0.2"])
    assert bundled.exit_code == 0, bundled.output
    network = "--network nets.py:sized"
    assert f"To use it: offaxis score run.oax IMAGES {network}, or offaxis serve run.oax {network}\n" in bundled.stderr
    scored = run(app, ["score", "run.oax", "new", "--out", "new.csv", *network.split()])
    assert scored.exit_code == 0, scored.output
    assert scored.stderr.endswith("The images with the highest scores: new.html\n")
    assert Path("new.html").exists()


def test_size_rule_mean_and_std_can_be_chosen(photos: Path) -> None:
    chosen = ("--size", "32", "--resize", "crop", "--mean", "0.5,0.5,0.5", "--std", "1,1,1", "--holdout", "0.2")
    settings = json.loads((_train(photos, *chosen) / "run.json").read_text())["settings"]
    assert settings["data"]["options"]["size"] == [32, 32]
    assert settings["data"]["options"]["resize"] == "crop"
    assert settings["normalise"] == {"mean": [0.5] * 3, "std": [1.0] * 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "Expected a folder train in .*--holdout 0.2"),
        (("--holdout", "0.2", "--network", "wrn-10-1-half"), "images of one size, .*--size 224"),
        (("--holdout", "1.5"), "share between 0 and 1"),
        (("--holdout", "0.2", "--resize", "squash"), "one of crop, stretch but got 'squash'"),
        (("--holdout", "0.2", "--mean", "0.5"), "both --mean and --std"),
        (("--holdout", "0.2", "--mean", "a,b", "--std", "1"), "--mean and --std to be numbers with commas"),
        (("--holdout", "0.2", "--mean", "0.5", "--std", "1"), "for 3 channels but got 1"),
        (("--holdout", "0.2", "--network", "nets.py:fixed", "--size", "40"), "here of 40x40 .*--size"),
        (("--holdout", "0.2", "--network", "efficentnet-lite0"), r"Did you mean efficientnet-lite0\?"),
        (("--holdout", "0.2", "--network", "nets.py:ten"), "2 classes but that of .*nets.py has 10"),
        (("--holdout", "0.2", "--weights", "nowhere.pt"), "file of weights but nowhere.pt is not there"),
        (("--holdout", "0.2", "--pretrained"), "no pretrained beside .*nets.py"),
        (("--holdout", "0.2", "--network", "wrn-10-1-half", "--pretrained"), "no --pretrained beside wrn-10-1-half"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    photos: Path, options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos.parent)
    with pytest.raises(OffaxisError, match=message):
        _train(photos, *options)
    assert not (photos.parent / "run").exists()


def test_a_share_to_hold_out_beside_test_images_is_refused(photos: Path) -> None:
    for name in ("day", "night"):
        for part in ("train", "test"):
            (photos.parent / "sorted" / part / name).mkdir(parents=True)
        for place, file in enumerate(sorted((photos / name).iterdir())):
            file.rename(photos.parent / "sorted" / ("test" if place % 2 else "train") / name / file.name)
    _train(photos.with_name("sorted"), out="without")
    for images, named in (
        (photos.with_name("sorted"), "sorted/test, whose images are the test images"),
        (Path("digits"), "digits"),
    ):
        with pytest.raises(
            OffaxisError, match=rf"no share to hold out \(--holdout, .* beside .*{named}.*leave the share out"
        ):
            _train(photos, "--id", str(images), "--holdout", "0.2")
    assert not (photos.parent / "run").exists()


def test_weights_of_another_network_are_refused_by_name(photos: Path, tmp_path: Path) -> None:
    import torch
    from torch import nn

    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "other.pt")
    with pytest.raises(OffaxisError, match="other.pt"):
        _train(photos, "--holdout", "0.2", "--weights", str(tmp_path / "other.pt"))


def test_every_command_that_reads_folders_can_leave_out_bad_files(photos: Path, tmp_path: Path) -> None:
    (photos / "night" / "notes.jpg").write_text("not an image")
    folder = str(_train(photos, "--holdout", "0.5", "--skip-bad"))
    for name in ("new", "far"):
        for seed in range(60, 72):
            _photo(tmp_path / name, f"{seed}.png", seed)
        (tmp_path / name / "cut.png").write_bytes((tmp_path / name / "60.png").read_bytes()[:200])
    network, bundle = ["--network", str(tmp_path / "nets.py:sized")], str(tmp_path / "x.oax")
    new, far = str(tmp_path / "new"), str(tmp_path / "far")
    same = run(app, ["bundle", folder, "--calibrate", str(photos), "--alpha", "0.2", "--out", bundle, *network])
    assert "(--skip-bad): 1.\n" in same.stderr  # as in training: once, though both parts were read
    for words in (
        ["bundle", folder, "--calibrate", new, "--alpha", "0.2", "--out", bundle, "--overwrite", *network],
        ["calibrate", bundle, new, "--overwrite", *network],
        ["evaluate", folder, "--ood", far, "--detectors", "cosine", "--out", str(tmp_path / "results"), *network],
    ):
        stopped = run(app, words)
        assert isinstance(stopped.exception, OffaxisError)
        assert re.search(r"cut\.png .* To go on without such files and list them: --skip-bad", str(stopped.exception))
        done = run(app, [*words, "--skip-bad"])
        assert done.exit_code == 0, (done.output, done.exception)
        assert re.search(r"cannot be read \(--skip-bad\): [12]\.\n  .*cut\.png: is ", done.stderr)
    reported = run(app, ["report", str(tmp_path / "results"), "--out", str(tmp_path / "report")])
    assert reported.exit_code == 0, reported.output


def test_an_image_beside_the_class_folders_is_named(photos: Path) -> None:
    (photos / "day" / "0.png").rename(photos / "loose.png")
    with pytest.raises(OffaxisError, match=r"images beside the folders \(.*loose\.png\)"):
        _train(photos, "--holdout", "0.2")


def _divide(photos: Path) -> None:
    """Move the photographs into train and test."""
    for number in range(40):
        kind = ("day", "night")[number % 2]
        place = photos / ("train" if number < 30 else "test") / kind
        place.mkdir(parents=True, exist_ok=True)
        (photos / kind / f"{number}.png").rename(place / f"{number}.png")
    for kind in ("day", "night"):
        (photos / kind).rmdir()


@pytest.mark.parametrize("options", [(), ("--freeze",)])
def test_an_image_beside_the_class_folders_of_the_test_images_is_named(photos: Path, options: tuple[str, ...]) -> None:
    _divide(photos)
    (photos / "test" / "day" / "30.png").rename(photos / "test" / "loose.png")
    with pytest.raises(OffaxisError, match=r"classes of the test images.* beside the folders \(.*loose\.png\): sort"):
        _train(photos, *options)
    assert not (photos.parent / "run").exists()


def test_a_copy_of_a_training_image_is_found_in_either_half_of_the_test_images(photos: Path) -> None:
    """The one half calibrates, the other one tells how well."""
    _divide(photos)
    for seed in range(100, 134):
        _photo(photos / "test" / ("day", "night")[seed % 2], f"{seed}.png", seed)
    folder = _train(photos)
    words = ["bundle", str(folder), "--calibrate", str(photos), "--network", str(photos.parent / "nets.py:sized")]
    words += ["--quiet", "--out", str(photos.parent / "x.oax")]
    for name in ("0.png", "101.png", "105.png", "125.png", "139.png", "999.png"):
        copy = photos / "test" / "night" / f"copy-{name}"
        copy.write_bytes((photos / "train" / "night" / "1.png").read_bytes())
        refused = run(app, words).exception
        copy.unlink()
        assert isinstance(refused, OverlapError)
        assert f"for training, fitting or selection ({copy})" in str(refused)
        assert str(refused).endswith("or leave these out (--drop-duplicates in the shell).")
        assert not (photos.parent / "x.oax").exists()
    assert run(app, words).exit_code == 0


def test_copies_of_training_images_are_left_out_of_the_test_part(photos: Path) -> None:
    _divide(photos)
    for seed in range(100, 134):
        _photo(photos / "test" / ("day", "night")[seed % 2], f"{seed}.png", seed)
    network = ["--network", str(photos.parent / "nets.py:sized")]
    unaware, late = _train(photos, out="unaware"), photos / "test" / "night" / "late.png"
    copies = [photos / "test" / "day" / f"copy-{number}.png" for number in range(0, 10, 2)]
    for copy in copies:
        copy.write_bytes((photos / "train" / "day" / copy.name.removeprefix("copy-")).read_bytes())
    learning = ["--epochs", "1", "--batch-size", "8", "--out", str(photos.parent / "run")]
    trained = run(app, ["train", "--id", str(photos), *learning, *network])
    assert trained.exit_code == 0, trained.output
    assert "Left out, as they are among the training images: 5." in trained.stderr
    assert str(copies[0]) in trained.stderr
    count = len([*(photos / "test").rglob("*.png")]) - len(copies)
    assert f"on {count} images that it was not trained on" in trained.stderr

    def bundle(folder: Path, *options: str) -> Any:
        out = photos.parent / f"{len([*photos.parent.glob('*.oax')])}.oax"
        return run(app, ["bundle", str(folder), "--calibrate", str(photos), "--out", str(out), *network, *options])

    done = bundle(photos.parent / "run")  # as the training did
    assert done.exit_code == 0, done.output
    assert str(copies[0]) in done.stderr
    late.write_bytes((photos / "train" / "night" / "1.png").read_bytes())
    refused = bundle(unaware).exception
    assert isinstance(refused, OverlapError)
    assert "copy-" in str(refused)
    done = bundle(unaware, "--drop-duplicates")
    assert done.exit_code == 0, done.output
    assert str(late) in done.stderr
    again = ["calibrate", str(photos.parent / "1.oax"), str(photos), "--overwrite", *network]
    assert isinstance(run(app, again).exception, OverlapError)
    done = run(app, [*again, "--drop-duplicates"])
    assert done.exit_code == 0, done.output
    assert "training images: 6." in done.stderr
    every = bundle(unaware, "--calibrate", str(photos / "train"), "--drop-duplicates")
    assert isinstance(every.exception, OverlapError)
    images = offaxis.load_images(photos, "test", size=40, drop_duplicates=True)
    assert len(images) == len(images.paths) == count
    assert len(images.skipped) == 6


def test_photographs_that_are_nearly_the_same_in_both_parts_are_named(photos: Path) -> None:
    _divide(photos)
    image = Image.open(photos / "train" / "day" / "0.png").resize((300, 300))
    image.save(photos / "train" / "day" / "big.png")
    image.save(photos / "test" / "day" / "big.jpg", quality=60)
    learning = ["--epochs", "6", "--batch-size", "8", "--lr", "0.01", "--out", str(photos.parent / "run")]
    done = run(app, ["train", "--id", str(photos), *learning, "--network", "wrn-10-1-half", "--size", "72"])
    assert done.exit_code == 0, done.output
    assert "nearly the same as a training image, and make the accuracy look better: 1." in done.stderr
    assert f"  {photos / 'test' / 'day' / 'big.jpg'} and {photos / 'train' / 'day' / 'big.png'}" in done.stderr


@pytest.mark.parametrize("what", ["one class", "two images", "no image", "huge", "empty class", "no files"])
def test_folders_that_cannot_be_trained_on_are_named(photos: Path, what: str) -> None:
    night = photos / "night"
    if what == "no image":
        (night / "notes.jpg").write_text("not an image")
    elif what == "huge":
        Image.new("L", (12_000, 8_400)).save(night / "huge.png")
    elif what == "empty class":
        (photos / "dusk").mkdir()
    else:
        kept = {"one class": list((photos / "day").iterdir()), "two images": [photos / "day/0.png", night / "1.png"]}
        for file in photos.rglob("*.png"):
            if file not in kept.get(what, []):
                file.unlink()
    expected = {
        "one class": "at least two classes",
        "two images": "leave one side empty",
        "no image": "notes.jpg is none",
        "huge": "huge.png is (12000x8400, more than|too large)",
        "empty class": "dusk has none",
        "no files": "there are none",
    }[what]
    with pytest.raises(OffaxisError, match=expected):
        _train(photos, "--holdout", "0.2")
    if what in ("no image", "huge", "empty class"):
        words = [
            "train",
            "--id",
            str(photos),
            "--out",
            str(photos.parent / "run"),
            "--epochs",
            "1",
            "--batch-size",
            "8",
        ]
        words += ["--network", str(photos.parent / "nets.py:sized"), "--holdout", "0.2", "--skip-bad"]
        done = run(app, words)
        assert done.exit_code == 0, done.output
        assert "cannot be read (--skip-bad): 1." in done.stderr
        assert {"no image": "notes.jpg", "huge": "huge.png", "empty class": "dusk"}[what] in done.stderr


def test_folders_as_people_have_them_are_trained_on(photos: Path) -> None:
    (photos / "day").rename(photos / "день")
    folder = photos / "день"
    (folder / "loop").symlink_to(photos)
    (folder / "around").symlink_to(folder)
    for mode in ("1", "L", "LA", "P", "CMYK", "RGBA"):
        image = Image.new("RGB", (50, 34), (200, 190, 180)).convert(mode)
        image.save(folder / f"фото № {mode}.{'tif' if mode == 'CMYK' else 'png'}")
    Image.fromarray(np.full((9, 7), 50_000, np.uint16)).save(folder / "smaller than the size.png")
    trained = _train(photos, "--holdout", "0.2")
    data = json.loads((trained / "run.json").read_text())["settings"]["data"]
    assert data["classes"] == ["night", "день"]
    assert data["images"] == 38  # four fifths of 20 and of 27
    inspected = run(app, ["data", "inspect", str(photos), "--sheet", str(photos.parent / "sheet.png")])
    assert inspected.exit_code == 0, inspected.output
    assert "день" in inspected.output
