"""Two evenings with photographs as people have them: copies, misfiled ones, a film, a wrong folder, a new class."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from offaxis.cli import app

NETWORK = """
import torch
from torch import nn
from offaxis.data import Normalise, Preprocessing

def make():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 24, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 4))
    return layers, Preprocessing((3, 48, 48), Normalise((0.5,) * 3, (0.25,) * 3), "crop")
"""
STRIPES = {"boxer": (6, 0), "pug": (0, 6), "beagle": (12, 12), "corgi": (3, 9), "sofa": (3, 3)}
"""What is photographed -> the widths of its stripes, across and down."""


def photograph(kind: str, seed: int) -> Image.Image:
    """Return a picture of stripes with noise, of a size of its own."""
    draw = np.random.default_rng(seed)
    height, width = draw.integers(50, 70, 2)
    across, down = STRIPES[kind]
    wave = sum(
        np.sin(2 * np.pi * np.arange(size) / period + draw.uniform(0, 6)).reshape(shape)
        for size, period, shape in ((height, across, (-1, 1)), (width, down, (1, -1)))
        if period
    )
    shades = np.broadcast_to(wave, (height, width))[..., None] * 45 + 125
    return Image.fromarray((shades + draw.normal(0, 8, (height, width, 3))).clip(0, 255).astype(np.uint8))


def write(folder: Path, kind: str, count: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        photograph(kind, 1000 * len(kind) + seed + number).save(folder / f"{kind}-{seed + number}.png")


def offaxis(*words: str | Path) -> str:
    """Run a command, which must not fail, and return what it says."""
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


def test_two_evenings_without_a_dead_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NETWORK)
    for kind, count in (("boxer", 40), ("pug", 40), ("beagle", 8)):
        write(Path("photos/train", kind), kind, count, 0)
        write(Path("photos/test", kind), kind, 24, 100)
    for number in range(5):  # copies of training photographs among those for testing
        shutil.copy(f"photos/train/pug/pug-{number + 20}.png", f"photos/test/pug/copy-{number}.png")
    for number in range(3):
        Path(f"photos/train/pug/pug-{number}.png").rename(f"photos/train/boxer/misfiled-{number}.png")
    write(Path("new"), "boxer", 5, 200)
    write(Path("new"), "sofa", 5, 0)
    train = "train", "--id", "photos", "--network", "net.py:make", "--freeze", "--quiet", "--out"
    network = "--network", "net.py:make"

    said = offaxis(*train, "run")
    assert "Left out, as they are among the training images: 5." in said
    assert "it learns little: beagle (8)" in said, said
    assert all(f"boxer/misfiled-{number}.png: in boxer, looks like pug" in said for number in range(3)), said
    bundling = "bundle", "run", "--calibrate", "photos", *network, "--quiet", "--out"
    assert "copy-4.png: a copy of a training image" in offaxis(*bundling, "dogs.oax")
    write(Path("wrong"), "sofa", 30, 50)
    with pytest.warns(UserWarning, match="images of the same kind"):
        offaxis("bundle", "run", "--calibrate", "wrong", *network, "--quiet", "--out", "wrong.oax")

    score = "score", "dogs.oax", "new", *network, "--quiet", "--out", "new.csv"
    offaxis(*score, "--select", "3")

    def flagged(part: str) -> int:
        with Path("new.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if part in row["path"]]
        return sum(row["verdict"] == "out-of-distribution" for row in rows)

    assert (flagged("boxer"), flagged("sofa")) == (0, 5)
    assert all("sofa" in name for name in Path("new.select.txt").read_text().splitlines())
    write(Path("new"), "sofa", 2, 20)  # the next evening
    assert "12 images scored" in offaxis(*score, "--resume")
    assert flagged("sofa") == 7
    write(Path("photos/train/corgi"), "corgi", 30, 0)
    write(Path("photos/test/corgi"), "corgi", 24, 100)
    offaxis(*train, "more")
    offaxis("bundle", "more", "--calibrate", "photos", *network, "--quiet", "--out", "more.oax")
    said = offaxis("compare", "dogs.oax", "more.oax", "photos/test/corgi", "new", *network, "--quiet")
    assert "photos/test/corgi: 24 images" in said
    assert "24 get another class" in said


def test_a_telephones_photograph_and_a_film_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    av, heif = pytest.importorskip("av"), pytest.importorskip("pillow_heif")
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NETWORK)
    for kind in ("boxer", "pug"):
        write(Path("photos", kind), kind, 48, 0)
    network = "--network", "net.py:make"
    offaxis("train", "--id", "photos", "--holdout", "0.5", *network, "--freeze", "--quiet", "--out", "run")
    offaxis("bundle", "run", "--calibrate", "photos", *network, "--quiet", "--out", "dogs.oax")
    heif.from_pillow(photograph("pug", 900)).save("phone.heic", quality=95)
    with av.open("film.mkv", "w") as film:
        stream = film.add_stream("mpeg4", rate=2)
        stream.width, stream.height, stream.bit_rate = 64, 64, 4_000_000
        for seed in range(8):
            frame = photograph("boxer", 800 + seed).resize((64, 64))
            film.mux(stream.encode(av.VideoFrame.from_image(frame)))
        film.mux(stream.encode())
    offaxis("score", "dogs.oax", "phone.heic", "film.mkv", *network, "--quiet", "--out", "x.csv")
    with Path("x.csv").open(newline="") as file:
        rows = [(row["path"], row["class"]) for row in csv.DictReader(file)]
    assert rows == [("phone.heic", "pug"), *((f"film.mkv::{second}.00s", "boxer") for second in range(4))]
