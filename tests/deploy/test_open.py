"""Networks from folders: what they are called, and which go together."""

from pathlib import Path

import pytest
import torch

from offaxis.data.embedded import small_digits
from offaxis.errors import ArgumentError, EvaluationError, RunError
from offaxis.evaluation import leave_out_ensemble, open_network
from offaxis.networks import wide_resnet
from offaxis.networks.ensemble import LeaveOutEnsemble, folds
from offaxis.training import Recipe, train
from offaxis.training.leave_out import MarginEntropyLoss


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three networks of a leave-out ensemble."""
    room = tmp_path_factory.mktemp("leave-out")
    recipe = Recipe(epochs=1, batch_size=128, crop=0, flip=False)
    for k, fold in enumerate(folds(10, 3)):
        torch.manual_seed(k)
        network = wide_resnet(10, 1, in_channels=1, head="linear", stem_stride=2)
        train(network, small_digits("train"), recipe, loss=MarginEntropyLoss(fold, 10), out=room / f"{k}", quiet=True)
    return [room / f"{k}" for k in range(3)]


def test_networks_of_a_leave_out_ensemble_are_called_so(members: list[Path]) -> None:
    found = [open_network(path) for path in members]
    assert {subject.label for subject in found} == {"wrn-10-1-half linear leave-out"}
    team = leave_out_ensemble(found)
    assert team.label == "wrn-10-1-half linear leave-out x3"
    assert isinstance(team.network, LeaveOutEnsemble)


def test_they_must_come_in_the_order_of_what_they_leave_out(members: list[Path]) -> None:
    found = [open_network(path) for path in members]
    with pytest.raises(ArgumentError, match=r"--leave-out 1/3 in place 1, which leaves out classes .* in their order"):
        leave_out_ensemble([found[0], found[2], found[1]])
    with pytest.raises(ArgumentError, match="--leave-out 0/2"):
        leave_out_ensemble(found[:2])


def test_a_folder_is_no_python_file_whatever_its_name(tmp_path: Path) -> None:
    for name in ("my.python.exps/run", "notes.py.old/run", "run.py"):
        (tmp_path / name).mkdir(parents=True)
        with pytest.raises(RunError, match="run"):  # it is read as a training run, and is none
            open_network(tmp_path / name)
    with pytest.raises(EvaluationError, match=r"mine\.py is not there"):
        open_network(tmp_path / "my.python.exps" / "mine.py:network")
    with pytest.raises(EvaluationError, match="which is not there"):
        open_network(tmp_path / "mine.pyc")
