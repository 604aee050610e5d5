"""Task 5: a detector of your own: by name in Python, as own_detector.py:Margin on the command line. Task 2 makes its run."""

import sys

from torch import Tensor

import offaxis


@offaxis.register_detector
class Margin(offaxis.Detector):
    """Score an image by how little its largest cosine leads the second, negated: larger = more out-of-distribution."""

    name = "margin"
    paper = "https://example.org"
    uses = ("cosine",)

    def forward(self, outputs: offaxis.Outputs) -> Tensor:
        """Compute the scores (N,) of N images."""
        assert outputs.cosine is not None
        first, second = outputs.cosine.topk(2, dim=1).values.unbind(1)
        return second - first


def main(network: str = "runs/small-digits") -> None:
    test = offaxis.load_images("small-digits", "test")
    ood = [offaxis.load_images(name, like=test) for name in ("letters", "photographs")]
    print(offaxis.evaluate(network, test, ood, detectors=["cosine", "margin"]).table())


if __name__ == "__main__":
    main(*sys.argv[1:])
