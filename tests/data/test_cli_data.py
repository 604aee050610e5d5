"""``offaxis data`` as a user types it."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from offaxis.cli import app
from offaxis.data import CATALOGUE
from offaxis.errors import ArgumentError, DataError
from tests.data.support import Save


def run(*words: str, width: int = 110) -> Result:
    return CliRunner().invoke(app, ["data", *words], env={"COLUMNS": str(width), "OFFAXIS_DATA": "/nowhere"})


@pytest.fixture
def framed(tmp_path: Path, save: Save) -> Path:
    images = np.random.default_rng(0).integers(1, 256, (6, 3, 36, 36), np.uint8)
    images[:, :, [0, 1, -2, -1]] = 0
    images[:, :, :, [0, 1, -2, -1]] = 0
    for number, image in enumerate(images):
        save(tmp_path / "Imagenet" / "test" / f"{number}.png", image)
    return tmp_path


@pytest.mark.parametrize("width", [80, 110])
def test_list_shows_every_set_on_a_line_of_its_own(width: int) -> None:
    shown = run("list", width=width)
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    for name in CATALOGUE:
        assert sum(line.split()[:1] == [name] for line in lines) == 1
    assert max(map(len, lines)) <= width
    assert "50,000" in shown.output


def test_list_knows_what_is_here_and_how_it_stands_to_the_id_set(framed: Path) -> None:
    shown = run("list", "--data", str(framed), "--id", "cifar10").output
    row = next(line for line in shown.splitlines() if line.split()[:1] == ["tin-crop"])
    assert "yes" in row
    assert "near" in row
    assert "refused" in next(line for line in shown.splitlines() if line.split()[:1] == ["stl10"])
    assert "nine of STL-10's ten classes" in shown


def test_list_in_full_and_as_json(framed: Path) -> None:
    card = run("list", "svhn", "notmnist", "--id", "cifar10").output
    for fact in ("Netzer", "non-commercial", "md5:eb5a983be6a315427106f1b164d9cef3", "no checksum is published", "far"):
        assert fact in card
    facts = {entry["name"]: entry for entry in json.loads(run("list", "--json", "--data", str(framed)).output)}
    assert set(facts) == set(CATALOGUE)
    assert facts["tin-crop-free"]["here"] == ["test"]
    assert facts["cifar10"]["here"] == []


def test_inspect_finds_the_frame_and_writes_a_sheet(framed: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "out" / "sheet.png"
    shown = run("inspect", "tin-crop", "--data", str(framed), "--sheet", str(sheet))
    assert shown.exit_code == 0, shown.output
    assert "yes, 2 pixels wide" in shown.output
    assert "its publisher has 10,000" in shown.output
    with Image.open(sheet) as page:
        assert page.size == (3 * 78 + 6, 2 * (78 + 13) + 6)  # a caption below each row
    free = run("inspect", "tin-crop-free", "--data", str(framed), "--sheet", str(sheet))
    assert "none" in next(line for line in free.output.splitlines() if "black frame" in line)


def test_inspect_finds_duplicates_in_a_users_own_folders(tmp_path: Path, save: Save) -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 3, 16, 16), np.uint8)
    for number, image in enumerate(images[:6]):
        save(tmp_path / "known" / ("train" if number < 4 else "test") / "ab"[number % 2] / f"{number}.png", image)
    for number in (0, 1, 5, 6):
        save(tmp_path / "other" / f"{number}.png", images[number])
    (tmp_path / "other" / "notes.txt").write_text("x")
    words = ("inspect", str(tmp_path / "other"), "--id", str(tmp_path / "known"), "--sheet", str(tmp_path / "s.png"))
    bad = run(*words)
    assert isinstance(bad.exception, DataError)
    assert "notes.txt" in str(bad.exception)
    shown = run(*words, "--skip-bad", width=200)
    assert shown.exit_code == 0, shown.exception
    lines = shown.output.splitlines()
    assert any("2 also in" in line and "known train" in line for line in lines)
    assert any("1 also in" in line and "known test" in line for line in lines)
    assert any("left out" in line and "notes.txt" in line for line in lines)


def test_inspect_takes_mixed_sizes_and_compares_train_with_test(tmp_path: Path, save: Save) -> None:
    chance = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 3)):
        for number in range(count):
            pixels = chance.integers(0, 256, (3, 4, 4), np.uint8).repeat(30 + number, 1).repeat(40, 2)
            save(tmp_path / "own" / split / "ab"[number % 2] / f"{number}.png", pixels)
    copied = tmp_path / "own" / "test" / "a" / "copy.png"
    copied.write_bytes((tmp_path / "own" / "train" / "b" / "1.png").read_bytes())
    shown = run("inspect", str(tmp_path / "own"), "--sheet", str(tmp_path / "s.png"), width=300).output
    assert "160x120 / 160x124 / 160x128 (smallest" in shown
    assert shown.count(f"1 also in {tmp_path / 'own'} train") == 2
    assert str(copied) in shown
    assert (tmp_path / "s-pairs.png").exists()
    assert (tmp_path / "s.png").exists()


def test_inspect_refuses_a_size_without_pixels(framed: Path) -> None:
    shown = run("inspect", str(framed), "--size", "0")
    assert shown.exit_code == 2
    assert "--size" in shown.output


def test_get_names_every_set_that_failed_and_where_to_put_it(tmp_path: Path) -> None:
    failed = run("get", "scenes", "uniform", "--data", str(tmp_path))
    assert isinstance(failed.exception, DataError)
    assert str(tmp_path / "scenes.zip") in str(failed.exception)
    assert "Uniform" in failed.output


@pytest.mark.parametrize("command", ["list", "get", "inspect"])
def test_every_command_shows_an_example(command: str) -> None:
    assert f"offaxis data {command}" in run(command, "--help").output


def test_inspect_shows_names_as_they_are(tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my [red] photos"
    for number, image in enumerate(np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), np.uint8)):
        save(folder / f"{number}.png", image)
    (folder / "cat[edited].png").write_bytes(b"bad")
    (folder / "a\x9b31m\u202eb\u2028.png").write_bytes(b"bad")
    (folder / "x[").mkdir()
    (folder / "x[" / "y].png").write_bytes(b"bad")
    monkeypatch.chdir(folder)
    done = run("inspect", ".", "--skip-bad", width=200)
    assert done.exit_code == 0, done.output
    assert "cat[edited].png" in done.output
    assert "x[/y].png" in done.output
    assert r"a\x9b31m\u202eb\u2028.png" in done.output
    assert "Contact sheet: my [red] photos-sheet.png" in done.output
    assert Path("my [red] photos-sheet.png").exists()


def test_inspect_leaves_an_image_called_like_the_folder_alone(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        save(tmp_path / "own" / f"{number}.png", np.full((3, 8, 8), 60 * number, np.uint8))
    (tmp_path / "own.png").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert "Contact sheet: own-sheet.png" in run("inspect", "own").output
    assert (tmp_path / "own.png").read_text() == "mine"
    assert (tmp_path / "own-sheet.png").exists()


def test_inspect_finds_the_splits_of_a_folder_at_home(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 8, 8), np.uint8)
    for part in ("train/a", "train/b", "test/a", "test/b"):
        save(tmp_path / "home" / "own" / part / "x.png", image)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    done = run("inspect", "~/own", "--sheet", str(tmp_path / "x.png"), width=200)
    assert done.exit_code == 0, done.output
    assert "also in ~/own train" in done.output
    assert isinstance(run("inspect", "~nobodyhere/x").exception, ArgumentError)


def test_caches_are_removed_and_sets_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "Nothing to remove" in run("clean").output
    for name in ("features", "onnx", "cifar10"):
        (tmp_path / "offaxis" / name).mkdir(parents=True)
        (tmp_path / "offaxis" / name / "x.npz").write_bytes(b"a graph")
    done = run("clean")
    assert done.exit_code == 0
    assert done.output.replace("\n", "").count("1 files, 0.0 MB") == 2
    assert [path.name for path in (tmp_path / "offaxis").iterdir()] == ["cifar10"]
