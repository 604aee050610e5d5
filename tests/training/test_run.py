"""The record of a run: every fact is a field, and other versions are refused."""

import json
import platform
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import offaxis
from offaxis import CosineHead, Outputs, train
from offaxis.errors import RunError
from offaxis.networks import build
from offaxis.training import RECIPES, Recipe, cross_entropy, load_run, read_run, short
from offaxis.training.leave_out import MarginEntropyLoss, check_folds
from offaxis.training.step import describe_loss

from .small import SHORT, few, network, weights

pytestmark = pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
WORDS = ["offaxis", "train", "--id", "small digits", "--out", "runs/x"]


def test_every_fact_of_a_run_is_a_field(tmp_path: Path) -> None:
    model = network(head=partial(CosineHead, scale=16.0))
    recipe = short().replace(epochs=1, crop=1, flip=False)
    trained = train(model, few(), recipe, seed=5, out=tmp_path / "run", command=WORDS, quiet=True)
    record = read_run(tmp_path / "run")
    assert record == trained.record == load_run(tmp_path / "run").record
    assert (record["format"], record["version"]) == ("offaxis-run", 2)
    assert record["command"] == WORDS
    assert record["versions"] == {
        "offaxis": offaxis.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    settings = record["settings"]
    assert weights(build(settings["network"])).keys() == weights(model).keys()
    assert settings["head"]["name"] == "cosine"
    assert settings["head"]["scale"] == 16.0
    assert settings["recipe"] == {"name": "short", **recipe.to_json()}
    assert settings["data"]["name"] == "few-digits"
    assert settings["data"]["images"] == 200
    assert settings["data"]["fingerprint"] == few().fingerprint
    assert settings["data"]["classes"] == list("0123456789")
    assert settings["loss"] == {"name": "cross_entropy"}
    assert (settings["seed"], settings["precision"], settings["sync_bn"]) == (5, "32-true", False)
    assert trained.normalise is not None
    assert settings["normalise"] == {"mean": list(trained.normalise.mean), "std": list(trained.normalise.std)}


def test_without_a_folder_the_record_is_there_all_the_same() -> None:
    trained = train(network(), few(), SHORT.replace(epochs=1), quiet=True)
    assert trained.record["command"] is None
    assert trained.record["settings"]["recipe"]["name"] == "custom"


def test_a_recipe_knows_where_it_started_and_is_compared_by_its_numbers(tmp_path: Path) -> None:
    assert all(make().name == name for name, make in RECIPES.items())
    assert RECIPES["laptop"]().replace(epochs=3).name == "laptop"
    assert Recipe(epochs=12, batch_size=128) == RECIPES["laptop"]()
    named = SHORT.replace(name="laptop")
    train(network(), few(), SHORT, out=tmp_path / "run", quiet=True)
    train(network(), few(), named, out=tmp_path / "run", resume=True, quiet=True)  # the numbers are the same
    assert read_run(tmp_path / "run")["settings"]["recipe"]["name"] == "custom"


def test_a_loss_is_described_by_fields() -> None:
    class Smoothed(nn.Module):
        def __init__(self, smoothing: float) -> None:
            super().__init__()
            self.smoothing = smoothing

        def extra_repr(self) -> str:
            return f"smoothing={self.smoothing}"

        def forward(self, out: Outputs, labels: Tensor) -> Tensor:
            return nn.functional.cross_entropy(out.logits, labels, label_smoothing=self.smoothing)

    assert describe_loss(cross_entropy) == {"name": "cross_entropy"}
    assert describe_loss(Smoothed(0.1)) == {"name": "Smoothed", "text": "Smoothed(smoothing=0.1)"}
    described = describe_loss(MarginEntropyLoss.for_fold(1, 3, 10))
    assert described["name"] == "MarginEntropyLoss"
    assert described["fold"] == "1/3"
    assert described["left_out"] == sorted(described["left_out"])
    assert json.loads(json.dumps(described)) == described
    check_folds([("run", described)], [described["left_out"]])
    check_folds([("run", None)], [[0, 1]])
    with pytest.raises(offaxis.OffaxisError, match=r"run was trained with cross_entropy\."):
        check_folds([("run", {"name": "cross_entropy"})], [[0, 1]])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"offaxis": "0.1", "settings": {"recipe": {}}}, "version 2 but .* has version 1: it was made by an older"),
        ({"format": "offaxis-run", "version": 3, "settings": {}}, "has version 3: it was made by another version"),
        ({"format": "other", "version": 2, "settings": {}}, "foreign"),
        ({"format": "offaxis-run", "version": 2}, "foreign"),
        ([], "damaged"),
        ("{", "damaged"),
    ],
)
def test_a_record_of_another_version_is_refused(tmp_path: Path, record: Any, reason: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(record if isinstance(record, str) else json.dumps(record))
    for read in (
        lambda: read_run(run),
        lambda: load_run(run),
        lambda: train(network(), few(), SHORT, out=run, resume=True, quiet=True),
    ):
        with pytest.raises(RunError, match=reason):
            read()
