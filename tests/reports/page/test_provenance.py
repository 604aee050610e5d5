"""The commands of a report make what the report shows, or are not given."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offaxis.evaluation import NetworkRecord, Result, Store
from offaxis.networks.ensemble import folds
from offaxis.reports.provenance import commands, train_command
from offaxis.training import RECIPES
from offaxis.training.leave_out import MarginEntropyLoss
from offaxis.training.step import describe_loss

NETWORK: dict[str, Any] = {
    "name": "wide_resnet",
    "depth": 10,
    "width": 2,
    "stem_stride": 2,
    "dropout": 0.0,
    "num_classes": 10,
    "head": {"name": "linear", "scale": None},
}


def record(name: str = "run", recipe: str = "laptop", **settings: Any) -> NetworkRecord:
    known = {"network": NETWORK, "recipe": RECIPES[recipe]().to_json(), **settings}
    return NetworkRecord(
        "wrn linear", 0, name.encode().hex().ljust(64, "0"), "digits", "d", 0.9, 0.1, 0.01, name, known
    )


def result(of: NetworkRecord, detector: str, assumed: str | None = None, setup: str = "", **values: Any) -> Result:
    return Result(
        network=of.label,
        seed=0,
        weights=of.key,
        id="digits",
        ood="letters",
        assumed=assumed,
        id_data="d",
        ood_data="l",
        assumed_data=assumed and "l",
        group="near",
        detector=detector,
        setup=setup,
        hyperparameters=values,
        state="tuned" if assumed else "none",
        passes=(1, 0),
        metrics={"auroc": 0.9},
        images=(2, 3),
        scores=("", ""),
        versions={},
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def evaluations(store: Store, records: list[NetworkRecord], results: list[Result]) -> list[str]:
    return [text for text in commands(results, records, store) if text.startswith("offaxis evaluate")]


@pytest.mark.parametrize(
    ("together", "label"),
    [("ensemble", "wrn linear x2"), ("paired", "wrn linear + wrn cosine"), ("leave-out", "wrn linear leave-out x2")],
)
def test_networks_that_were_one_are_evaluated_as_one(store: Store, together: str, label: str) -> None:
    single = record("first")
    said = replace(record("first, second", together=together), label="mine")
    guessed = replace(record("first, second"), label=label)  # before records said it
    for team in (said, guessed):
        found = evaluations(store, [single, team], [result(single, "cosine"), result(team, "max-softmax")])
        assert found[0].startswith("offaxis evaluate first --id digits --ood letters --detectors cosine --protocol")
        assert found[1].startswith(f"offaxis evaluate first second --as {together} --id digits")
        assert "--detectors max-softmax" in found[1]
    unknown = replace(guessed, label="mine")
    assert evaluations(store, [unknown], [result(unknown, "cosine")]) == []


def test_networks_that_were_evaluated_alike_share_a_command(store: Store) -> None:
    first, second = record("first"), record("a folder")
    [found] = evaluations(store, [first, second], [result(first, "cosine"), result(second, "cosine")])
    assert shlex.split(found)[2:4] == ["first", "a folder"]
    [found] = evaluations(store, [], [result(first, "cosine")])
    assert found.startswith("offaxis evaluate RUN... --id digits")


def test_detectors_keep_what_they_were_given(store: Store) -> None:
    run = record()
    given = [result(run, "knn", "letters", "a", k=200), result(run, "knn", None, "a", k=10)]
    [found] = evaluations(store, [run], [*given, result(run, "knn", None, "b", k=50)])
    words = shlex.split(found)
    assert words[words.index("--detectors") + 1] == "knn:k=10,knn"


def test_the_validation_images_are_told_where_they_are_not_the_usual_ones(store: Store) -> None:
    run = record()
    results = [result(run, "cosine")]
    for key, (images, validation) in {"d": (1000, 100), "l": (200, 40)}.items():
        about = {"name": "x", "images": images, "validation": validation}
        store.add_set(key, about, np.arange(validation), np.arange(images - validation))
    assert "--validation 100 " in evaluations(store, [run], results)[0]
    usual = Store(store.path.parent / "usual")
    for key, (images, validation) in {"d": (9000, 1000), "l": (200, 40)}.items():
        about = {"name": "x", "images": images, "validation": validation}
        usual.add_set(key, about, np.arange(validation), np.arange(images - validation))
    assert "--validation" not in evaluations(usual, [run], results)[0]


def test_trainings_keep_their_loss_recipe_and_head() -> None:
    for k, fold in enumerate(folds(10, 3)):
        assert f" --leave-out {k}/3 " in train_command(record(loss=describe_loss(MarginEntropyLoss(fold, 10))))
    assert train_command(record(loss=describe_loss(MarginEntropyLoss((0, 1), 10, weight=0.7)))) == ""
    assert train_command(record(loss="own_loss")) == ""
    assert "--leave-out" not in train_command(record(loss="cross_entropy"))
    assert "--recipe" not in train_command(record())
    for name in ("short", "paper-wide-resnet"):
        assert f" --recipe {name} " in train_command(record(recipe=name))
    settings = record().settings
    own = {**settings, "recipe": {**settings["recipe"], "momentum": 0.5}}
    assert train_command(replace(record(), settings=own)) == ""
    scaled = {**settings, "network": {**NETWORK, "head": {"name": "linear", "scale": "predicted"}}}
    assert " --scale predicted " in train_command(replace(record(), settings=scaled))


def test_trainings_keep_their_arithmetic() -> None:
    command = train_command(record(precision="bf16-mixed", sync_bn=True))
    assert "--precision bf16-mixed --sync-bn" in command
    assert "--precision" not in train_command(record(precision="32-true", sync_bn=False))
    assert "--precision" not in train_command(record())  # before runs noted it
