"""One plan of unique commands, run side by side: in the order of what they need, on devices, by Ray and by SLURM's arrays."""

import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from offaxis.cli import app
from offaxis.errors import RunError
from offaxis.evaluation import Store
from offaxis.paper.commands import Command, Reproduction, TrainCommand
from offaxis.paper.items import ITEMS, paper_items
from offaxis.paper.launch import run_graph, write_slurm
from offaxis.paper.settings import SCALES, TINY

SOURCES = os.pathsep.join(sys.path)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *words], env={"COLUMNS": "300", "OFFAXIS_DATA": "/nowhere"})


def steps_of(name: str, folder: Path) -> list[Command]:
    chain = Reproduction(TINY, folder, folder / "runs")
    every = [step for item in paper_items(name).values() for step in item.steps(chain)]
    return list({step.words: step for step in every}.values())


@pytest.mark.parametrize("scale", list(SCALES))
def test_all_is_one_plan_of_unique_commands(scale: str, tmp_path: Path) -> None:
    words = ("--scale", scale, "--list", "--out", str(tmp_path))
    lines = run("all", *words).output.splitlines()
    alone = [line for name in ITEMS for line in run(name, *words).output.splitlines()]
    assert set(lines) == set(alone)
    assert len(lines) == len(set(lines)) < len(alone)
    kinds = [line.split()[1] for line in lines]
    assert kinds == sorted(kinds, reverse=True)  # trainings first


def test_commands_begin_when_their_networks_are_trained(tmp_path: Path) -> None:
    steps = steps_of("one-vs-one", tmp_path)
    trained: list[str] = []
    most = [0]
    running: dict[str, Future[int]] = {}

    def submit(step: Command, device: str) -> "Future[int]":
        assert device in ("a", "b")
        needed = {path.parent.name for path in step.needs if path.name == "model.safetensors"}
        assert needed <= set(trained)
        future: Future[int] = Future()
        running[step.name] = future
        most[0] = max(most[0], len(running))
        if len(running) == 2 or step is steps[-1]:  # the first that began ends
            name = next(iter(running))
            running.pop(name).set_result(0)
            trained.append(name)
        return future

    class Ending(list[str]):
        """Sentences; each lets one more command end."""

        def __call__(self, text: str) -> None:
            self.append(text)
            if running:
                name = next(iter(running))
                running.pop(name).set_result(0)
                trained.append(name)

    said = Ending()
    run_graph(steps, submit, ["a", "b"], said)
    assert len(said) == len(steps) == len(trained)
    assert most[0] == 2
    assert all(step.record.exists() for step in steps if not isinstance(step, TrainCommand))


def test_what_needs_a_failed_command_is_left_out_and_said(tmp_path: Path) -> None:
    steps = steps_of("one-vs-one", tmp_path)
    bad, ran = next(step.name for step in steps if "cosine" in step.name), list[str]()

    def submit(step: Command, device: str) -> "Future[int]":
        ran.append(step.name)
        future: Future[int] = Future()
        future.set_result(int(step.name == bad))
        return future

    with pytest.raises(RunError, match=f"2 of {len(steps)} commands failed.*{bad}"):
        run_graph(steps, submit, ["auto"], lambda _: None)
    assert len(ran) == len(steps) - 1


def sbatch(folder: Path) -> None:
    """Write a stand-in for SLURM's sbatch: it runs every task of the array at once, and prints a number."""
    (folder / "sbatch").write_text(
        '#!/bin/bash\nset -e\necho "$@" >> sbatch.log\n'
        "while [[ $1 == --* ]]; do [[ $1 == --array=* ]] && n=${1#--array=1-}; shift; done\n"
        'for ((i = 1; i <= n; i++)); do SLURM_ARRAY_TASK_ID=$i bash "$@" >> tasks.log 2>&1; done\necho 4711\n'
    )
    (folder / "sbatch").chmod(0o755)


def test_slurm_gets_an_array_of_trainings_and_then_one_of_evaluations(tmp_path: Path) -> None:
    steps = steps_of("one-vs-one", tmp_path)
    script = write_slurm(steps, tmp_path / "slurm")
    tools = tmp_path / "bin"
    tools.mkdir()
    sbatch(tools)
    (tools / "offaxis").write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/called\n')
    (tools / "offaxis").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", script, "--time=1:00"], check=True, env={**os.environ, "PATH": path})
    trainings = sum(isinstance(step, TrainCommand) for step in steps)
    asked = (tmp_path / "slurm" / "sbatch.log").read_text().splitlines()
    assert asked == [
        f"--parsable --array=1-{trainings} --time=1:00 job.sh trainings.txt",
        f"--parsable --array=1-{len(steps) - trainings} --dependency=afterany:4711 --time=1:00 job.sh evaluations.txt",
    ]
    called = (tmp_path / "called").read_text().splitlines()
    assert sorted(called) == sorted(" ".join(step.words) for step in steps)
    assert all(step.record.exists() for step in steps if not isinstance(step, TrainCommand))


def check_outcome(done: Result, folder: Path) -> None:
    assert done.exit_code == 0, (done.output, done.exception)
    assert (folder / "histograms" / "histograms.svg").exists()
    assert len(Store.existing(folder / "results").results()) == 4
    again = run("histograms", "--scale", "tiny", "--out", str(folder), "--dry-run")
    assert "Nothing is left" in again.output


@pytest.mark.slow
def test_two_devices_train_and_evaluate_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    words = ("histograms", "--scale", "tiny", "--out", str(tmp_path), "--devices", "cpu,cpu")
    check_outcome(run(*words), tmp_path)
    assert len(list((tmp_path / "logs").iterdir())) == 4


@pytest.mark.scale
def test_ray_trains_and_evaluates_on_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    words = ("histograms", "--scale", "tiny", "--out", str(tmp_path), "--launcher", "ray", "--devices", "cpu,cpu")
    check_outcome(run(*words), tmp_path)
