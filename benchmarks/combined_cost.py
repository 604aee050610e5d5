"""What the score ``combined`` costs beside ``knn``, side by side: scoring, on features in memory.

    python -m benchmarks.combined_cost

Features are noise around ten centres: neither their values nor the head's change what is computed.
"""

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.paired import paired, publish
from offaxis.detectors import KNN, Combined, Detector
from offaxis.heads import Outputs, make_head
from offaxis.networks.classifier import Classifier

CLASSES, BATCH = 10, 256
SIZES = ((5_000, 1280), (50_000, 512))
"""Training images and width of the features: photographs on a frozen network, CIFAR-10 on a ResNet-18."""


def features(count: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    random, labels = torch.Generator().manual_seed(seed), torch.arange(count) % CLASSES
    return torch.randn(count, width, generator=random) + 2 * torch.eye(width)[labels], labels


def fitted(detector: Detector, network: Classifier, training: list[tuple[Outputs, Tensor]]) -> Detector:
    detector.begin(network)
    for outputs, labels in training:
        detector.update(outputs, labels)
    detector.finish()
    return detector


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    for count, width in SIZES:
        head = make_head("cosine", width, CLASSES).eval()
        network = Classifier(nn.Flatten(), head)
        rows, labels = features(count, width, 0)
        training = [(head.outputs(part), own) for part, own in zip(rows.split(BATCH), labels.split(BATCH), strict=True)]
        new = head.outputs(features(BATCH, width, 1)[0])
        combined, knn = (fitted(detector, network, training) for detector in (Combined(), KNN(10, "blocks")))
        ratio = paired(partial(combined.score, new), partial(knn.score, new))
        publish(f"scoring {BATCH} of {count} x {width}, combined / knn", ratio, "at most 1.1", ratio.low <= 1.1)


if __name__ == "__main__":
    main()
