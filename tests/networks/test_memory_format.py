"""Images with the channels last: faster through our networks on the CPU, and the same scores."""

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offaxis.detectors import (
    ASH,
    CORE,
    FDBD,
    GEN,
    KNN,
    NATIVE,
    NCI,
    NECO,
    ODIN,
    ORA,
    SCALE,
    Combined,
    Cosine,
    CosineEnsemble,
    Detector,
    Energy,
    GeneralizedODIN,
    IsoMaxPlus,
    LeaveOut,
    Mahalanobis,
    MahalanobisPlusPlus,
    MaxLogit,
    MaxSoftmax,
    MeanCosine,
    NNGuide,
    PyTorchOOD,
    ReAct,
    RelativeMahalanobis,
    RelativeMahalanobisPlusPlus,
    TwoCosines,
    ViM,
    WeiPerKLD,
)
from offaxis.detectors.pytorch_ood import FED_WITH, Feed
from offaxis.heads import make_head
from offaxis.networks import densenet_bc, resnet_cifar, wide_resnet
from offaxis.networks import run as running
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import Ensemble, LeaveOutEnsemble, Paired
from offaxis.networks.run import to_network

NETWORKS: dict[str, Callable[..., Classifier]] = {
    "wide ResNet": lambda **kw: wide_resnet(10, 1, **kw),
    "DenseNet": lambda **kw: densenet_bc(10, 6, **kw),
    "ResNet": lambda **kw: resnet_cifar(8, **kw),
}
DETECTORS: list[tuple[Detector, str]] = [
    (Cosine(), "cosine"),
    (CosineEnsemble(2), "ensemble"),
    (TwoCosines(), "cosine"),
    (Combined(), "cosine"),
    (MeanCosine(), "linear"),
    (MaxSoftmax(), "linear"),
    (ODIN(), "linear"),
    (ODIN(1, 0.001), "linear"),
    (Mahalanobis(), "linear"),
    (Mahalanobis(eps=0.001), "linear"),
    (LeaveOut(networks=2), "leave-out"),
    (MaxLogit(), "linear"),
    (Energy(), "linear"),
    (GEN(), "linear"),
    (KNN(5), "linear"),
    (ViM(), "linear"),
    (RelativeMahalanobis(), "linear"),
    (MahalanobisPlusPlus(), "linear"),
    (RelativeMahalanobisPlusPlus(), "linear"),
    (FDBD(), "cosine"),
    (NCI(), "linear"),
    (NNGuide(), "linear"),
    (NECO(), "linear"),
    (WeiPerKLD(), "linear"),
    (CORE(), "linear"),
    (ORA(), "linear"),
    (ReAct(), "linear"),
    (ASH(), "linear"),
    (SCALE(), "linear"),
    (GeneralizedODIN(), "deconf-c"),
    (IsoMaxPlus(), "isomax"),
]


def noise(count: int, seed: int) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(noise(40, seed), torch.arange(40) % 4) for seed in range(4)]


def network_with(make: Callable[..., Classifier], kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "ensemble":
        return Ensemble([make(num_classes=4, head="cosine") for _ in range(2)]).eval()
    if kind == "leave-out":
        return LeaveOutEnsemble([make(num_classes=4, head="linear") for _ in range(2)], [(0, 1), (2, 3)]).eval()
    return make(num_classes=4, head=kind).eval()


def both_ways(detector: Detector, network: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """Fitted and scored with the channels last, and with the channels first."""
    seen: list[bool] = []
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_hook(lambda _m, x, _o: seen.append(x[0].is_contiguous(memory_format=torch.channels_last)))
    last = detector.fit(network, batches()).score_images(network, noise(20, 9))
    assert seen
    assert all(seen)
    monkeypatch.setattr(running, "faster_channels_last", lambda *_: False)
    return last, detector.fit(network, batches()).score_images(network, noise(20, 9))


def test_every_detector_of_ours_is_here() -> None:
    assert {detector.name for detector, _ in DETECTORS} == set(NATIVE)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize(("detector", "kind"), DETECTORS, ids=lambda value: getattr(value, "name", None))
def test_the_layout_does_not_change_a_score(
    detector: Detector, kind: str, make: Callable[..., Classifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    last, first = both_ways(copy.deepcopy(detector), network_with(make, kind), monkeypatch)
    torch.testing.assert_close(last, first, rtol=1e-4, atol=1e-5 * float(first.abs().max()))


@pytest.mark.parametrize("kind", [kind for kind, feed in FED_WITH.items() if feed is Feed.MODEL])
def test_those_of_pytorch_ood_that_run_the_network_take_this_layout_too(
    ood: ModuleType, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = wide_resnet(10, 1, num_classes=4, head="linear", dropout=0.2).eval()
    last, first = both_ways(PyTorchOOD(kind), network, monkeypatch)
    if kind != "MCD":  # its dropout masks are drawn in the order of memory
        torch.testing.assert_close(last, first, rtol=1e-3, atol=1e-4 * float(first.abs().max()))


def test_only_what_gains_is_laid_out_anew() -> None:
    images = noise(2, 0)
    ours = wide_resnet(10, 1, num_classes=4)
    foreign = Classifier(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), make_head("linear", 4 * 14 * 14, 4))

    def laid_out(network: Any, images: Tensor) -> bool:
        found = to_network(network, images)
        assert torch.equal(found, images)
        return found.is_contiguous(memory_format=torch.channels_last)

    assert laid_out(ours, images)
    assert laid_out(Paired(ours, ours), images)
    assert not laid_out(foreign, images)
    assert not laid_out(Paired(foreign, ours), images)
    assert not laid_out(wide_resnet(10, 1, num_classes=4).double(), images.double())  # slower in 64 bits


def test_a_network_that_views_its_maps_is_scored() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, images: Tensor) -> Tensor:
            maps: Tensor = self.conv(images)
            return maps.view(len(maps), -1)

    network = Classifier(Views(), make_head("linear", 4 * 14 * 14, 4))
    assert Energy().score_images(network, noise(3, 0)).shape == (3,)
