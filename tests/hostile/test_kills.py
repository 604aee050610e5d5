"""Processes killed at random moments after their first step, again and again, until they are through: nothing is lost."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file

from offaxis.evaluation import Store
from tests.hostile.child import LONG, PATIENCE, SEEDS, seed_of, times
from tests.models import World, write_images
from tests.waiting import eventually

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(LONG * PATIENCE)]
TRAIN = ["train", "--id", "small-digits", "--network", "wrn-10-1", "--epochs", "6", "--log-every", "1", "--quiet"]


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "offaxis", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(words: list[str]) -> None:
    process = start(words)
    _, stderr = process.communicate(timeout=1500)
    assert process.returncode == 0, stderr


def _changed_or_over(process: subprocess.Popen[str], written: Callable[[], int], before: int) -> bool:
    return process.poll() is not None or written() != before


def kill_until_done(words: list[str], resume: list[str], written: Callable[[], int], chance: random.Random) -> int:
    """Kill the command at a random moment after it has written something, a few times, then let it finish.

    Args:
        words: the command.
        resume: what is added to it after the first time.
        written: counts what is on the disk.
        chance: where the moments come from.

    Returns:
        How often it was killed.
    """
    kills = 0
    for attempt in range(times(4)):
        before = written()
        process = start(words if attempt == 0 else [*words, *resume])
        assert eventually(partial(_changed_or_over, process, written, before), 600)
        time.sleep(chance.uniform(0, 0.8))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        _, stderr = process.communicate(timeout=300)
        assert process.returncode in (0, -signal.SIGKILL), stderr
    finish([*words, *resume])
    print(f"killed {kills} times")
    return kills


@pytest.mark.parametrize("seed", SEEDS)
def test_training(tmp_path: Path, seed: str) -> None:
    log = tmp_path / "broken" / "log.jsonl"
    finish([*TRAIN, "--out", str(tmp_path / "whole")])
    kills = kill_until_done(
        [*TRAIN, "--out", str(tmp_path / "broken")],
        ["--resume"],
        lambda: log.stat().st_size if log.exists() else 0,
        random.Random(seed_of(seed)),
    )
    assert kills
    whole, broken = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert all(whole[name].equal(broken[name]) for name in whole)
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "broken")]
    numbers = [[r["step"] for r in map(json.loads, lines) if r["kind"] == "step"] for lines in logs]
    assert numbers[0] == numbers[1] == list(range(1, 1 + len(numbers[0])))


@pytest.mark.parametrize("seed", SEEDS)
def test_scoring(bundle: Path, world: World, tmp_path: Path, seed: str) -> None:
    for number, path in enumerate(write_images(tmp_path / "images", world.test, 100) * 20):
        (tmp_path / "images" / f"copy{number:05}.png").write_bytes(path.read_bytes())
    words = ["score", str(bundle), str(tmp_path / "images"), "--batch", "4", "--quiet", "--out"]
    journal = tmp_path / "broken.jsonl.journal"
    finish([*words, str(tmp_path / "whole.jsonl")])
    kills = kill_until_done(
        [*words, str(tmp_path / "broken.jsonl")],
        ["--resume"],
        lambda: journal.stat().st_size if journal.exists() else 0,
        random.Random(seed_of(seed)),
    )
    assert kills
    assert (tmp_path / "broken.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not journal.exists()


@pytest.mark.parametrize("seed", SEEDS)
def test_evaluation(world: World, tmp_path: Path, seed: str) -> None:
    run = str(world.trained.folder)
    words = ["evaluate", run, "--id", "small-digits", "--ood", "letters,uniform", "--quiet", "--out"]
    finish([*words, str(tmp_path / "whole")])
    kills = kill_until_done(
        [*words, str(tmp_path / "broken")],
        [],
        lambda: sum(1 for _ in (tmp_path / "broken").rglob("*")),
        random.Random(seed_of(seed)),
    )
    assert kills
    whole, broken = Store(tmp_path / "whole").results(), Store(tmp_path / "broken").results()
    assert {r.key: r.metrics for r in whole} == {r.key: r.metrics for r in broken}
    assert whole


@pytest.mark.parametrize("words", [["data", "list"], ["train", "--id", "small-digits", "--out"]])
def test_ctrl_c_at_any_moment_gives_no_traceback(tmp_path: Path, words: list[str]) -> None:
    program = "import sys; print('begun', flush=True); from offaxis.__main__ import start; start()"
    chance = random.Random(seed_of("new"))
    for number in range(times(12)):
        line = [*words, str(tmp_path / str(number))] if words[-1] == "--out" else words
        process = subprocess.Popen(
            [sys.executable, "-c", program, *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.02, 4))
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=300)
        assert "Traceback" not in stderr, stderr
