"""Published networks, kept as they are: CIFAR-10 ResNet-20 and ResNet-56, every score that reads features and logits.

    python -m study.second.published WEIGHTS

WEIGHTS holds ``resnet20-12fca82f.th`` and ``resnet56-4bfd9763.th``. It resumes; the rows are in
study/second/results/published, the features in runs/study/features.
"""

import argparse
from pathlib import Path

import torch

from offaxis import open_network
from study.second import store
from study.second.features import cifar_features, head_of
from study.second.judge import judge, record

STEP = "published"
NETWORKS = {"resnet20-cifar": "resnet20-12fca82f.th", "resnet56-cifar": "resnet56-4bfd9763.th"}


def main() -> None:
    """Judge the networks that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    weights = parser.parse_args().weights
    torch.set_num_threads(1)
    for name, file in NETWORKS.items():
        network = {"id": "cifar10", "network": name, "head": "keep", "seed": 0, "unseen": None}
        if tuple(network[k] for k in store.KEY) in store.networks(STEP):
            continue
        subject = open_network(name, weights=weights / file, head="keep")
        training, test, ood = cifar_features(subject, name)
        record(STEP, network, judge(head_of(subject), training, test, ood))
        print(name, flush=True)


if __name__ == "__main__":
    main()
