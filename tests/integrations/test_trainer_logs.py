"""The AUROCs of a Trainer's callback reach other callbacks, trackers and the choice of the best weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import offaxis
from offaxis.data import Normalise, Preprocessing
from tests.operators import import_library

pytestmark = [pytest.mark.thirdparty, pytest.mark.filterwarnings("ignore:The class of")]  # labels mean nothing here


def items(count: int, shift: float) -> Any:
    draw = torch.Generator().manual_seed(count)
    return [{"pixel_values": torch.rand(1, 8, 8, generator=draw) + shift, "labels": i % 3} for i in range(count)]


def started(folder: Path, follows: bool = True, **options: Any) -> tuple[Any, list[dict[str, float]], Any]:
    """Train for three epochs; return the Trainer, what another callback was told before ours, and our callback."""
    transformers = import_library("transformers")
    from offaxis.integrations.transformers import CalibrateOODCallback, TrainerClassifier

    told: list[dict[str, float]] = []

    class Tracker(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            told.append(dict(logs))

    torch.manual_seed(0)
    classifier = offaxis.attach(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)))
    ready = CalibrateOODCallback(
        DataLoader(items(40, 0.0), batch_size=20),
        preprocessing=Preprocessing((1, 8, 8), Normalise((0.0,), (1.0,))),
        ood={"far": DataLoader(items(30, 3.0), batch_size=20)},
    )
    arguments = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=16,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        **{"report_to": "none", "logging_strategy": "epoch", "save_strategy": "no", **options},
    )
    trainer = transformers.Trainer(
        TrainerClassifier(classifier),
        arguments,
        train_dataset=items(64, 0.0),
        eval_dataset=items(33, 0.0),
        callbacks=[Tracker(), ready],
    )
    if follows:
        ready.set_trainer(trainer)
    trainer.evaluate()  # before the training there is nothing to calibrate
    trainer.train()
    return trainer, told, ready


def test_other_callbacks_are_told_and_the_loss_is_logged_as_before(tmp_path: Path) -> None:
    trainer, told, ready = started(tmp_path)
    logged = [logs["ood_auroc/far"] for logs in told if "ood_auroc/far" in logs]
    assert logged == [values["ood_auroc/far"] for values in ready.history]
    assert len(logged) == sum("loss" in logs for logs in told) == 3
    history = [(line["epoch"], line["step"]) for line in trainer.state.log_history if "ood_auroc/far" in line]
    assert history == [(1.0, 4), (2.0, 8), (3.0, 12)]


def test_the_best_weights_are_chosen_and_calibrated(tmp_path: Path) -> None:
    trainer, _, ready = started(
        tmp_path,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="ood_auroc/far",
        greater_is_better=True,
    )
    values = [each["ood_auroc/far"] for each in ready.history]
    assert len(values) == 3  # once an epoch, though each is asked for twice
    assert trainer.state.best_metric == max(values)
    assert ready.model is not None


def test_evaluations_by_steps_have_values_of_their_own(tmp_path: Path) -> None:
    _, told, ready = started(tmp_path, eval_strategy="steps", eval_steps=3)
    assert len(ready.history) == sum("ood_auroc/far" in logs for logs in told) == 6  # steps 3, 4, 6, 8, 9, 12


def test_it_is_said_where_trackers_would_see_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    integration = import_library("transformers.integrations.integration_utils")
    monkeypatch.setattr(integration, "get_reporting_integration_callbacks", lambda _: [])
    trainer_module = import_library("transformers.trainer")
    monkeypatch.setattr(trainer_module, "get_reporting_integration_callbacks", lambda _: [])
    with pytest.warns(UserWarning, match=r"tensorboard will not see ood_auroc.*ready\.set_trainer\(trainer\)"):
        trainer, _, ready = started(tmp_path, follows=False, report_to=["tensorboard"])
    assert sum("ood_auroc/far" in line for line in trainer.state.log_history) == len(ready.history) == 3


def test_tensorboard_has_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "runs"))
    _, _, ready = started(tmp_path / "out", report_to=["tensorboard"])
    expected = [values["ood_auroc/far"] for values in ready.history]
    assert len(expected) == 3
    [events] = (tmp_path / "runs").rglob("events.out.tfevents.*")
    board = accumulators.EventAccumulator(str(events)).Reload()
    assert [point.value for point in board.Scalars("train/ood_auroc/far")] == pytest.approx(expected)
