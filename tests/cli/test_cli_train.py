"""The command line as a user meets it: help with examples, and wrong input answered in a sentence with exit code 2."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from offaxis.cli import app
from offaxis.errors import ArgumentError, OffaxisError
from offaxis.evaluation import Store

SMALL = ["--id", "small-digits", "--network", "wrn-10-1", "--epochs", "1", "--quiet"]


def offaxis(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **environment}
    return subprocess.run(
        [sys.executable, "-m", "offaxis", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=settings,
    )


def commands() -> list[list[str]]:
    """Every command of the program, however deep."""

    def walk(group: object, path: list[str]) -> list[list[str]]:
        inner = getattr(group, "commands", None)
        if not inner:
            return [path]
        return [found for name, command in inner.items() for found in walk(command, [*path, name])]

    return walk(typer.main.get_command(app), [])


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_shows_an_example(command: list[str]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "250"})
    assert shown.exit_code == 0
    assert re.search(rf"Example\s+offaxis {' '.join(command)}", shown.output), shown.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--network", "resnet-50"], "wrn-28-10"),
        (["--network", "wrn-11-1"], "depth"),
        (["--epochs", "-3"], "epochs"),
        (["--epochs", "0"], "at least 1 but got 0"),
        (["--head", "euclid"], "'cosine'"),
        (["--head", "linear", "--hidden", "5"], "takes no --hidden"),
        (["--head", "elogitnorm", "--tau", "0.1"], "takes no --tau"),
        (["--head", "logitnorm", "--tau", "0"], "positive number"),
        (["--scale", "wide"], "predicted, learned or a number"),
        (["--scale", "-2"], "positive number"),
        (["--recipe", "best"], "laptop"),
        (["--batch-size", "1"], "batch_size"),
        (["--batch-size", "5000"], "smaller batch size"),
        (["--lr", "nan"], "learning_rate"),
        (["--id", "no-such-set"], "no-such-set"),
        (["--dropout", "1.5"], "dropout"),
        (["--head", "linear", "--scale", "3", "--hidden", "5"], "takes no --hidden."),
        (["--leave-out", "²/5"], "K/N"),
        (["--device", "bogus"], "can use here (auto, cpu"),
        (["--device", "tpu"], "can use here (auto, cpu"),
    ],
    ids=lambda v: "_".join(v) if isinstance(v, list) else "",
)
def test_wrong_input_is_refused_and_nothing_is_written(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "run"), *SMALL, *arguments])
    assert isinstance(result.exception, OffaxisError), result.output
    assert said in str(result.exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [["--devices", "0"], ["--devices", "-2"], ["--nodes", "0"], ["--seed", "-1"]])
def test_numbers_out_of_range_are_a_matter_of_usage(tmp_path: Path, words: list[str]) -> None:
    result = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "run"), *SMALL, *words])
    assert result.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_folder_without_classes_cannot_be_trained_on(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "mine" / "train").mkdir(parents=True)
    Image.new("L", (8, 8)).save(tmp_path / "mine" / "train" / "a.png")
    result = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "run"), "--id", str(tmp_path / "mine")])
    assert isinstance(result.exception, OffaxisError)
    assert "at least two classes" in str(result.exception)


def test_the_program_prints_an_error_without_a_traceback_and_exits_with_2(tmp_path: Path) -> None:
    done = offaxis("train", "--out", str(tmp_path / "run"), *SMALL, "--network", "resnet-50")
    assert done.returncode == 2
    assert done.stderr.startswith("error: Expected a network such as wrn-28-10")
    assert "Traceback" not in done.stderr
    unknown = offaxis("train", "--out", str(tmp_path), "--bogus")
    assert unknown.returncode == 2
    assert "Traceback" not in unknown.stderr


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = CliRunner().invoke(app, ["train", "--out", str(tmp_path), *SMALL, "--resume"])
    assert isinstance(result.exception, OffaxisError)
    assert "holds other files" in str(result.exception)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounting a small disk needs root")
def test_a_full_disk_is_said_so_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False, capture_output=True
    ).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        wanted = ["--id", "small-digits", "--network", "wrn-10-1", "--epochs", "2", "--quiet"]
        done = offaxis("train", "--out", str(disk / "run"), *wanted)  # a checkpoint takes 0.6 MB; beside the old, 1.2
        assert done.returncode == 2, done.stderr
        assert "disk is full" in done.stderr
        assert "Traceback" not in done.stderr
        assert sorted(p.name for p in (disk / "run").iterdir()) == ["checkpoint.safetensors", "log.jsonl", "run.json"]
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        resumed = CliRunner().invoke(app, ["train", "--out", str(disk / "run"), *wanted, "--resume"])
        assert resumed.exit_code == 0, resumed.output
    finally:
        subprocess.run(["umount", disk], check=False)


def test_version() -> None:
    assert re.fullmatch(r"offaxis \d+\.\d+\.\d+\n", offaxis("--version").stdout)


def test_progress_is_plain_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    loud = [word for word in SMALL if word != "--quiet"]
    done = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "run"), *loud])
    assert done.exit_code == 0, done.stderr
    for part in ("loss", "accuracy", "lr", "scale", "images/s", "s left", "The network is in"):
        assert part in done.stderr
    assert "\x1b" not in done.stderr
    quiet = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "other"), *SMALL])
    assert quiet.exit_code == 0
    assert "images/s" not in quiet.stderr


OWN = """
import torch
import offaxis

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Conv2d(1, 8, 3, 2)
        self.fc = torch.nn.Linear(8, 10)

    def forward(self, images):
        return self.fc(self.body(images).relu().mean((2, 3)))

def network():
    return offaxis.attach(Own())

def pair():
    return offaxis.Paired(network(), network())
"""


@pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
def test_a_network_of_ones_own_is_trained_evaluated_and_bundled(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN)
    folder, network = tmp_path / "run", f"{own}:network"

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, list(words), catch_exceptions=False, env={"OFFAXIS_DATA": "/nowhere"})

    words = ["train", "--out", str(folder), *SMALL[:2], "--epochs", "1", "--quiet", "--network"]
    assert run(*words, network).exit_code == 0
    assert json.loads((folder / "run.json").read_text())["command"] == ["offaxis", *words, network]
    store = tmp_path / "store"
    common = ["--ood", "letters", "--images", "40", "--detectors", "cosine", "--quiet", "--out", str(store)]
    assert run("evaluate", str(folder), "--network", network, *common).exit_code == 0
    [result] = Store(store).results()
    assert result.command == ("offaxis", "evaluate", str(folder), "--network", network, *common)
    bundle = str(tmp_path / "x.oax")
    same = ["--network", network]
    assert run("bundle", str(folder), *same, "--calibrate", "small-digits", "--out", bundle).exit_code == 0
    assert run("evaluate", bundle, "--id", "small-digits", *same, *common).exit_code == 0
    assert len(Store(store).results()) == 1  # the same weights
    for more in (["--head", "linear"], ["--scale", "2"], ["--dropout", "0.1"]):
        with pytest.raises(ArgumentError, match="which has its own"):
            run("train", "--out", str(tmp_path / "other"), *SMALL, "--network", network, *more)
    with pytest.raises(ArgumentError, match="one Classifier"):
        run("train", "--out", str(tmp_path / "other"), *SMALL, "--network", f"{own}:pair")
    assert not (tmp_path / "other").exists()


@pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
def test_a_frozen_network_another_seed_and_a_network_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    same = ["train", "--id", "small-digits", "--epochs", "1", "--quiet"]
    base, random = str(tmp_path / "base"), ["--network", "wrn-10-1-half"]
    for option in ("--freeze", "--unfreeze=group3"):
        refused = CliRunner().invoke(app, [*same, *random, option, "--out", base]).exception
        assert isinstance(refused, ArgumentError)
        assert "wrn-10-1-half starts with random weights" in str(refused)
    assert CliRunner().invoke(app, [*same, *random, "--out", base]).exit_code == 0
    frozen = [*same, "--from", base, "--freeze"]
    done = CliRunner().invoke(app, [word for word in frozen if word != "--quiet"] + ["--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert "Held-out accuracy" in done.stderr
    assert "That is poor" in done.stderr
    assert "359 images" in done.stderr
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 2  # features of training and of test images
    record = json.loads((tmp_path / "a" / "run.json").read_text())["settings"]
    assert (record["frozen"], record["recipe"]["name"]) == (True, "frozen")
    words = [
        *same,
        "--from",
        str(tmp_path / "a"),
        "--head",
        "linear",
        "--unfreeze",
        "blocks",
        "--out",
        str(tmp_path / "b"),
    ]
    done = CliRunner().invoke(app, words)
    if isinstance(done.exception, ArgumentError):  # the message names the layers
        assert "outermost layers" in str(done.exception)
        layer = str(done.exception).partition("outermost layers are ")[2].partition(",")[0]
        done = CliRunner().invoke(app, [layer if word == "blocks" else word for word in words])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "b" / "run.json").read_text())["settings"]
    assert (record["head"]["name"], record["recipe"]["name"]) == ("linear", "finetune")
    for words in (
        ["--views", "2"],
        ["--freeze", "--unfreeze", "blocks"],
        ["--freeze", "--leave-out", "0/2"],
        ["--freeze", "--clip", "1.5"],
        ["--freeze", "--sync-bn"],
        ["--freeze", "--jitter", "0.2"],
        ["--dropout", "0.1"],
        ["--unfreeze", ""],
    ):
        assert isinstance(
            CliRunner().invoke(app, [*same, "--from", base, *words, "--out", str(tmp_path / "c")]).exception,
            ArgumentError,
        ), words
    assert not (tmp_path / "c").exists()
