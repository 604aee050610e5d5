"""Heads of one's own: named as a file in the shell, kept in records, and opened again elsewhere; names that were meant."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import offaxis
from offaxis.cli import app
from offaxis.data import Normalise, Preprocessing
from offaxis.errors import ArgumentError, BundleError
from offaxis.heads import HEADS
from offaxis.integrations import LoopCalibration

from .small import SHORT, few

pytestmark = pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
OWN = """
from torch.nn import functional as F
import torch
import offaxis

class Warm(offaxis.LinearHead):
    def __init__(self, in_features, num_classes, temperature=2.0):
        super().__init__(in_features, num_classes)
        self.temperature = temperature

    @property
    def arguments(self):
        return {"temperature": self.temperature}

    def outputs(self, features):
        found = super().outputs(features)
        return found._replace(logits=found.logits / self.temperature)

def network(num_classes):
    return offaxis.networks.wide_resnet(10, 1, num_classes, Warm, in_channels=1)
"""


@pytest.fixture
def own(tmp_path: Path) -> Any:
    (tmp_path / "heads.py").write_text(OWN)
    yield f"{tmp_path / 'heads.py'}:Warm"
    HEADS.pop(f"{tmp_path / 'heads.py'}:Warm", None)


def test_a_head_of_a_file_is_trained_recorded_and_opened_elsewhere(own: str, tmp_path: Path) -> None:
    words = ["train", "--id", "small-digits", "--network", "wrn-10-1", "--head", own, "--recipe", "laptop"]
    words += ["--epochs", "1", "--out", str(tmp_path / "run"), "--device", "cpu", "--quiet"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    HEADS.pop(own)  # as in another process
    opened = offaxis.open_network(tmp_path / "run")
    assert opened.head == {"name": own, "temperature": 2.0}
    assert opened.label.startswith("wrn-10-1")
    bundle = tmp_path / "x.oax"
    held_out = offaxis.load_images("small-digits", "test")
    offaxis.Model.calibrated(opened, held_out, detector="energy").save(bundle)
    expected = offaxis.load(bundle).predict(held_out.batch(torch.arange(5)))
    HEADS.pop(own)
    with pytest.raises(BundleError, match="HEADS.name. = Class"):
        offaxis.load(bundle)
    given = offaxis.load(bundle, network=f"{tmp_path / 'heads.py'}:network")
    assert given.predict(held_out.batch(torch.arange(5))) == expected
    script = f"import offaxis, heads; offaxis.heads.HEADS[{own!r}] = heads.Warm; print(offaxis.load({str(bundle)!r}).classes)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "'9'" in found.stdout


def test_a_run_of_an_own_network_is_opened_with_the_network(tmp_path: Path) -> None:
    def bare() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    trained = offaxis.train(offaxis.attach(bare()), few(), SHORT, out=tmp_path / "run", quiet=True)
    images = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        expected = trained.classifier(images)
        for network in (bare(), offaxis.attach(bare())):
            assert torch.equal(offaxis.open_network(tmp_path / "run", network=network).network(images), expected)
    with pytest.raises(ArgumentError, match="a run or a bundle beside `network`"):
        offaxis.open_network("wrn-10-1", num_classes=3, network=bare())


def test_names_that_were_meant() -> None:
    with pytest.raises(ArgumentError, match=r"Did you mean cosine\?"):
        offaxis.attach(nn.Sequential(nn.Linear(4, 3)), "cosin")  # type: ignore[arg-type]
    done = CliRunner().invoke(app, ["train", "--id", "small-digits", "--head", "liner", "--out", "nowhere"])
    assert done.exit_code != 0
    assert "Did you mean linear?" in str(done.exception)
    loader: Any = DataLoader([torch.rand(1, 8, 8)])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="Did you mean energy"):
        LoopCalibration(loader, preprocessing=Preprocessing((1, 8, 8), Normalise((0.5,), (0.5,))), detector="enrgy")
