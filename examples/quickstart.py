"""A classifier that knows when not to be trusted: a network with a cosine head, trained as usual, scored in one pass."""

import torch

import offaxis
from offaxis.data.embedded import digits, photographs
from offaxis.detectors import Cosine
from offaxis.metrics import auroc
from offaxis.networks import wide_resnet

torch.manual_seed(0)
network = wide_resnet(depth=10, width=1, in_channels=1, stem_stride=2)  # or offaxis.attach(a_network_of_yours)
trained = offaxis.train(network, digits("train"), offaxis.Recipe(epochs=8, batch_size=32, crop=2, flip=False))

sets = digits("test"), photographs()  # 1,000 images each; the network has seen neither, and nothing like the second
known, strange = (Cosine().score_images(network, trained.normalise(s.batch(torch.arange(1000)))) for s in sets)
print(f"AUROC of photographs against digits: {auroc(known, strange):.3f}")  # larger score = more out-of-distribution
