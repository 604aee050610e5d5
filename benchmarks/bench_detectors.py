"""The cost of detectors, side by side in one run.

    python -m benchmarks.bench_detectors                  # all, about half an hour on two cores
    python -m benchmarks.bench_detectors cosine odin      # some

- ``cosine``: the network with a cosine head and its score against the same network with a linear layer, forward alone.
- ``all``: one forward pass with every detector that reads outputs or layers (KNN without its search) against one forward.
- ``odin``: the whole grid, 11 eps x 4 T, against a plain loop (forward, input gradient, forward per setting).
- ``mahalanobis``: fit and score on four layers against pytorch-ood's MultiMahalanobis.
- ``knn``: exact neighbours in 50,000 x 512 features, and the memory it takes.

The memory of fitting Mahalanobis on 50,000 images has a file of its own, ``mahalanobis_memory.py``.

Networks have random weights and images are noise: neither changes what is computed. Numbers of images are small, so that
30 rounds end; every ratio compares the same images on both sides.
"""

import argparse
import functools
import resource
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.paired import paired, publish, seconds
from offaxis.detectors import (
    ASH,
    GEN,
    KNN,
    ODIN,
    SCALE,
    Cosine,
    Detector,
    Energy,
    GeneralizedODIN,
    IsoMaxPlus,
    Mahalanobis,
    MaxLogit,
    MaxSoftmax,
    ReAct,
    RelativeMahalanobis,
    ViM,
    fit_all,
    score_all,
)
from offaxis.heads import Outputs
from offaxis.networks import densenet_bc, wide_resnet
from offaxis.networks.classifier import Classifier
from tests.operators import import_library


def noise(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def laid_out(count: int) -> Tensor:
    """Noise in channels-last layout, which detectors use for our networks on the CPU: both sides get the same layout."""
    return noise(count).contiguous(memory_format=torch.channels_last)


def labelled(count: int, batch: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(noise(count).split(batch), (torch.arange(count) % 10).split(batch), strict=True))


def cosine(rounds: int) -> None:
    ours, plain = (wide_resnet(16, 4, head=head).eval() for head in ("cosine", "linear"))
    images, detector = laid_out(128), Cosine()

    @torch.no_grad()
    def forward() -> Tensor:
        return plain(images)

    ratio = paired(lambda: detector.score_images(ours, images), forward, rounds)
    publish("cosine score / plain forward, WRN-16-4, 128 images", ratio, "<= 1.02", ratio.median <= 1.02)


def everything(rounds: int) -> None:
    network = wide_resnet(16, 4, head="cosine").eval()
    images = laid_out(128)
    detectors: list[Detector] = [
        Cosine(),
        IsoMaxPlus(),
        GeneralizedODIN(perturb=False),
        MaxSoftmax(),
        MaxLogit(),
        Energy(),
    ]
    detectors += [GEN(), ODIN(eps=0), Mahalanobis(), RelativeMahalanobis(), ViM(), ReAct(), ASH(), SCALE()]
    fit_all(network, labelled(1280, 128), detectors)

    @torch.no_grad()
    def forward() -> Tensor:
        return network(images)

    ratio = paired(lambda: score_all(network, [images], detectors), forward, rounds)
    name = f"{len(detectors)} detectors from one pass / one forward, WRN-16-4, 128 images"
    publish(name, ratio, "<= 1.5", ratio.median <= 1.5, detectors=[detector.name for detector in detectors])


def odin(rounds: int, count: int = 16) -> None:
    network = wide_resnet(16, 2, head="linear").eval()
    images, detector = laid_out(count), ODIN()

    def plain() -> Tensor:
        scores = []
        for setting in detector.settings:
            temperature, eps = setting["temperature"], setting["eps"]
            x = images.clone().requires_grad_()
            logits = network(x) / temperature
            (gradient,) = torch.autograd.grad(F.cross_entropy(logits, logits.argmax(1), reduction="sum"), x)
            with torch.no_grad():
                moved = network(images - eps * gradient.sign()).double() / temperature
                scores.append(-moved.softmax(1).amax(1))
        return torch.stack(scores, 1)

    difference = float((detector.grid_scores_images(network, images) - plain()).abs().max())
    ratio = paired(plain, lambda: detector.grid_scores_images(network, images), rounds, warm_up=0)
    name = f"plain loop / ODIN's grid of {len(detector.settings)}, WRN-16-2, {count} images"
    publish(name, ratio, ">= 2.5", ratio.median >= 2.5 and difference < 1e-6, largest_difference=difference)


def mahalanobis(rounds: int, count: int = 64) -> None:
    dense, wide = densenet_bc(40, 12, head="linear").eval(), wide_resnet(16, 4, head="linear").eval()
    blocks: Any = dense.backbone
    groups: Any = wide.backbone
    stages = [(blocks.block1, blocks.transition1), (blocks.block2, blocks.transition2), (blocks.block3, blocks.final)]
    side_by_side("DenseNet-BC-40-12", dense, [blocks.conv, *[nn.Sequential(*stage) for stage in stages]], rounds, count)
    last = nn.Sequential(groups.group3, groups.final)
    side_by_side("WRN-16-4", wide, [groups.conv, groups.group1, groups.group2, last], rounds, count)


def side_by_side(name: str, network: Classifier, modules: list[nn.Module], rounds: int, count: int) -> None:
    """Ours against MultiMahalanobis on the same four layers, called as documented; both get channels first."""
    batches, images = labelled(count, 32), noise(count, 1).split(32)
    ours, theirs = Mahalanobis(), pytorch_ood().MultiMahalanobis(modules)
    fit = paired(lambda: theirs.fit(batches), lambda: ours.fit(network, batches), rounds, warm_up=1)
    publish(f"MultiMahalanobis.fit / ours, {name}, {count} images", fit, ">= 2.5", fit.median >= 2.5)
    score = paired(lambda: [theirs(x) for x in images], lambda: score_all(network, images, [ours]), rounds, warm_up=1)
    publish(f"MultiMahalanobis(x) / ours, {name}, {count} images", score, ">= 2.5", score.median >= 2.5)


def knn(rounds: int) -> None:
    bank = F.normalize(torch.randn(50_000, 512, generator=torch.Generator().manual_seed(0)))
    detector = KNN(50, "blocks")
    detector.bank = bank
    queries = torch.randn(1_000, 512, generator=torch.Generator().manual_seed(1))

    def ours() -> Tensor:
        return detector._distances(outputs, (50,))[:, 0]

    def whole() -> Tensor:
        return torch.cdist(F.normalize(queries), bank).kthvalue(50, 1).values

    outputs = Outputs(queries, queries[:, :10])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = seconds(ours)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    difference = float((ours() - whole()).abs().max())
    ratio = paired(whole, ours, rounds, warm_up=0)
    name = "whole 1,000 x 50,000 distance matrix / KNN in blocks, 512 features"
    publish(name, ratio, "exact, below 200 MB more", difference < 1e-3 and grown < 200, seconds=first, grown_mb=grown)


@functools.cache
def pytorch_ood() -> Any:
    """Import pytorch-ood's detectors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_library("pytorch_ood.detector")


ALL: dict[str, Callable[[int], None]] = {
    "cosine": cosine,
    "all": everything,
    "odin": odin,
    "mahalanobis": mahalanobis,
    "knn": knn,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", default=list(ALL), help=", ".join(ALL))
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    for name in arguments.which:
        ALL[name](arguments.rounds)


if __name__ == "__main__":
    main()
