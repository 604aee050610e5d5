"""A Classifier for Hugging Face's Trainer, and a callback: OOD AUROC after each epoch, calibration at the end."""

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from offaxis.errors import MissingPackageError
from offaxis.integrations import LoopCalibration
from offaxis.networks.combine import AnyNetwork

try:
    from transformers import TrainerCallback
    from transformers.modeling_outputs import ImageClassifierOutput
except ImportError as error:
    raise MissingPackageError(
        "offaxis.integrations.transformers needs transformers, which is not installed: pip install transformers accelerate."
    ) from error


class TrainerClassifier(nn.Module):
    """A Classifier as the Trainer takes it: ``forward(pixel_values, labels)`` returns loss and logits.

    Args:
        classifier: what ``offaxis.attach`` returned.
        loss: (logits (N, C), labels (N,)) -> the loss; None takes that of the head.
    """

    def __init__(self, classifier: AnyNetwork, loss: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.classifier = classifier
        self.loss = loss

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> Any:
        """Compute an ImageClassifierOutput with logits (N, C), and the loss where there are labels."""
        if self.loss is None:
            found = self.classifier(pixel_values, labels=labels)
            return ImageClassifierOutput(logits=found) if labels is None else ImageClassifierOutput(**found)
        logits = self.classifier(pixel_values)
        return ImageClassifierOutput(loss=None if labels is None else self.loss(logits, labels), logits=logits)


class CalibrateOODCallback(LoopCalibration, TrainerCallback):  # type: ignore[misc]  # transformers is not seen by the type checker
    """Compute AUROC on OOD loaders after each epoch; fit the detector, calibrate and save at the end of training.

    Arguments and attributes are those of :class:`offaxis.integrations.LoopCalibration`. AUROCs are in ``history`` and in
    ``trainer.state.log_history`` as ``ood_auroc/NAME``, after each epoch and each evaluation, and among the metrics of an
    evaluation as ``eval_ood_auroc/NAME``: ``metric_for_best_model="ood_auroc/NAME"`` keeps the best weights by it. After
    ``set_trainer`` the other callbacks are told too, such as those of TensorBoard, W&B and MLflow. Batches may be dicts with
    ``pixel_values`` and ``labels``.

    Example::

        ready = CalibrateOODCallback(held_out, preprocessing=preprocessing, ood={"letters": letters}, path="digits.oax")
        trainer = Trainer(TrainerClassifier(classifier), arguments, train_dataset=training, callbacks=[ready])
        ready.set_trainer(trainer)
        trainer.train()
        ready.model.predict("photo.jpg")
    """

    trainer: Any = None
    """The Trainer that AUROCs are logged by."""
    _latest: tuple[int, dict[str, float]] | None = None
    """The step of the last AUROCs; None outside of a training."""

    def set_trainer(self, trainer: Any) -> None:
        """Log AUROCs by this Trainer, so that they reach the ``on_log`` of each of its callbacks, and their trackers."""
        self.trainer = trainer

    def on_train_begin(self, args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Warn where trackers would not see the AUROCs."""
        self._latest = (-1, {})
        if self.ood and args.report_to and self.trainer is None:
            warnings.warn(
                f"{', '.join(args.report_to)} will not see ood_auroc: a callback does not know its Trainer. Call "
                "ready.set_trainer(trainer) before trainer.train().",
                UserWarning,
                stacklevel=2,
            )

    def on_epoch_end(
        self, _args: Any, state: Any, control: Any, *, model: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Log ``ood_auroc/NAME`` of each OOD loader."""
        self._log(state, control, model, train_dataloader)

    def on_evaluate(
        self,
        _args: Any,
        state: Any,
        control: Any,
        *,
        metrics: dict[str, float],
        model: Any,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Add ``eval_ood_auroc/NAME`` of each OOD loader to the metrics of an evaluation during training."""
        if self._latest is not None:
            values = self._log(state, control, model, train_dataloader)
            metrics.update({f"eval_{name}": value for name, value in values.items()})

    def _log(self, state: Any, control: Any, model: Any, train_dataloader: Any) -> dict[str, float]:
        """Compute the AUROCs, once a step, and log them."""
        assert self._latest is not None
        step, values = self._latest
        if step == state.global_step:
            return values
        values = self.evaluate(model, train_dataloader)
        self._latest = (state.global_step, values)
        if values and self.trainer is None:
            state.log_history.append({**values, "epoch": state.epoch, "step": state.global_step})
        elif values:
            pending = control.should_log  # of the loss, which a log takes for done
            self.trainer.log(dict(values))
            control.should_log = pending
        return values

    def on_train_end(
        self, _args: Any, state: Any, _control: Any, *, model: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Calibrate, in the first process where there are several."""
        self._latest = None
        if state.is_world_process_zero:
            self.calibrate(model, train_dataloader)
