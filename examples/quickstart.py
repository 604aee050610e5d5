"""Any network becomes one that knows when not to be trusted: attach, train, score."""

import torch
from torch import nn

import offaxis
from offaxis.datasets.embedded import digits, photographs
from offaxis.detectors import Cosine
from offaxis.metrics import auroc

network = nn.Sequential(
    nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
    nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
)  # fmt: skip

torch.manual_seed(0)
classifier = offaxis.attach(network, head="cosine")  # its last linear layer goes, a cosine takes its place
trained = offaxis.train(classifier, digits("train"), offaxis.Recipe(epochs=4, batch_size=32, crop=2, flip=False))
scores = [
    Cosine().score_images(
        classifier, trained.normalise(images.batch(torch.arange(500)))
    )  # larger = more out-of-distribution
    for images in (digits("test"), photographs())
]
print(f"AUROC of photographs against digits: {auroc(*scores):.3f}")
