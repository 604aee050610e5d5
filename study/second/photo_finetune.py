r"""Fruit, fine-tuned with the last block alone: networks that the shell trained, each score on their features.

    offaxis train --id PHOTOS/fruit --network examples/networks/efficientnet_lite0.py --recipe finetune \
        --unfreeze LAYER --head cosine --seed 0 --out runs/study/networks/fruit-cosine-seed0
    python -m study.second.photo_finetune PHOTOS RUN ...

It resumes; the rows are in study/second/results/photo-finetune.
"""

import argparse
from pathlib import Path

import torch

from offaxis import load_images, open_network
from offaxis.data.catalogue import Split
from offaxis.networks.opened import OpenedNetwork
from study.second import store
from study.second.features import WORK, features, head_of
from study.second.judge import Images, judge, record
from study.second.sets import DEVELOPMENT, REPORTED

STEP = "photo-finetune"
SPLITS: tuple[Split, Split] = ("train", "test")


def photographs(subject: OpenedNetwork, folder: Path, split: Split, kept: Path) -> Images:
    """Return the features of a folder of photographs, at the size that the network takes."""
    assert subject.size is not None
    return features(subject, load_images(folder, split, size=subject.size[0], resize=subject.resize), kept)


def main() -> None:
    """Compute the rows of the runs that have none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for run in options.runs:
        subject = open_network(run)
        id_name = "clothing" if "clothing" in run.name else "fruit"
        head = (subject.head or {})["name"]
        network = {"network": "efficientnet-lite0, last block", "head": head, "seed": subject.seed}
        key = {"id": id_name, **network, "unseen": None}
        if tuple(key[k] for k in store.KEY) in store.networks(STEP):
            continue
        kept = WORK / "features" / run.name
        training, test = (
            photographs(subject, options.photos / id_name, split, kept / f"{split}.npy") for split in SPLITS
        )
        ood = {}
        for name in (*DEVELOPMENT[id_name], *REPORTED[id_name]):
            images = photographs(subject, options.photos / name, "test", kept / f"{name}.npy")
            ood[name] = Images(images.features)
        record(STEP, key, judge(head_of(subject), training, test, ood))
        print(key, flush=True)


if __name__ == "__main__":
    main()
