"""Task 2: calibrate a trained network on images that it has not seen, and keep it as one file."""

import sys

import torch

import offaxis
from offaxis.networks import wide_resnet


def train() -> tuple[offaxis.Classifier, offaxis.ImageSet]:
    """Train a small network on embedded digits; yours is trained already."""
    torch.manual_seed(0)
    images = offaxis.load_images("small-digits", "train")
    network = wide_resnet(10, 2, num_classes=10, in_channels=1, stem_stride=2)
    recipe = offaxis.Recipe(epochs=3, batch_size=32, crop=0, flip=False)
    offaxis.train(network, images, recipe, out="runs/small-digits", resume=True, quiet=True)
    return network, images


def main(path: str = "digits.oax") -> None:
    _, training = train()
    unseen = offaxis.load_images("small-digits", "test")
    # A run's folder, a bundle, file.py:function or the network itself: all are opened alike.
    model = offaxis.Model.calibrated("runs/small-digits", unseen, used=[training], alpha=0.05)
    model.save(path)
    rate = model.calibration.flag_rate()
    print(f"{path}: flags {rate.mean:.1%} of new in-distribution images ({rate.low:.1%} to {rate.high:.1%})")


if __name__ == "__main__":
    main(*sys.argv[1:])
