"""Task 11: a detector of ours where pytorch-ood expects one of its own: its metrics, its benchmarks.

Both count scores the same way: larger = more out-of-distribution.
"""

from typing import Any

import torch
from pytorch_ood.api import Detector as TheirDetector
from pytorch_ood.metrics import OODMetrics
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import offaxis
from offaxis.data import Normalise
from offaxis.detectors import TwoCosines
from offaxis.networks import by_name


class FromOffaxis(TheirDetector):  # type: ignore[misc]  # pytorch-ood is not seen by the type checker
    """Any of our detectors with its network, as pytorch-ood's `Detector`."""

    def __init__(self, network: offaxis.Classifier, detector: offaxis.Detector) -> None:
        super().__init__()
        self.network, self.detector = network, detector

    def fit(self, data_loader: Any) -> "FromOffaxis":
        """Fit on (images, labels); OOD images, whose labels are negative, are left out as pytorch-ood does."""
        self.detector.fit(self.network, [(x[y >= 0], y[y >= 0]) for x, y in data_loader])
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Compute the scores (N,) of normalised images."""
        return self.detector.score_images(self.network, x)


def main(epochs: int = 3) -> None:
    torch.manual_seed(0)
    train, test = offaxis.load_images("small-digits", "train"), offaxis.load_images("small-digits", "test")
    letters = offaxis.load_images("letters", like=test)
    normalise = Normalise.from_images(train)
    network = by_name("wrn-10-1-half")(num_classes=10, in_channels=1)
    offaxis.train(network, train, offaxis.Recipe(epochs=epochs, batch_size=32, crop=0, flip=False), quiet=True)

    def loader(images: offaxis.ImageSet, labels: Tensor) -> DataLoader[Any]:
        return DataLoader(TensorDataset(normalise(images.batch(torch.arange(len(images)))), labels), batch_size=100)

    assert train.labels is not None
    assert test.labels is not None
    detector = FromOffaxis(network.eval(), TwoCosines()).fit(loader(train, train.labels))
    metrics = OODMetrics()
    for images, labels in ((test, test.labels), (letters, torch.full((len(letters),), -1))):  # negative: OOD
        for x, y in loader(images, labels):
            metrics.update(detector.predict(x), y)
    print({name: round(float(value), 4) for name, value in metrics.compute().items()})


if __name__ == "__main__":
    main()
