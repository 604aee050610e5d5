"""Task 8: Lightning: OOD AUROC after each epoch, and a calibrated bundle at the end of training."""

from typing import Any, Literal

import timm
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import offaxis
from offaxis.data import Normalise, Preprocessing
from offaxis.integrations.lightning import CalibrateOOD

PREPROCESSING = Preprocessing((1, 28, 28), Normalise((0.13,), (0.31,)))


class Digits(LightningModule):  # type: ignore[misc]  # Lightning is not seen by the type checker
    """Your module; its network has a cosine head."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = offaxis.attach(timm.create_model("test_resnet", in_chans=1, num_classes=10))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Compute the loss of a batch."""
        images, labels = batch
        return F.cross_entropy(self.classifier(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Decay all weights but the cosine's."""
        return torch.optim.AdamW(self.classifier.parameter_groups(weight_decay=0.01), lr=2e-3)


def load(name: str, part: Literal["train", "test"], count: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Batches of normalised images with labels, as your pipeline has them."""
    images = offaxis.load_images(name, part).subset(torch.arange(count))
    pixels = PREPROCESSING.normalise(images.batch(torch.arange(len(images))))
    labels = torch.zeros(len(images), dtype=torch.long) if images.labels is None else images.labels
    return DataLoader(TensorDataset(pixels, labels), batch_size=64, shuffle=part == "train", drop_last=part == "train")


def main(path: str = "lightning.oax", epochs: int = 3) -> None:
    seed_everything(0, verbose=False)
    ready = CalibrateOOD(
        load("digits", "test", 500),
        preprocessing=PREPROCESSING,
        ood={"letters": load("letters", "test", 500)},
        detector="two-cosines",  # fitted on the training loader
        path=path,
    )
    trainer = Trainer(
        max_epochs=epochs,
        callbacks=[ready],
        accelerator="auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(), load("digits", "train", 2000))
    for epoch, values in enumerate(ready.history, 1):
        print(f"epoch {epoch}: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items()))

    model = offaxis.load(path)  # elsewhere: timm makes the network again
    print(f"flagged above a score of {model.calibration.threshold():.3f}")


if __name__ == "__main__":
    main()
