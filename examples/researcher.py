"""A head and a detector of one's own in an honest comparison: seeds, tuned on other sets, a test, a table for a paper."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import offaxis
from offaxis.heads import Head, Outputs
from offaxis.networks import by_name


class PrototypeHead(Head):
    """Score a class by the negated squared distance of the features to its prototype."""

    def __init__(self, in_features: int, num_classes: int, temperature: float = 1.0) -> None:
        super().__init__(in_features, num_classes)
        self.weight = nn.Parameter(torch.randn(num_classes, in_features))
        self.arguments = {"temperature": temperature}

    def outputs(self, features: Tensor) -> Outputs:
        """Compute the logits; the cosine lets every detector of angles read the head too."""
        cosine = F.linear(F.normalize(features), F.normalize(self.weight))
        logits = -torch.cdist(features, self.weight).square() / self.arguments["temperature"]
        return Outputs(features, logits, cosine)


@offaxis.register_detector
class SoftDistance(offaxis.Detector):
    """Score an image by its logits: a soft minimum of the distances to all prototypes; larger = more out-of-distribution."""

    name = "soft-distance"
    uses = ("logits",)
    tunable = ("temperature",)

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """The values that tuning tries, on validation images alone."""
        return {"temperature": (0.3, 1.0, 3.0)}

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute the scores (N,) of N images."""
        return -self.temperature * (outputs.logits / self.temperature).logsumexp(1)


def main(epochs: int = 1, seeds: int = 2) -> None:
    train, test = (offaxis.load_images("small-digits", split) for split in ("train", "test"))
    ood = {name: offaxis.load_images(name, like=test) for name in ("letters", "photographs", "gaussian")}
    networks = []
    for head in ("linear", partial(PrototypeHead, temperature=4.0)):
        for seed in range(seeds):
            torch.manual_seed(seed)
            classifier = by_name("wrn-10-1-half")(num_classes=10, in_channels=1, head=head)
            recipe = offaxis.Recipe(epochs=epochs, batch_size=64, crop=0, flip=False)
            trained = offaxis.train(classifier, train, recipe, seed=seed, quiet=True)
            label = head if isinstance(head, str) else "prototypes"
            networks.append(offaxis.open_network(trained.classifier, label=label, seed=seed))
    detectors = ["max-softmax", "knn", "soft-distance"]
    results = offaxis.evaluate(networks, test, ood, detectors, train=train, protocols=["less-biased"])
    print(results.table())
    print(results.compare("prototypes: soft-distance (tuned)", "linear: max-softmax"))
    print(results.to_latex())
    worst = min(results.per_class(), key=lambda row: row["auroc"])
    print(f"The class found worst: {worst['class']} beside {worst['ood']}, AUROC {worst['auroc']:.1%}")


if __name__ == "__main__":
    main()
