"""How the study's recipe was chosen: accuracy on held-out training images after a few epochs, and nothing else.

``python -m study.recipe cifar10 wrn-10-4-half linear epochs=3 batch_size=64 crop=2`` trains on all but 5,000 of the
training images, prints the accuracy on those 5,000 after each epoch, and how long it took with one thread.
"""

import sys
import time

import torch
from lightning_fabric import Fabric

from offaxis.data import load_images
from offaxis.networks import by_name
from offaxis.training import RECIPES, train

HELD_OUT = 5000
WHOLE = ("epochs", "batch_size", "crop")


def main() -> None:
    """Run one trial."""
    id_name, network, head, *changes = sys.argv[1:]
    numbers = dict(change.split("=") for change in changes)
    recipe = RECIPES["short"]().replace(**{k: int(v) if k in WHOLE else float(v) for k, v in numbers.items()})
    images = load_images(id_name, "train")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(7))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    classifier = by_name(network)(num_classes=len(images.classes), in_channels=images.shape[0], head=head)
    begun = time.monotonic()
    trained = train(
        classifier,
        images.subset(order[HELD_OUT:]),
        recipe,
        validation=images.subset(order[:HELD_OUT]),
        quiet=True,
        device=Fabric(accelerator="cpu", devices=1, precision="bf16-mixed"),
    )
    accuracies = ", ".join(f"{100 * epoch['validation_accuracy']:.2f}" for epoch in trained.history)
    print(f"{' '.join(sys.argv[1:])}: {accuracies} % after each epoch, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
