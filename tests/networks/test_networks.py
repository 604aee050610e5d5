"""The paper's networks: published sizes, initialisation, layers; and their small relatives."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from offaxis import Classifier, CosineHead
from offaxis.errors import ArgumentError, CheckpointError
from offaxis.networks import build, by_name, densenet_bc, description, wide_resnet
from offaxis.networks.saved import read_weights

SMALL: dict[str, Callable[..., Classifier]] = {
    "wide_resnet": lambda **kw: wide_resnet(depth=10, width=1, **kw),
    "densenet_bc": lambda **kw: densenet_bc(depth=10, growth=4, **kw),
}


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_the_published_parameter_counts() -> None:
    with torch.device("meta"):
        assert parameters(wide_resnet(head="linear")) == 36_479_194
        assert parameters(densenet_bc(head="linear")) == 769_162


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("size", [(32, 32), (36, 36), (28, 28), (40, 24)])
def test_images_of_any_size_give_logits(make: Callable[..., Classifier], size: tuple[int, int]) -> None:
    network = make(num_classes=7).eval()
    images = torch.rand(2, 3, *size)
    out = network.outputs(images)
    assert out.logits.shape == (2, 7)
    assert torch.equal(network(images), out.logits)
    assert bool((out.features >= 0).all())  # after ReLU and mean


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_features_are_the_mean_over_the_whole_last_map(make: Callable[..., Classifier]) -> None:
    """Global pooling: on 36x36 the whole 9x9 map counts, not its corner."""
    network = make().eval()
    maps: list[torch.Tensor] = []
    network.backbone.final.register_forward_hook(lambda _m, _i, out: maps.append(out))  # type: ignore[union-attr]
    features = network.features(torch.rand(2, 3, 36, 36))
    assert maps[0].shape[2:] == (9, 9)
    torch.testing.assert_close(features, maps[0].flatten(2).mean(2))


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_layers_come_pooled_from_the_same_forward_pass(make: Callable[..., Classifier]) -> None:
    network = make().eval()
    images = torch.rand(3, 3, 32, 32)
    calls: list[int] = []
    network.backbone.conv.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr]
    out = network.outputs(images, network.layers)
    assert out.layers is not None
    assert list(out.layers) == list(network.layers)
    assert len(network.layers) == 4
    assert all(layer.shape[0] == 3 and layer.dim() == 2 for layer in out.layers.values())
    torch.testing.assert_close(out.layers["final"], out.features)
    assert calls == [1]
    assert network.outputs(images).layers is None


def test_convolutions_start_as_published() -> None:
    torch.manual_seed(0)
    network = wide_resnet(depth=10, width=4)
    block = network.backbone.group3[0]  # type: ignore[index,union-attr]
    expected = math.sqrt(2 / (9 * block.conv2.out_channels))
    assert abs(float(block.conv2.weight.detach().std()) / expected - 1) < 0.02
    assert bool((block.bn1.weight == 1).all())
    assert bool((block.bn1.bias == 0).all())


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_dropout_acts_in_training_only(make: Callable[..., Classifier]) -> None:
    torch.manual_seed(0)
    network = make(dropout=0.5)
    images = torch.rand(4, 3, 16, 16)
    assert not torch.equal(network(images), network(images))
    network.eval()
    assert torch.equal(network(images), network(images))


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_half_size_maps(make: Callable[..., Classifier]) -> None:
    network = make(stem_stride=2, in_channels=1).eval()
    shapes: list[torch.Size] = []
    network.backbone.conv.register_forward_hook(lambda _m, _i, out: shapes.append(out.shape))  # type: ignore[union-attr]
    assert network(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    assert shapes[0][2:] == (14, 14)


@pytest.mark.parametrize(
    "wrong",
    [{"depth": 11}, {"depth": 4}, {"dropout": 1.0}, {"dropout": -0.1}, {"in_channels": 0}, {"stem_stride": 0}],
    ids=str,
)
@pytest.mark.parametrize("make", [wide_resnet, densenet_bc])
def test_impossible_sizes_are_refused(make: Callable[..., Classifier], wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"`{next(iter(wrong))}`"):
        make(**wrong)


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_a_network_can_be_made_again_from_its_description(make: Callable[..., Classifier]) -> None:
    network = make(num_classes=6, in_channels=1, head=lambda d, c: CosineHead(d, c, scale=16.0)).eval()
    said = description(network)
    assert said is not None
    again = build(said).eval()
    again.load_state_dict(network.state_dict())
    images = torch.rand(2, 1, 16, 16)
    assert torch.equal(again(images), network(images))


def test_short_names() -> None:
    small = by_name("wrn-16-2")(num_classes=5)
    assert description(small) == description(wide_resnet(16, 2, num_classes=5))
    dense = by_name("densenet-22-12-half")()
    assert description(dense) == description(densenet_bc(22, 12, stem_stride=2))
    for wrong in ("wrn", "resnet-18", "wrn-28", "wrn-28-10-quarter"):
        with pytest.raises(ArgumentError, match="wrn-28-10"):
            by_name(wrong)


def test_a_description_from_a_newer_version_is_refused() -> None:
    said = description(wide_resnet(10, 1))
    assert said is not None
    with pytest.raises(ArgumentError, match="newer version"):
        build({**said, "name": "vision_mamba"})
    with pytest.raises(ArgumentError, match="newer version"):
        build({**said, "head": {"name": "hyperbolic"}})


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_compiles_and_exports_as_a_plain_graph(make: Callable[..., Classifier]) -> None:
    torch.manual_seed(0)
    network = make().eval()
    images = torch.rand(2, 3, 16, 16)
    expected = network(images)
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(network, (images,), dynamic_shapes=({0: batch},), strict=False).module()
    torch.testing.assert_close(exported(images), expected)
    assert exported(torch.rand(5, 3, 16, 16)).shape == (5, 10)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(network, fullgraph=True, backend="aot_eager")(images), expected)


def test_a_flipped_bit_in_weights_of_pytorch_is_noticed(tmp_path: Path) -> None:
    state = {f"{number}.weight": torch.randn(16, 16) for number in range(8)}
    path = tmp_path / "weights.pth"
    torch.save(state, path)
    whole, chance, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(60):
        data, place = bytearray(whole), chance.randrange(len(whole))
        data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            read = read_weights(path)
        except CheckpointError as error:
            refused += "are damaged (the checksum of" in str(error)
        else:
            assert read.keys() == state.keys()
            assert all(torch.equal(read[name], tensor) for name, tensor in state.items())
    assert refused > 30
