"""Task 6: data of your own: a torch Dataset, a DataLoader of your pipeline, a folder of images."""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset

import offaxis
from offaxis.networks import wide_resnet


class Digits(Dataset[tuple[Image.Image, int]]):
    """The digits of scikit-learn as (Pillow image, label), as an image dataset usually gives them."""

    def __init__(self, part: slice) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)[part]
        self.labels = labels[part]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index]), int(self.labels[index])


def collate(batch: list[tuple[Image.Image, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Make normalised tensors of a batch, as your pipeline does."""
    pixels = np.stack([np.asarray(image) for image, _ in batch])[:, None]
    return (torch.from_numpy(pixels).float() / 255 - 0.3) / 0.38, torch.tensor([label for _, label in batch])


def main(folder: str = "my-digits") -> None:
    torch.manual_seed(0)
    training, unseen = Digits(slice(1400)), Digits(slice(1400, None))
    recipe = offaxis.Recipe(epochs=3, batch_size=32, crop=0, flip=False)

    # A torch Dataset: images are augmented and normalised here.
    network = wide_resnet(10, 2, num_classes=10, in_channels=1, stem_stride=2)
    trained = offaxis.train(network, training, recipe, quiet=True)
    model = offaxis.Model.calibrated(trained, unseen, used=[training])
    print(f"Dataset: flagged above a score of {model.calibration.threshold():.3f}")

    # A DataLoader: its batches are used unchanged.
    loaders = [DataLoader(part, 32, shuffle=part is training, collate_fn=collate) for part in (training, unseen)]
    network = wide_resnet(10, 2, num_classes=10, in_channels=1, stem_stride=2)
    offaxis.train(network, loaders[0], recipe, quiet=True)
    calibration = offaxis.calibrate(network, loaders[1], None)
    print(f"DataLoader: flagged above a score of {calibration.threshold():.3f}")

    # A folder: one folder a class.
    for number in range(40):
        image, label = unseen[number]
        path = Path(folder, str(label), f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    images = offaxis.load_images(folder, size=8)
    print(f"folder: {len(images)} images of {len(images.classes)} classes, {images.shape}")


if __name__ == "__main__":
    main(*sys.argv[1:])
