"""Task 9: Hugging Face's Trainer: loss and logits for it, OOD AUROC after each epoch, a calibrated bundle at the end."""

import tempfile
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments, set_seed

import offaxis
from offaxis.data import Normalise, Preprocessing
from offaxis.integrations.transformers import CalibrateOODCallback, TrainerClassifier

PREPROCESSING = Preprocessing((1, 28, 28), Normalise((0.13,), (0.31,)))


def load(name: str, part: Literal["train", "test"], count: int) -> Any:
    """A dataset of dicts, as transformers has them."""
    images = offaxis.load_images(name, part).subset(torch.arange(count))
    pixels = PREPROCESSING.normalise(images.batch(torch.arange(len(images))))
    labels = [0] * len(images) if images.labels is None else images.labels.tolist()
    return [{"pixel_values": image, "labels": label} for image, label in zip(pixels, labels, strict=True)]


def main(path: str = "trainer.oax", epochs: int = 3) -> None:
    set_seed(0)
    config = ResNetConfig(
        num_channels=1, embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=10
    )
    classifier = offaxis.attach(ResNetForImageClassification(config))
    ready = CalibrateOODCallback(
        DataLoader(load("digits", "test", 500), batch_size=64),
        preprocessing=PREPROCESSING,
        ood={"letters": DataLoader(load("letters", "test", 500), batch_size=64)},
        detector="two-cosines",  # fitted on the training loader
        path=path,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=64,
            dataloader_drop_last=True,
            dataloader_pin_memory=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            TrainerClassifier(classifier),
            arguments,
            train_dataset=load("digits", "train", 2000),
            callbacks=[ready],
            optimizers=(torch.optim.AdamW(classifier.parameter_groups(weight_decay=0.01), lr=2e-3), None),
        )
        ready.set_trainer(
            trainer
        )  # which tells TensorBoard, W&B or MLflow of the AUROCs, where they are named in report_to
        trainer.train()
    for epoch, values in enumerate(ready.history, 1):
        print(f"epoch {epoch}: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items()))

    model = offaxis.load(path)  # elsewhere: transformers makes the network again
    print(f"flagged above a score of {model.calibration.threshold():.3f}")


if __name__ == "__main__":
    main()
