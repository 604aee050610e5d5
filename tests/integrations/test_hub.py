"""Models on the Hugging Face Hub, against a local stand-in for its file API."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offaxis
from offaxis import Model
from offaxis.errors import ArgumentError, BundleError, StorageError
from offaxis.hub import model_card
from tests.integrations.hub_server import Hub, running_hub
from tests.models import World

ROOT = Path(__file__).parents[2]
constants: Any = pytest.importorskip("huggingface_hub.constants", reason="needs huggingface_hub")
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub's own call


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """The stand-in, with a cache of its own."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # other tests work without a network
        yield server


def test_a_pushed_model_is_loaded_elsewhere(model: Model, world: World, hub: Hub, tmp_path: Path) -> None:
    results = offaxis.evaluate(
        model, world.test, {"letters": offaxis.load_images("letters", size=8)}, ["cosine", "energy"], normalise=None
    )
    address = model.push_to_hub("someone/digits", results=results, token="secret")
    assert address == f"{hub.address}/someone/digits"
    (files,) = hub.repositories["someone/digits"][1:]
    assert {"README.md", "bundle.json", "network.safetensors"} <= set(files)
    assert hub.objects, "weights are uploaded as large files"
    card = files["README.md"].decode()
    assert all(f"`{name}`" in card for name in model.classes)
    assert f"{results.networks[0].accuracy:.2%}" in card
    assert results.table() in card
    assert f"flagged above a score of: {model.calibration.threshold():.6g}" in card
    assert 'offaxis.load("hf:someone/digits")' in card

    again = offaxis.load("hf:someone/digits")
    images = world.test.batch(torch.arange(5))
    assert again.predict(images) == model.predict(images)
    assert offaxis.open_network("hf:someone/digits").classes == model.classes
    code = "import offaxis; print(len(offaxis.load('hf:someone/digits').classes))"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "other"), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "10", done.stderr


def test_a_second_push_is_a_second_revision(model: Model, hub: Hub) -> None:
    model.push_to_hub("someone/digits", token="secret")
    model.push_to_hub("someone/digits", accuracy=0.9, token="secret")
    first, second = hub.repositories["someone/digits"][1:]
    assert b"Not measured." in first["README.md"]
    assert b"90.00%" in second["README.md"]
    oid = hub.files("someone/digits", "main")
    assert oid is not None
    assert offaxis.load(f"hf:someone/digits@{oid[0]}").classes == model.classes


def test_what_cannot_be_fetched_or_pushed_is_explained(model: Model, hub: Hub) -> None:
    with pytest.raises(BundleError, match=r"someone/nothing could not be downloaded \(.*Repository Not Found"):
        offaxis.load("hf:someone/nothing")
    hub.repositories["someone/other"] = [{}, {"README.md": b"# other"}]
    with pytest.raises(BundleError, match=r"it has no bundle\.json: model\.push_to_hub"):
        offaxis.load("hf:someone/other")
    with pytest.raises(BundleError, match="Revision Not Found"):
        offaxis.load("hf:someone/other@absent")
    with pytest.raises(BundleError, match="Expected hf:name/repo"):
        offaxis.load("hf:a/b/c")
    with pytest.raises(StorageError, match="hf auth login"):
        model.push_to_hub("someone/digits", token="wrong")
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        model_card(model, "someone/digits", accuracy=93.0)


def test_a_damaged_file_is_refused(model: Model, hub: Hub) -> None:
    model.push_to_hub("someone/digits", token="secret")
    files = hub.repositories["someone/digits"][-1]
    files["network.safetensors"] = files["network.safetensors"][:-1] + b"\0"
    with pytest.raises(BundleError, match="checksum of network.safetensors"):
        offaxis.load("hf:someone/digits")


def test_a_hub_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(BundleError, match="check its name, the network and the token"):
        offaxis.load("hf:someone/digits")


def test_the_card_of_feature_vectors_and_of_verdicts_per_class(model: Model, world: World) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 4))
    estimator = offaxis.EmbeddingDetector("knn").fit(rows[:100]).calibrate(rows[100:])
    card = model_card(estimator.to_model(), "someone/rows")
    assert "model.predict(rows)" in card
    assert "image-classification" not in card
    assert "was not trained on\n" in card
    per_class = model_card(model.recalibrated(world.calibration, per_class=True, alpha=0.3), "someone/digits")
    assert "| class | flagged above a score of |" in per_class


def test_the_card_of_a_network_of_ones_own(model: Model, world: World) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    own = Model.calibrated(
        offaxis.attach(network), world.calibration, preprocessing=model.preprocessing, confidence=0.95, alpha=0.2
    )
    card = model_card(own, "someone/own")
    assert 'offaxis.load("hf:someone/own", network=module)' in card
    assert f"{own.calibration.accuracy:.2%} of the {len(world.calibration):,} calibration images." in card
    assert "(as its maker says: they were not compared with those of training)" in card
    assert "flags of new ID images: at most 0.2, with probability 95%" in card
    assert "network=module" not in model_card(model, "someone/digits")
