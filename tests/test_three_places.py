"""A built-in detector or head is a file, a line in a table of names and its reference test: nothing else knows of it."""

import os
import subprocess
import sys
from pathlib import Path

DETECTOR = """
from offaxis.detectors.base import Detector


class Gap(Detector):
    name, paper = "gap", "https://example.org"

    def forward(self, outputs):
        best = outputs.logits.topk(2, dim=1).values
        return best[:, 1] - best[:, 0]
"""
HEAD = """
from offaxis.heads.linear import LinearHead


class Halved(LinearHead):
    def __init__(self, in_features, num_classes):
        super().__init__(in_features, num_classes)
        self.arguments = {}

    def loss(self, out, labels):
        return super().loss(out, labels) / 2
"""
SCRIPT = """
import sys

from offaxis import names

names.NATIVE.data["gap"] = "gap:Gap"
names.HEADS.data["halved"] = "halved:Halved"
from offaxis.__main__ import start

sys.argv = ["offaxis", *sys.argv[1:]]
start()
"""


def test_a_detector_and_a_head_are_trained_bundled_and_listed_once_they_are_in_the_table(tmp_path: Path) -> None:
    for name, text in (("gap", DETECTOR), ("halved", HEAD), ("run", SCRIPT)):
        (tmp_path / f"{name}.py").write_text(text)

    def offaxis(*words: str) -> str:
        environment = {**os.environ, "COLUMNS": "250", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "run.py", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    assert "halved" in offaxis("train", "--help")
    offaxis(
        "train",
        "--id",
        "digits",
        "--network",
        "convnet-8",
        "--head",
        "halved",
        "--epochs",
        "1",
        "--quiet",
        "--out",
        "r",
    )
    offaxis("bundle", "r", "--calibrate", "digits", "--detector", "gap", "--out", "x.oax")
