"""The start of the scale in trainings by name and in records: the paper's recipes keep theirs, old records mean it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from offaxis import train
from offaxis.errors import ArgumentError, CheckpointError
from offaxis.heads import complete_description, head_maker
from offaxis.networks import build, description, wide_resnet
from offaxis.options import TrainOptions
from offaxis.paper.commands import run_name
from offaxis.paper.settings import LAPTOP, PAPER, training
from offaxis.training import load_run, read_run
from offaxis.training.start import head_arguments, train_by_options

from .small import SHORT, few

pytestmark = pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
ONE = {"epochs": 1, "batch_size": 256, "crop": 0, "device": "cpu", "quiet": True}


@pytest.mark.parametrize(
    ("recipe", "start", "expected"),
    [
        ("laptop", None, "sizes"),
        ("laptop", "paper", "paper"),
        ("short", None, "paper"),
        ("short", "sizes", "sizes"),
        ("paper-wide-resnet", None, "paper"),
        ("paper-wide-resnet", "sizes", "sizes"),
    ],
)
def test_the_start_follows_from_the_option_and_the_recipe(
    tmp_path: Path, recipe: str, start: str | None, expected: str
) -> None:
    digits: dict[str, Any] = {"id": "small-digits", "network": "wrn-10-1-half", **ONE}
    run = TrainOptions(recipe=recipe, start=start, out=tmp_path / "run", **digits)  # type: ignore[arg-type]
    assert ("--start" in run.words()) == (start is not None)
    train_by_options(run)
    assert read_run(tmp_path / "run")["settings"]["head"]["start"] == expected


def test_a_trained_backbone_has_the_default_start() -> None:
    fresh = TrainOptions(id="fruit", network="timm:resnet18", recipe="short")
    assert head_arguments(fresh) == {"start": "paper"}
    for trained in ({"pretrained": True}, {"freeze": True}, {"weights": "w.th"}, {"source": "run"}, {"unfreeze": "fc"}):
        assert head_arguments(replace(fresh, **trained)) == {}, trained  # type: ignore[arg-type]


def test_names_and_reproductions_keep_the_papers_start() -> None:
    laptop, paper = (training(settings.networks[0], "cifar10", 0, "cosine") for settings in (LAPTOP, PAPER))
    assert (laptop.start, run_name(laptop)) == ("paper", "wrn-10-4-half-cosine-cifar10-seed0")
    assert (paper.start, head_arguments(paper)["start"]) == (None, "paper")
    assert training(LAPTOP.networks[0], "cifar10", 0, "cosine", scale=16.0).start is None
    assert run_name(TrainOptions(id="x", network="y", start="sizes")) == "y-cosine-start-sizes-x-seed0"


def test_a_head_without_a_scale_takes_no_start(tmp_path: Path) -> None:
    digits: dict[str, Any] = {"id": "small-digits", "network": "wrn-10-1-half", **ONE}
    run = TrainOptions(head="linear", start="paper", out=tmp_path / "run", **digits)
    with pytest.raises(ArgumentError, match="'linear' takes no --start"):
        train_by_options(run)


def test_old_records_mean_the_papers_start(tmp_path: Path) -> None:
    """A run whose run.json was written when there was no other start: it loads, and resumes as what it was."""
    torch.manual_seed(0)
    paper = head_maker({"name": "cosine", "start": "paper"})
    trained = train(wide_resnet(10, 1, head=paper, in_channels=1), few(), SHORT, out=tmp_path / "run", quiet=True)
    record = json.loads((tmp_path / "run/run.json").read_text())
    for head in (record["settings"]["head"], record["settings"]["network"]["head"]):
        assert head.pop("start") == "paper"
    record = {**{k: v for k, v in record.items() if k in ("format", "command", "versions", "settings")}, "version": 2}
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    loaded = load_run(tmp_path / "run").classifier
    images = torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(loaded(images), trained.classifier(images))
    again = train(
        wide_resnet(10, 1, head=paper, in_channels=1), few(), SHORT, out=tmp_path / "run", resume=True, quiet=True
    )
    torch.testing.assert_close(again.classifier(images), trained.classifier(images))
    with pytest.raises(CheckpointError, match="head.start was 'paper' and is now 'sizes'"):
        train(wide_resnet(10, 1, in_channels=1), few(), SHORT, out=tmp_path / "run", resume=True, quiet=True)


def test_a_description_without_a_start_builds_the_papers_head() -> None:
    plan = description(wide_resnet(10, 1, in_channels=1))
    assert plan is not None
    assert build(plan).head.arguments["start"] == "sizes"
    del plan["head"]["start"]
    assert build(plan).head.arguments["start"] == "paper"
    assert complete_description({"name": "linear", "scale": None}) == {"name": "linear", "scale": None}
    with pytest.raises(ArgumentError, match="Expected a head out of"):
        head_maker({"name": "of tomorrow"})
