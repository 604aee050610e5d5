"""The record of a run: every fact is a field, and other versions are refused."""

import errno
import json
import os
import platform
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import offaxis
from offaxis import CosineHead, Outputs, train
from offaxis.errors import RunError, StorageError
from offaxis.networks import build
from offaxis.networks.opened import check_folds
from offaxis.networks.saved import write_tensors
from offaxis.options import TrainOptions
from offaxis.training import RECIPES, Recipe, cross_entropy, load_run, read_run, short
from offaxis.training.leave_out import MarginEntropyLoss
from offaxis.training.record import RunFolder, describe_loss, load_checkpoint
from tests.hostile.damage import flipped

from .small import SHORT, few, network, same, weights

pytestmark = pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
WORDS = ["offaxis", "train", "--id", "small digits", "--out", "runs/x"]


def test_every_fact_of_a_run_is_a_field(tmp_path: Path) -> None:
    model = network(head=partial(CosineHead, scale=16.0))
    recipe = short().replace(epochs=1, crop=1, flip=False)
    trained = train(model, few(), recipe, seed=5, out=RunFolder(tmp_path / "run", command=WORDS), quiet=True)
    record = read_run(tmp_path / "run")
    assert record == trained.record == load_run(tmp_path / "run").record
    assert (record["format"], record["version"]) == ("offaxis-run", 3)
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
    entropy = nn.CrossEntropyLoss(label_smoothing=0.1)
    settings = {"ignore_index": -100, "label_smoothing": 0.1, "reduction": "mean"}
    assert describe_loss(entropy) == {"name": "CrossEntropyLoss", **settings}
    weighted = [describe_loss(nn.CrossEntropyLoss(weight=torch.tensor([1.0, each]))) for each in (2.0, 2.0, 3.0)]
    assert weighted[0] == weighted[1] != weighted[2]
    assert json.loads(json.dumps(weighted)) == weighted
    smooth = partial(nn.functional.cross_entropy, label_smoothing=0.1, weight=torch.ones(2))
    assert describe_loss(smooth)["name"] == "cross_entropy"
    assert describe_loss(smooth)["given"]["label_smoothing"] == 0.1
    assert describe_loss(smooth) != describe_loss(partial(smooth, weight=torch.zeros(2)))
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
        ({"offaxis": "0.1", "settings": {"recipe": {}}}, "version 3 but .* has version 1: it was made by another"),
        ({"format": "offaxis-run", "version": 4, "settings": {}}, "has version 4: it was made by another version"),
        ({"format": "other", "version": 2, "settings": {}}, "foreign"),
        ({"format": "offaxis-run", "version": 2}, "foreign"),
        ({"format": "offaxis-run", "version": 3, "settings": {}}, "damaged, it has no checksum"),
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


def test_a_changed_bit_in_any_file_of_a_run_is_refused(tmp_path: Path) -> None:
    run, chance = tmp_path / "run", random.Random(0)
    train(network(), few(), SHORT, out=RunFolder(run, options=TrainOptions(log_every=1)), quiet=True)
    readers: dict[str, Callable[[], Any]] = {
        "run.json": lambda: read_run(run),
        "log.jsonl": lambda: load_run(run),
        "model.safetensors": lambda: load_run(run),
        "checkpoint.safetensors": lambda: load_checkpoint(run / "checkpoint.safetensors"),
    }
    for name, read in readers.items():
        whole = (run / name).read_bytes()
        for _ in range(40):
            (run / name).write_bytes(flipped(whole, chance))
            with pytest.raises(RunError, match=name):
                read()
        (run / name).write_bytes(whole)
        read()


@pytest.mark.parametrize("name", ["log.jsonl", "model.safetensors", "checkpoint.safetensors"])
def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path, name: str) -> None:
    run, short = tmp_path / "run", SHORT.replace(epochs=1)
    train(network(), few(), short, out=run, quiet=True)
    (run / name).unlink()
    os.mkfifo(run / name)
    read = partial(train, network(), few(), short, out=run, resume=True, quiet=True)
    if name == "model.safetensors":
        read = partial(load_run, run)
    with pytest.raises((RunError, StorageError), match=f"{name} .*no plain file"):
        read()


def test_the_weights_are_a_plain_safetensors_file(tmp_path: Path) -> None:
    trained = train(network(), few(), SHORT.replace(epochs=1), out=tmp_path / "run", quiet=True)
    found = load_file(tmp_path / "run" / "model.safetensors")
    assert same(found, weights(trained.classifier))


def test_a_run_of_the_version_without_checksums_is_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained = train(network(), few(), SHORT.replace(epochs=1), out=run, quiet=True)
    record = {**read_run(run), "version": 2}
    (run / "run.json").write_text(json.dumps(record))
    plain = {name: tensor.contiguous() for name, tensor in weights(trained.classifier).items()}
    save_file(plain, run / "model.safetensors", {"format": "offaxis-model-1"})
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    (run / "log.jsonl").write_text("".join(json.dumps({**r, "checksum": None}) + "\n" for r in lines))
    with pytest.raises(RunError, match="Line 1 of .*log.jsonl is damaged"):
        load_run(run)
    for line in lines:
        del line["checksum"]
    (run / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    loaded = load_run(run)
    assert same(weights(loaded.classifier), weights(trained.classifier))
    assert loaded.history == trained.history


@pytest.mark.parametrize("line", ['{"step": 3}', "[]", "3"])
def test_a_line_of_the_log_that_is_no_record_is_told(tmp_path: Path, line: str) -> None:
    train(network(), few(), SHORT.replace(epochs=1), out=tmp_path / "run", quiet=True)
    with (tmp_path / "run" / "log.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(RunError, match=r"Line \d of .*log.jsonl is"):
        load_run(tmp_path / "run")


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="The disk is full"):
        write_tensors(tmp_path / "x.safetensors", {"x": torch.zeros(1)}, {})
