"""How well the predicted scale of a cosine network detects OOD images by itself: ``python -m study.scale``.

Prints, for each reported set, the mean AUROC over seeds of the cosine, of the scale alone (small = OOD), and of their
product, the largest logit; and the length of the features alone.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.data import ImageSet, limit_images, load_images
from offaxis.data.transforms import Batches
from offaxis.metrics import auroc
from offaxis.networks.open import open_network
from offaxis.networks.opened import OpenedNetwork
from study.sets import DEVELOPMENT, REPORTED
from study.steps import SEEDS, chain_for, main_runs, name_of

IMAGES = 1000


@torch.no_grad()
def scores(subject: OpenedNetwork, images: ImageSet) -> NDArray[np.float64]:
    """Compute (N, 4): minus the largest cosine, the scale, the largest logit and the length of the features."""
    parts = []
    assert subject.normalise is not None
    for batch, _ in Batches(images, subject.normalise, 256):
        out = subject.network.outputs(batch)
        assert out.cosine is not None
        assert out.scale is not None
        parts.append(
            torch.stack([out.cosine.amax(1), out.scale.flatten(), out.logits.amax(1), out.features.norm(dim=1)], 1)
        )
    return -torch.cat(parts).double().numpy()


def main() -> None:
    """Print the table for both ID sets."""
    for id_name in ("cifar10", "fashion-mnist"):
        subjects = [open_network(chain_for(id_name).runs / name_of(main_runs(id_name, seed)[1])) for seed in SEEDS]
        test = limit_images(load_images(id_name, "test"), IMAGES)
        id_scores = [scores(subject, test) for subject in subjects]
        print(f"| {id_name} | cosine | scale | cosine x scale | length of features |\n|---|---:|---:|---:|---:|")
        for name in (*DEVELOPMENT, *REPORTED[id_name]):
            images = limit_images(load_images(name, "test", like=test), IMAGES)
            ood_scores = [scores(subject, images) for subject in subjects]
            values = [[auroc(a[:, k], b[:, k]) for k in range(4)] for a, b in zip(id_scores, ood_scores, strict=True)]
            print(f"| {name} | " + " | ".join(f"{100 * v:.1f}" for v in np.mean(values, 0)) + " |", flush=True)


if __name__ == "__main__":
    main()
