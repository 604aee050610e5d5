"""What users hold of version 0.2.0 is read by this one and means the same: bundles, runs, stores, requests, commands."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import offaxis
from offaxis.cli import app
from offaxis.training import load_run, read_run

from . import record

CHANGED = {
    ("train", "--network"): "the convolutional network of the recipe fast is named",
    ("export", "epilog"): "the example of --with-resize has gone with it",
    ("calibrate", "epilog"): "a bundle is replaced with --overwrite alone",
    ("calibrate", "bundle"): "it is changed in place with --overwrite alone",
    ("calibrate", "images"): "another level needs none",
    ("calibrate", "--out"): "a bundle is replaced with --overwrite alone",
    ("train", "--head"): "there are more heads, and one's own",
    ("serve", "bundle"): "several can be served",
    ("serve", "--queue"): "what has no room waits its turn",
    ("serve", "--allowed-host"): "it can be given in the environment",
    ("train", "--recipe"): "the recipe fast; a network that is trained already is fine-tuned, however it was named",
    ("score", "--resume"): "a finished run goes on with what is new",
    ("score", "epilog"): "films, buckets and --select are shown",
    ("score", "--top"): "the page filters and holds more",
    ("score", "paths"): "films, tables, shards and addresses too",
    ("report", "--metrics"): "open-set and full-spectrum metrics",
    ("reproduce", "item"): "all items at once",
    ("reproduce", "--recipe"): "the scale's recipe is taken for a network that is named too, not laptop",
    **{(f"data {name}", "--data"): "declared once, as of every command" for name in ("list", "get", "inspect")},
}
"""Options that were changed on purpose, with the reason; CHANGELOG.md tells users."""
GONE = {
    ("report", "--archive"): "small copies of a store are made for the studies alone",
    ("export", "--with-resize"): "resizing is outside of the graph, which says its rule among its metadata",
    ("train", "--cache"): "pixels are kept in memory up to 2 GiB and decoded beside the network above that",
}
"""Options that were removed, with the reason; CHANGELOG.md tells users."""


def kept(name: str) -> Any:
    return json.loads((record.KEPT / f"{name}.json").read_text(encoding="utf-8"))


def close(found: Any, expected: Any) -> bool:
    """Whether two values agree, numbers to a relative 1e-3: other processors round otherwise."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(key in found and close(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=1e-3, abs=1e-4))
    return bool(found == expected)


@pytest.mark.parametrize("name", record.BUNDLES)
def test_a_bundle_gives_the_predictions_that_it_gave(name: str) -> None:
    assert close(record.answers([name])[name], kept("answers")[name])


@pytest.mark.parametrize("name", ["cosine0", "cosine1", "linear"])
def test_a_run_is_opened_with_its_record(name: str) -> None:
    opened = offaxis.open_network(record.KEPT / "runs" / name)
    assert opened.head is not None
    assert opened.head["name"] == ("linear" if name == "linear" else "cosine")
    assert opened.seed == int(name == "cosine1")
    assert read_run(record.KEPT / "runs" / name)["settings"]["recipe"]["epochs"] == 2


def test_a_finished_run_is_resumed_to_the_same_weights(tmp_path: Path) -> None:
    shutil.copytree(record.KEPT / "runs" / "cosine0", tmp_path / "run")
    before = load_run(tmp_path / "run").classifier.state_dict()
    done = CliRunner().invoke(app, [*record.TRAIN, "--resume", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    after = load_run(tmp_path / "run").classifier.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_the_results_of_a_store_are_read() -> None:
    assert close(record.results(), kept("results"))


def test_the_service_answers_as_it_did() -> None:
    for found, expected in zip(record.service(), kept("service"), strict=True):
        for answer in (found, expected):
            for one in (answer["body"] or {}).get("predictions", []):  # formats have been added
                one.update({"error": re.sub(r" \([A-Z, ]+\)", "", one["error"])} if "error" in one else {})
            (answer["body"] or {}).get("info", {}).pop("version", None)
            (answer["body"] or {}).pop("offaxis", None)
            for name in ("command", "training_command"):  # which hold paths of whoever made the bundle
                (answer["body"] or {}).get("provenance", {}).pop(name, None)
        assert close(found, expected), expected["request"]


@pytest.mark.parametrize("command", kept("options"))
def test_every_option_is_there_and_says_the_same(command: str) -> None:
    found, expected = record.options()[command], kept("options")[command]
    by_name = {option["names"][0]: option for option in found["options"].values()}
    for option in expected["options"].values():
        name = option["names"][0]
        if (command, name) in GONE:
            assert name not in by_name
        elif (command, name) in CHANGED:
            assert by_name[name] != option
        else:
            assert by_name.get(name) == option, name
    assert found["epilog"] == expected["epilog"] or (command, "epilog") in CHANGED
    assert found["help"] == expected["help"]
