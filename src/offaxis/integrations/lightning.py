"""A callback for Lightning: OOD AUROC after each epoch, calibration at the end of training."""

from typing import Any

from offaxis.errors import MissingPackageError
from offaxis.integrations import LoopCalibration

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError as error:
        raise MissingPackageError(
            "offaxis.integrations.lightning needs Lightning, which is not installed: pip install lightning."
        ) from error


class CalibrateOOD(LoopCalibration, Callback):  # type: ignore[misc]  # Lightning is not seen by the type checker
    """Log AUROC on OOD loaders after each epoch; fit the detector, calibrate and save at the end of training.

    The LightningModule keeps a Classifier of ``offaxis.attach`` in an attribute. Arguments and attributes are those of
    :class:`offaxis.integrations.LoopCalibration`. The weights at the end of training are calibrated; for those of a
    checkpoint call ``calibrate(module)`` with the loaded module.

    Example::

        ready = CalibrateOOD(held_out, preprocessing=preprocessing, ood={"letters": letters}, path="digits.oax")
        Trainer(max_epochs=3, callbacks=[ready]).fit(module, training)
        ready.model.predict("photo.jpg")
    """

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log ``ood_auroc/NAME`` of each OOD loader."""
        pl_module.log_dict(self.evaluate(pl_module, trainer.train_dataloader))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Calibrate, in the first process where there are several."""
        if trainer.is_global_zero:
            self.calibrate(pl_module, trainer.train_dataloader)
