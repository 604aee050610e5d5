"""A Classifier for Hugging Face's Trainer, and a callback: OOD AUROC after each epoch, calibration at the end."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

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
        loss: (logits (N, C), labels (N,)) -> the loss.
    """

    def __init__(self, classifier: AnyNetwork, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy) -> None:
        super().__init__()
        self.classifier = classifier
        self.loss = loss

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> Any:
        """Compute an ImageClassifierOutput with logits (N, C), and the loss where there are labels."""
        logits = self.classifier(pixel_values)
        return ImageClassifierOutput(loss=None if labels is None else self.loss(logits, labels), logits=logits)


class CalibrateOODCallback(LoopCalibration, TrainerCallback):  # type: ignore[misc]  # transformers is not seen by the type checker
    """Compute AUROC on OOD loaders after each epoch; fit the detector, calibrate and save at the end of training.

    Arguments and attributes are those of :class:`offaxis.integrations.LoopCalibration`. AUROCs are in ``history`` and in
    ``trainer.state.log_history`` as ``ood_auroc/NAME``. Batches may be dicts with ``pixel_values`` and ``labels``.

    Example::

        ready = CalibrateOODCallback(held_out, preprocessing=preprocessing, ood={"letters": letters}, path="digits.oax")
        Trainer(TrainerClassifier(classifier), arguments, train_dataset=training, callbacks=[ready]).train()
        ready.model.predict("photo.jpg")
    """

    def on_epoch_end(
        self, _args: Any, state: Any, _control: Any, *, model: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Add ``ood_auroc/NAME`` of each OOD loader to the log."""
        values = self.evaluate(model, train_dataloader)
        if values:
            state.log_history.append({**values, "epoch": state.epoch, "step": state.global_step})

    def on_train_end(
        self, _args: Any, state: Any, _control: Any, *, model: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Calibrate, in the first process where there are several."""
        if state.is_world_process_zero:
            self.calibrate(model, train_dataloader)
