"""A training in a folder: it goes on where it stopped, with the same settings only, and loses nothing."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from offaxis import Classifier, attach, train
from offaxis.cli import app
from offaxis.data import Normalise
from offaxis.errors import (
    CheckpointError,
    RunError,
    TrainingStopped,
)
from offaxis.files import lock, unlock, write_text
from offaxis.heads.batch_norm import synchronise
from offaxis.options import TrainOptions
from offaxis.training import load_run
from offaxis.training.leave_out import MarginEntropyLoss
from offaxis.training.record import RunFolder, open_run

from .small import SHORT, fabric, few, frozen, network, same, stop_after, weights

pytestmark = pytest.mark.filterwarnings("ignore:The network has learned next to nothing")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("step", [1, 3, 4, 6])  # in the first epoch, at an epoch's end, in the last
def test_stopped_anywhere_it_goes_on_to_the_same_weights(tmp_path: Path, step: int, how: int) -> None:
    logged, run = RunFolder(tmp_path / "straight", options=TrainOptions(log_every=3)), tmp_path / "run"
    straight = train(network(dropout=0.2), few(), SHORT, seed=1, out=logged, quiet=True)
    with pytest.raises(TrainingStopped, match="Its state is saved: resume it with") as stopped:
        train(
            network(dropout=0.2),
            few(),
            SHORT,
            seed=1,
            out=RunFolder(run, options=TrainOptions(log_every=3)),
            loss=stop_after(step, how),
            quiet=True,
        )
    assert stopped.value.exit_code == 128 + how
    assert f"after step {step} of 8" in str(stopped.value)
    with pytest.raises(RunError, match="is not finished"):
        load_run(run)
    resumed = train(
        network(seed=9, dropout=0.2),
        few(),
        SHORT,
        seed=1,
        out=RunFolder(run, options=TrainOptions(log_every=3)),
        resume=True,
        quiet=True,
    )
    assert same(weights(resumed.classifier), weights(straight.classifier))
    lines = [list(folder.log_records()) for folder in (logged, RunFolder(run))]
    assert [(r["kind"], r["step"]) for r in lines[1]] == [(r["kind"], r["step"]) for r in lines[0]]
    for key in ("loss", "accuracy", "scale"):
        assert [r[key] for r in lines[1]] == pytest.approx([r[key] for r in lines[0]], rel=1e-6)


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.safetensors"])
def test_a_file_of_another_run_is_refused(tmp_path: Path, name: str) -> None:
    for seed in (1, 2):
        train(network(), few(), SHORT.replace(epochs=1), seed=seed, out=tmp_path / f"{seed}", quiet=True)
    (tmp_path / "1" / name).write_bytes((tmp_path / "2" / name).read_bytes())
    again: Any = {"seed": 1, "out": tmp_path / "1", "resume": True, "quiet": True}
    read: Any = partial(train, network(), few(), SHORT.replace(epochs=1), **again)
    with pytest.raises(CheckpointError, match=f"{name} is of another run than .*run.json"):
        load_run(tmp_path / "1") if name.startswith("model") else read()


def test_a_training_that_is_resumed_when_it_has_ended_logs_its_test_once(tmp_path: Path) -> None:
    words = ["train", "--id", "small-digits", "--network", "wrn-10-1", "--recipe", "laptop", "--epochs", "1"]
    words += ["--out", str(tmp_path / "run"), "--device", "cpu", "--quiet"]
    kinds = []
    for more in ([], ["--resume"]):
        done = CliRunner().invoke(app, [*words, *more])
        assert done.exit_code == 0, done.output
        kinds.append([record["kind"] for record in RunFolder(tmp_path / "run").log_records()])
    assert kinds[1] == kinds[0]
    assert kinds[0].count("test") == 1


def test_without_a_folder_a_stop_says_that_nothing_is_kept() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TrainingStopped, match="Nothing was kept"):
        train(network(), few(), SHORT, loss=stop_after(2), quiet=True)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_finished_run_is_loaded_and_trained_no_further(tmp_path: Path) -> None:
    trained = train(network(), few(), SHORT, out=tmp_path / "run", quiet=True)
    loaded = load_run(tmp_path / "run")
    assert same(weights(loaded.classifier), weights(trained.classifier))
    assert loaded.normalise == trained.normalise
    assert loaded.classes == tuple("0123456789")
    assert [r["loss"] for r in loaded.history] == [r["loss"] for r in trained.history]
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    again = train(network(seed=5), few(), SHORT, out=tmp_path / "run", resume=True, quiet=True)
    assert same(weights(again.classifier), weights(trained.classifier))
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == log  # no step was made


def test_a_run_of_a_network_that_is_not_ours_is_loaded_into_one(tmp_path: Path) -> None:
    def other() -> Classifier:
        inner = network()
        return Classifier(inner.backbone, inner.head)

    trained = train(other(), few(), SHORT.replace(epochs=1), out=tmp_path / "run", quiet=True)
    with pytest.raises(RunError, match="into=classifier"):
        load_run(tmp_path / "run")
    loaded = load_run(tmp_path / "run", into=other())
    assert same(weights(loaded.classifier), weights(trained.classifier))
    with pytest.raises(CheckpointError, match="do not fit this network"):
        load_run(tmp_path / "run", into=network(num_classes=4))


def test_a_folder_in_use_is_not_overwritten(tmp_path: Path) -> None:
    train(network(), few(), SHORT.replace(epochs=1), out=tmp_path / "run", quiet=True)
    with pytest.raises(RunError, match="There is a run in .* already"):
        train(network(), few(), SHORT, out=tmp_path / "run", quiet=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("everything")
    with pytest.raises(RunError, match="holds other files"):
        train(network(), few(), SHORT, out=tmp_path / "other", resume=True, quiet=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file"):
        train(network(), few(), SHORT, out=tmp_path / "file", quiet=True)


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    with pytest.raises(TrainingStopped):
        train(network(), few(), SHORT, out=tmp_path / "run", loss=stop_after(4), quiet=True)
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    with (tmp_path / "run" / "run.json").open("rb") as held:
        assert lock(held)  # as the other process has it
        with pytest.raises(RunError, match="Another process is training in"):
            train(network(), few(), SHORT, out=tmp_path / "run", resume=True, quiet=True)
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == log
    assert len(train(network(), few(), SHORT, out=tmp_path / "run", resume=True, quiet=True).history) == 2


def test_of_two_processes_that_begin_at_once_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(file: IO[bytes]) -> bool:
        write_text(tmp_path / "run" / "run.json", "{}")  # by the other, a moment later
        return lock(file)

    monkeypatch.setattr("offaxis.training.record.lock", replaced)
    with pytest.raises(RunError, match="Another process is training in"):
        train(network(), few(), SHORT, out=tmp_path / "run", quiet=True)


def test_a_lock_ends_though_another_process_has_inherited_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    first = (tmp_path / "run.json").open("rb")
    assert lock(first)
    with (
        subprocess.Popen(["sleep", "60"], pass_fds=[first.fileno()]) as worker,
        (tmp_path / "run.json").open("rb") as other,
    ):
        try:
            assert not lock(other)
            unlock(first)
            assert lock(other)
        finally:
            worker.kill()


@pytest.mark.filterwarnings("ignore:This CPU has no instructions for bfloat16")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"recipe": SHORT.replace(learning_rate=0.05)}, r"settings: recipe\.learning_rate was 0\.1 and is now 0\.05\."),
        ({"seed": 8}, "seed was 0 and is now 8"),
        ({"data": few(199)}, "data"),
        ({"classifier": network(num_classes=11)}, "network"),
        ({"normalise": Normalise((0.5,), (0.5,))}, "normalise"),
        (
            {"loss": MarginEntropyLoss([1, 4], 10)},
            r"loss\.left_out was None and is now \[1, 4\].*name was 'cross_ent",
        ),
        ({"classifier": synchronise(network())}, "sync_bn was False and is now True"),
        ({"device": fabric("bf16-mixed")}, "precision was '32-true' and is now 'bf16-mixed'"),
        ({"classifier": frozen()}, "frozen was False and is now True"),
    ],
)
def test_going_on_with_other_settings_is_refused_by_name(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(TrainingStopped):
        train(network(), few(), SHORT, out=tmp_path / "run", loss=stop_after(4), quiet=True)
    settings = {"classifier": network(), "data": few(), "recipe": SHORT, **change}
    with pytest.raises(CheckpointError, match=named):
        train(**settings, out=tmp_path / "run", resume=True, quiet=True)


def test_going_on_with_another_smoothing_is_refused(tmp_path: Path) -> None:
    def loss(smoothing: float) -> nn.Module:
        return nn.CrossEntropyLoss(label_smoothing=smoothing)

    train(network(), few(), SHORT, out=tmp_path / "run", loss=loss(0.1), quiet=True)
    train(network(), few(), SHORT, out=tmp_path / "run", loss=loss(0.1), resume=True, quiet=True)
    with pytest.raises(CheckpointError, match=r"loss\.label_smoothing was 0\.1 and is now 0\.2"):
        train(network(), few(), SHORT, out=tmp_path / "run", loss=loss(0.2), resume=True, quiet=True)


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "foreign", "header"])
def test_a_damaged_or_foreign_checkpoint_is_named(tmp_path: Path, damage: str) -> None:
    run = tmp_path / "run"
    with pytest.raises(TrainingStopped):
        train(network(), few(), SHORT, out=run, loss=stop_after(5), quiet=True)
    path = run / "checkpoint.safetensors"
    whole = path.read_bytes()
    if damage == "foreign":
        from safetensors.torch import save_file

        save_file({"x": torch.zeros(2)}, path)
    else:
        path.write_bytes(
            {
                "cut": whole[: len(whole) // 2],
                "noise": os.urandom(500),
                "empty": b"",
                "header": b"\xff" * 8 + whole[8:],
            }[damage]
        )
    with pytest.raises(CheckpointError, match=str(path)):
        train(network(), few(), SHORT, out=run, resume=True, quiet=True)


def test_the_head_of_a_network_that_is_not_ours_is_part_of_its_settings(tmp_path: Path) -> None:
    def own(head: Any) -> Classifier:
        torch.manual_seed(0)
        return attach(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), head)

    with pytest.raises(TrainingStopped):
        train(own("deconf-c"), few(), SHORT, out=tmp_path / "run", loss=stop_after(4), quiet=True)
    with pytest.raises(CheckpointError, match="similarity"):
        train(own("deconf-e"), few(), SHORT, out=tmp_path / "run", resume=True, quiet=True)


def test_a_finished_run_without_its_checkpoint_is_not_trained_anew(tmp_path: Path) -> None:
    train(network(), few(), SHORT, out=tmp_path / "run", quiet=True)
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    log = (tmp_path / "run" / "log.jsonl").read_text()
    with pytest.raises(RunError, match="is finished"):
        train(network(), few(), SHORT, out=tmp_path / "run", resume=True, quiet=True)
    assert (tmp_path / "run" / "log.jsonl").read_text() == log


def test_what_a_killed_process_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".run.json.x1y2.part").write_text("{")
    train(network(), few(), SHORT, out=tmp_path / "run", resume=True, quiet=True)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "checkpoint.safetensors",
        "log.jsonl",
        "model.safetensors",
        "run.json",
    ]


def test_processes_refuse_together(tmp_path: Path) -> None:
    class First:
        """A fabric of several processes, seen from the first, which alone reads and writes the folder."""

        is_global_zero = True
        sent: list[object] = []  # noqa: RUF012

        def broadcast(self, found: object) -> object:
            self.sent.append(found)
            return found

    class Second(First):
        is_global_zero = False

        def broadcast(self, found: object) -> object:
            assert found is None
            return self.sent[-1]

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("everything")
    for process in (First(), Second()):
        with pytest.raises(RunError, match="holds other files"):
            open_run(process, RunFolder(tmp_path / "run"), {"settings": {}}, True)  # type: ignore[arg-type]
