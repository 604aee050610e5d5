"""Damaged images and bundles through score, load and serve: only clear answers. The long version is in the slow tier."""

import json
import random
from pathlib import Path

import pytest

import offaxis
from offaxis import Model
from offaxis.errors import BundleError
from offaxis.options import ScoreOptions
from offaxis.score import score_images
from tests.hostile.damage import damaged, picture
from tests.serve.serving import running

TIERS = [60, pytest.param(1000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", TIERS)
def test_load(bundle: Path, tmp_path: Path, count: int) -> None:
    """A bundle loads as it was, or is refused with a sentence that names it."""
    whole, chance, told = bundle.read_bytes(), random.Random(count), []
    for _ in range(count):
        (tmp_path / "x.oax").write_bytes(damaged(whole, chance))
        try:
            offaxis.load(tmp_path / "x.oax")
        except BundleError as error:
            told.append(str(error))
    assert len(told) > 0.9 * count
    assert all(str(tmp_path / "x.oax") in message for message in told)


@pytest.mark.parametrize("count", TIERS)
def test_load_of_a_folder(model: Model, tmp_path: Path, count: int) -> None:
    """The same for the files of a folder, where no zip file guards them."""
    chance, told = random.Random(count), 0
    model.save(tmp_path / "x", folder=True)
    files = {path: path.read_bytes() for path in sorted((tmp_path / "x").iterdir())}
    for number in range(count):
        path = list(files)[number % len(files)]
        path.write_bytes(damaged(files[path], chance))
        try:
            offaxis.load(tmp_path / "x")
        except BundleError:
            told += 1
        path.write_bytes(files[path])
    assert told > 0.9 * count


@pytest.mark.parametrize("count", TIERS)
def test_score(bundle: Path, tmp_path: Path, count: int) -> None:
    """Each file has a row with a verdict or with a reason, and none stops the run."""
    chance = random.Random(count)
    (tmp_path / "files").mkdir()
    for number in range(count):
        (tmp_path / "files" / f"{number}.png").write_bytes(damaged(picture(chance), chance))
    score_images(
        offaxis.load(bundle),
        ScoreOptions(bundle=bundle, paths=(str(tmp_path / "files"),), out=str(tmp_path / "out.jsonl"), quiet=True),
    )
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == count
    assert all((row["error"] is None) != (row["verdict"] is None) for row in rows)
    assert sum(row["error"] is not None for row in rows) > 0.3 * count


@pytest.mark.parametrize("count", TIERS)
def test_serve(model: Model, count: int) -> None:
    """Each request is answered with a verdict or with a reason."""
    httpx = pytest.importorskip("httpx")
    chance = random.Random(count)
    with running(model) as (address, _), httpx.Client() as client:
        for _ in range(count):
            data = damaged(picture(chance), chance) or b"x"
            answer = client.post(f"{address}/v1/predict", content=data, headers={"content-type": "image/any"})
            assert answer.status_code in (200, 422)
            (said,) = answer.json()["predictions"]
            assert "verdict" in said or len(said["error"]) > 10
