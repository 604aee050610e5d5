"""ResNets with published names: their keys, the layers by the book, published weights in and out."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis import Classifier, open_network
from offaxis.data import load_images
from offaxis.errors import ArgumentError, CheckpointError
from offaxis.networks import build, by_name, description, resnet18_32, resnet_cifar
from offaxis.networks.resnet import to_published
from offaxis.networks.run import run


def by_the_book(weights: dict[str, Tensor], images: Tensor, layers: int, blocks: int) -> Tensor:
    """The network written out from its published names alone, option A where there is no shortcut."""

    def norm(x: Tensor, name: str) -> Tensor:
        w = {
            part: weights[f"{name}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
        }
        return (x - w["running_mean"]) / (w["running_var"] + 1e-5).sqrt() * w["weight"] + w["bias"]

    x = norm(F.conv2d(images, weights["conv1.weight"], padding=1), "bn1").relu()
    for layer in range(1, layers + 1):
        for block in range(blocks):
            name, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            y = norm(F.conv2d(x, weights[f"{name}.conv1.weight"], stride=stride, padding=1), f"{name}.bn1").relu()
            y = norm(F.conv2d(y, weights[f"{name}.conv2.weight"], padding=1), f"{name}.bn2")
            if f"{name}.shortcut.0.weight" in weights:
                x = norm(F.conv2d(x, weights[f"{name}.shortcut.0.weight"], stride=stride), f"{name}.shortcut.1")
            elif stride == 2:
                zeros = torch.zeros(len(x), x.shape[1] // 2, *y.shape[2:], dtype=x.dtype)
                x = torch.cat([zeros, x[:, :, ::2, ::2], zeros], 1)
            x = (x + y).relu()
    output = "fc" if "fc.weight" in weights else "linear"
    return F.linear(x.mean((2, 3)), weights[f"{output}.weight"], weights[f"{output}.bias"])


def disturbed(network: Classifier) -> Classifier:
    """Batch normalisations whose statistics are not 0 and 1."""
    generator = torch.Generator().manual_seed(1)
    for tensor in network.state_dict().values():
        if tensor.dim() == 1:
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype))
    return network.eval()


@pytest.mark.parametrize(("name", "layers", "blocks"), [("resnet18-32", 4, 2), ("resnet20-cifar", 3, 3)])
def test_logits_are_those_of_the_published_names_by_the_book(name: str, layers: int, blocks: int) -> None:
    torch.manual_seed(0)
    network = disturbed(by_name(name)(head="linear").double())
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(network(images), by_the_book(to_published(network), images, layers, blocks))


def test_the_names_are_openoods() -> None:
    with torch.device("meta"):
        names = {name for name in to_published(resnet18_32(head="linear")) if "num_batches" not in name}
    norm = ("weight", "bias", "running_mean", "running_var")
    expected = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{part}" for part in norm)}
    for layer in range(1, 5):
        for block in range(2):
            for number in (1, 2):
                expected |= {f"layer{layer}.{block}.conv{number}.weight"}
                expected |= {f"layer{layer}.{block}.bn{number}.{part}" for part in norm}
        if layer > 1:
            expected |= {f"layer{layer}.0.shortcut.0.weight", *(f"layer{layer}.0.shortcut.1.{p}" for p in norm)}
    assert names == expected


def test_the_published_parameter_counts() -> None:
    with torch.device("meta"):
        counts = {
            name: sum(p.numel() for p in by_name(name)(head="linear").parameters())
            for name in ("resnet18-32", "resnet20-cifar", "resnet56-cifar", "resnet110-cifar")
        }
    assert counts == {
        "resnet18-32": 11_173_962,
        "resnet20-cifar": 269_722,
        "resnet56-cifar": 853_018,
        "resnet110-cifar": 1_727_962,
    }


def test_the_contract_of_a_named_network() -> None:
    network = resnet_cifar(8, num_classes=7, in_channels=1, head="cosine").eval()
    images = torch.rand(2, 1, 28, 28)
    out = network.outputs(images, network.layers)
    assert out.logits.shape == (2, 7)
    assert bool((out.features >= 0).all())
    assert out.layers is not None
    torch.testing.assert_close(out.layers[network.layers[-1]], out.features)
    said = description(network)
    assert said is not None
    again = build(said).eval()
    again.load_state_dict(network.state_dict())
    assert torch.equal(again(images), network(images))
    opened = open_network(network)
    assert opened.label == "resnet8-cifar cosine"
    torch.export.export(network, (images,), strict=False)


@pytest.mark.parametrize("head", ["linear", "logitnorm", "elogitnorm"])
@pytest.mark.parametrize("file", ["best.ckpt", "wrapped.th"])
def test_a_network_goes_to_published_names_and_back(tmp_path: Path, head: Any, file: str) -> None:
    torch.manual_seed(0)
    network = disturbed(resnet_cifar(8, num_classes=10, head=head))
    weights: dict[str, Any] = {k: v for k, v in to_published(network).items() if "num_batches" not in k}
    if file == "wrapped.th":
        weights = {"state_dict": {f"module.{name}": tensor for name, tensor in weights.items()}, "best_prec1": 91.7}
    torch.save(weights, tmp_path / file)
    images = torch.rand(2, 3, 32, 32)
    opened = open_network("resnet8-cifar", weights=tmp_path / file)
    assert opened.network.num_classes == 10
    assert opened.normalise is not None
    assert opened.normalise.mean == (0.485, 0.456, 0.406)
    assert torch.equal(opened.network(images), network(images))
    cosine = open_network("resnet8-cifar", weights=tmp_path / file, head="cosine")
    assert torch.equal(cosine.network.features(images), network.features(images))


def test_openoods_normalisation_goes_by_the_number_of_classes(tmp_path: Path) -> None:
    torch.save(to_published(resnet18_32(num_classes=100, head="linear")), tmp_path / "best.ckpt")
    opened = open_network("resnet18-32", weights=tmp_path / "best.ckpt")
    assert opened.network.num_classes == 100
    assert opened.normalise is not None
    assert opened.normalise.std == (0.2675, 0.2565, 0.2761)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    torch.save(to_published(resnet_cifar(8, head="linear")), tmp_path / "eight.th")
    with pytest.raises(CheckpointError, match="missing"):
        open_network("resnet14-cifar", weights=tmp_path / "eight.th")
    with pytest.raises(CheckpointError, match="do not fit"):
        open_network("wrn-10-1", weights=tmp_path / "eight.th", num_classes=10)
    with pytest.raises(CheckpointError, match="shape"):
        open_network("resnet8-cifar", weights=tmp_path / "eight.th", num_classes=7)
    whole = to_published(resnet_cifar(8, head="linear"))
    last = next(name for name, tensor in whole.items() if tensor.shape == (10, 64))
    variance = next(name for name in whole if name.endswith("running_var"))
    for name, tensor, reason in (
        (last, torch.full((10, 64), float("nan")), "has NaN or infinity"),
        (variance, torch.full_like(whole[variance], float("inf")), "has NaN or infinity"),
        (last, torch.ones(10, 64, dtype=torch.int32), r"is of type torch\.int32"),
        (last, torch.ones(10, 64, dtype=torch.complex64), r"is of type torch\.complex64"),
        (last, torch.ones(10, 64).to_sparse(), "is no plain tensor"),
        (last, torch.empty(10, 64, device="meta"), "is no plain tensor"),
    ):
        torch.save({**whole, name: tensor}, tmp_path / "damaged.th")
        with pytest.raises(CheckpointError, match=reason):
            open_network("resnet8-cifar", weights=tmp_path / "damaged.th")
    for head in ("cosine", "t2fnorm"):
        with pytest.raises(ArgumentError, match="linear in the features"):
            to_published(resnet_cifar(8, head=head))
    with pytest.raises(ArgumentError, match="published names"):
        to_published(by_name("wrn-10-1")())
    for wrong in ({"depth": 9}, {"dropout": 0.1}, {"in_channels": 0}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            resnet_cifar(**wrong)  # type: ignore[arg-type]


PUBLISHED_ACCURACY = {
    "resnet20-12fca82f.th": ("resnet20-cifar", 0.9173),
    "resnet56-4bfd9763.th": ("resnet56-cifar", 0.9339),
}


@pytest.mark.realdata
@pytest.mark.parametrize("file", PUBLISHED_ACCURACY)
def test_published_weights_have_their_published_accuracy(file: str) -> None:
    path = Path(os.environ.get("OFFAXIS_WEIGHTS", "")) / file
    if not path.is_file() or "OFFAXIS_DATA" not in os.environ:
        pytest.skip("the published weights are not under OFFAXIS_WEIGHTS, or there is no OFFAXIS_DATA")
    name, accuracy = PUBLISHED_ACCURACY[file]
    opened = open_network(name, weights=path)
    images = load_images("cifar10", "test", root=Path(os.environ["OFFAXIS_DATA"]))
    assert opened.normalise is not None
    assert images.labels is not None
    batches = [
        (
            opened.normalise(torch.stack([images[i][0] for i in range(begin, begin + 250)])),
            images.labels[begin : begin + 250],
        )
        for begin in range(0, 2000, 250)
    ]
    hits = sum(
        int(out.logits.argmax(1).eq(labels).sum())
        for out, _, labels in run(opened.network, batches)
        if labels is not None
    )
    assert abs(hits / 2000 - accuracy) < 0.015  # the first 2,000 images alone
