"""Run a network once over a set and keep its features: what every score of this study is computed from."""

from pathlib import Path

import numpy as np
import torch

from offaxis.data import ImageSet, Normalise, limit_images, load_images
from offaxis.data.adapt import as_batches
from offaxis.files import replacing
from offaxis.heads import Head
from offaxis.networks.opened import OpenedNetwork
from offaxis.networks.run import run
from study.second.judge import Images
from study.second.sets import DEVELOPMENT, REPORTED

WORK = Path("runs/study")
"""Where networks and features are, outside the project's history."""
OOD_IMAGES = 5000
BATCH = 500


def features(subject: OpenedNetwork, images: ImageSet, path: Path) -> Images:
    """Compute the features (N, d) of a set, or read them where they are kept."""
    if not path.exists():
        normalise = subject.normalise
        assert isinstance(normalise, Normalise)
        parts = [out.features.cpu() for out, _, _ in run(subject.network, as_batches(images, normalise, BATCH))]
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, torch.cat(parts).numpy())
    return Images(torch.from_numpy(np.load(path)), images.labels)


def cifar_features(
    subject: OpenedNetwork,
    name: str,
    id_name: str = "cifar10",
    most: tuple[int | None, int | None, int] = (None, None, OOD_IMAGES),
) -> tuple[Images, Images, dict[str, Images]]:
    """Return the features of training images, test images, and OOD images of each set.

    Args:
        subject: the network.
        name: under which its features are kept.
        id_name: the ID set.
        most: how many training, test and OOD images at most; None for all.
    """
    folder = WORK / "features" / name
    training = limit_images(load_images(id_name, "train"), most[0])
    test = limit_images(load_images(id_name, "test"), most[1])
    ood = {}
    for other in (*DEVELOPMENT[id_name], *REPORTED[id_name]):
        images = limit_images(load_images(other, "test", like=test), most[2])
        ood[other] = Images(features(subject, images, folder / f"{other}.npy").features)
        print(f"{name}: {other}, {len(images)} images", flush=True)
    return (
        features(subject, training, folder / f"{id_name}-train.npy"),
        features(subject, test, folder / f"{id_name}-test.npy"),
        ood,
    )


def head_of(subject: OpenedNetwork) -> Head:
    """Return the head of a single network."""
    head: Head = subject.network.head
    return head.eval()
