"""The README's ten lines: train on digits, score photographs."""

import torch

import offaxis
from offaxis.data import Normalise
from offaxis.data.embedded import digits, photographs
from offaxis.networks import wide_resnet

torch.manual_seed(0)
training, test = digits("train"), digits("test")
network = wide_resnet(depth=10, width=2, in_channels=1, stem_stride=2)  # or offaxis.attach(a_network_of_yours)
offaxis.train(network, training, offaxis.Recipe(epochs=5, batch_size=32, crop=2, flip=False))

# 1,000 images each; the network has seen neither, and nothing like the second
results = offaxis.evaluate(
    network,
    test,
    [photographs()],
    detectors=["cosine", "two-cosines"],
    train=training,
    normalise=Normalise.from_images(training),
)
print(results.table())  # larger score = more out-of-distribution
