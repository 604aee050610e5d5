"""Classifier, parameter groups and Paired."""

from functools import partial
from typing import TYPE_CHECKING, Any, assert_type, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from offaxis import Classifier, CosineHead, LinearHead, Paired, attach
from offaxis.detectors import Detector, make_detector
from offaxis.errors import ArgumentError, BadOutputsError, HeadError
from offaxis.heads import HEADS, HeadName
from offaxis.networks import wide_resnet
from offaxis.networks.classifier import feature_tensor, pooled


def small(**arguments: object) -> Classifier:
    return wide_resnet(depth=10, width=1, **arguments)  # type: ignore[arg-type]


def names_in_group(network: Classifier, group: dict[str, object]) -> set[str]:
    held = {id(p) for p in group["params"]}  # type: ignore[attr-defined]
    return {name for name, p in network.named_parameters() if id(p) in held}


def test_weight_decay_spares_the_cosine_weight_alone() -> None:
    network = small()
    decayed, undecayed = network.parameter_groups(5e-4)
    assert names_in_group(network, undecayed) == {"head.weight"}
    assert undecayed["weight_decay"] == 0.0
    assert decayed["weight_decay"] == 5e-4
    everything = {name for name, _ in network.named_parameters()}
    assert names_in_group(network, decayed) == everything - {"head.weight"}
    assert {"head.scale.linear.weight", "head.scale.norm.bias"} <= names_in_group(network, decayed)


def test_decay_head_decays_everything() -> None:
    network = small()
    (only,) = network.parameter_groups(5e-4, decay_head=True)
    assert len(only["params"]) == len(list(network.parameters()))


def test_any_optimiser_gives_the_backbone_its_own_rate() -> None:
    network = small()
    groups = network.parameter_groups(5e-4, backbone_rate=0.1, learning_rate=2e-3)
    slow, *others = torch.optim.AdamW(groups, lr=1.0).param_groups
    assert slow["lr"] == pytest.approx(2e-4)
    assert names_in_group(network, slow) == {name for name, _ in network.named_parameters() if name[:9] == "backbone."}
    assert [group["lr"] for group in others] == [2e-3, 2e-3]
    assert [group["lr"] for group in network.parameter_groups(5e-4, learning_rate=2e-3)] == [2e-3, 2e-3]


def test_with_an_extra_layer_both_layers_of_the_head_are_spared() -> None:
    network = small(head=partial(CosineHead, hidden=8))
    _, undecayed = network.parameter_groups(5e-4)
    assert names_in_group(network, undecayed) == {"head.weight", "head.hidden.weight", "head.hidden.bias"}


def test_a_linear_head_is_decayed_whole() -> None:
    network = small(head="linear")
    (only,) = network.parameter_groups(5e-4)
    assert len(only["params"]) == len(list(network.parameters()))


def test_frozen_backbones_are_left_alone_by_training() -> None:
    whole = small()
    network = Classifier(whole.backbone, whole.head, freeze=True).train()
    assert not network.backbone.training
    assert network.head.training
    groups = network.parameter_groups(5e-4)
    assert {n for g in groups for n in names_in_group(network, g)} == {
        n for n, _ in network.named_parameters() if n.startswith("head.")
    }
    before = {k: v.clone() for k, v in network.backbone.state_dict().items()}
    optimizer = torch.optim.SGD(groups, lr=0.1)
    nn.functional.cross_entropy(network(torch.rand(4, 3, 16, 16)), torch.arange(4)).backward()
    optimizer.step()
    assert all(torch.equal(before[k], v) for k, v in network.backbone.state_dict().items())


def test_unknown_layers_are_named_with_those_that_exist() -> None:
    with pytest.raises(ArgumentError, match=r"'block9'.*conv, group1"):
        small().outputs(torch.rand(2, 3, 16, 16), ["block9"])


def test_hooks_are_gone_afterwards_even_after_an_error() -> None:
    network = small()
    with pytest.raises(ArgumentError, match="Expected images"):
        network.outputs(torch.rand(2, 5, 16, 16), network.layers)
    assert not any(module._forward_hooks for module in network.backbone.modules())


@pytest.mark.parametrize(
    ("shape", "channels_last", "pooled_size"),
    [((2, 5, 3, 4), False, 5), ((2, 3, 4, 5), True, 5), ((2, 7, 5), False, 5), ((2, 5), False, 5)],
)
def test_layers_are_pooled_over_positions_or_tokens(
    shape: tuple[int, ...], channels_last: bool, pooled_size: int
) -> None:
    out = torch.randn(shape)
    means = pooled(out, channels_last)
    assert means.shape == (2, pooled_size)
    assert torch.equal(pooled((out, None), channels_last), means)
    torch.testing.assert_close(means.mean(), out.mean())


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(ArgumentError, match="got tuple"):
        feature_tensor((torch.rand(2, 3), torch.rand(2, 3)))
    with pytest.raises(ArgumentError, match="maps, tokens or vectors"):
        pooled("words")


def test_paired_takes_the_class_from_one_and_the_cosine_from_the_other() -> None:
    torch.manual_seed(0)
    standard, cosine = small(head="linear").eval(), small().eval()
    paired = Paired(standard, cosine).eval()
    images = torch.rand(3, 3, 16, 16)
    out = paired.outputs(images, paired.layers)
    own = cosine.outputs(images)
    assert torch.equal(paired(images), standard(images))
    assert torch.equal(out.logits, standard(images))
    assert out.cosine is not None
    assert own.cosine is not None
    assert torch.equal(out.cosine, own.cosine)
    assert torch.equal(out.features, own.features)
    assert out.layers is not None
    assert out.layers.keys() == set(cosine.layers)
    assert paired.num_classes == 10
    assert paired.head is cosine.head
    assert torch.equal(paired.features(images), cosine.features(images))


def test_paired_networks_must_know_the_same_classes() -> None:
    with pytest.raises(ArgumentError, match="one with 10 and one with 7"):
        Paired(small(head="linear"), small(num_classes=7))


def test_a_head_of_the_users_own() -> None:
    class Doubled(LinearHead):
        def outputs(self, features: torch.Tensor):  # type: ignore[no-untyped-def]
            out = super().outputs(features)
            return out._replace(logits=2 * out.logits)

    network = small(head=Doubled)
    assert isinstance(network.head, Doubled)
    assert network(torch.rand(2, 3, 16, 16)).shape == (2, 10)


def test_it_is_called_as_networks_of_transformers_are() -> None:
    network, images, labels = small().eval(), torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    logits = network(images)
    assert torch.equal(network(pixel_values=images), logits)
    out = network(pixel_values=images, labels=labels)
    assert torch.equal(out["logits"], logits)
    assert torch.equal(out["loss"], nn.functional.cross_entropy(logits, labels))
    for arguments in ({}, {"images": images, "pixel_values": images}):
        with pytest.raises(ArgumentError, match="one of them alone"):
            network(**arguments)


@pytest.mark.parametrize(
    ("expected", "given", "remedy"),
    [(1, 3, "convert\\('L'\\)"), (3, 1, "expand\\(-1, 3"), (3, 8, "height, width, channels")],
)
def test_another_number_of_channels_is_refused_with_the_remedy(expected: int, given: int, remedy: str) -> None:
    network = small(in_channels=expected).eval()
    with pytest.raises(ArgumentError, match=rf"\(N, {expected}, h, w\).* but got \(2, {given}, 8, 8\)\. .*{remedy}"):
        network(torch.rand(2, given, 8, 8))
    broken = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(12, 2), nn.Linear(5, 2)), LinearHead(2, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # what is not known is not hidden
        broken(torch.rand(2, 3, 2, 2))


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (
            torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
            r"floating point, normalised .* torch\.uint8: Normalise\(mean, std\)",
        ),
        (torch.zeros(2, 1, 8, 8, dtype=torch.float64), r"images\.to\(torch\.float32\)"),
        (np.zeros((2, 1, 8, 8), np.float32), r"got a ndarray: Normalise"),
    ],
)
def test_images_of_another_type_are_refused_with_the_remedy(given: Any, remedy: str) -> None:
    linear = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), LinearHead(2, 3))
    for network in (small(in_channels=1).eval(), *([linear] if isinstance(given, torch.Tensor) else [])):
        with pytest.raises(ArgumentError, match=remedy):
            network(given)


def test_a_single_image_is_refused_with_the_remedy() -> None:
    convolution = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(HeadError, match=r"image\.unsqueeze\(0\)"):
        Classifier(convolution, CosineHead(4, 3)).eval()(torch.rand(1, 8, 8))


class _Scored(nn.Module):
    """Logits and scores of images, as a program that exports both holds them."""

    def __init__(self, network: Classifier, detector: Detector) -> None:
        super().__init__()
        self.network, self.detector = network, detector

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.network.outputs(images, self.detector.layers)
        return outputs.logits, self.detector.score(outputs)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["cosine", "energy", "knn", "react"])
def test_a_classifier_and_its_score_are_exported(name: str, strict: bool) -> None:
    torch.manual_seed(0)
    network = small(in_channels=1).eval()
    detector = make_detector(name, network)
    if detector.needs_fit:
        detector.fit(network, [(torch.rand(60, 1, 8, 8), torch.arange(60) % 10)])
    images, sizes = torch.rand(5, 1, 8, 8), {0: torch.export.Dim("batch", min=2, max=64)}
    program = torch.export.export(_Scored(network, detector), (images[:3],), dynamic_shapes=(sizes,), strict=strict)
    logits, scores = program.module()(images)
    with torch.no_grad():
        outputs = network.outputs(images)
    assert torch.allclose(logits, outputs.logits, atol=1e-5)
    assert torch.allclose(scores, detector.score(outputs), atol=1e-5)
    nan = outputs.logits * torch.nan
    with pytest.raises(BadOutputsError, match="NaN"):  # the checks are left out of the graph alone
        detector.score(outputs._replace(cosine=nan, logits=nan, features=outputs.features * torch.nan))


def test_types_say_what_a_classifier_gives_and_which_heads_there_are() -> None:
    assert get_args(HeadName) == (*HEADS, "keep")
    network = small()
    logits: Tensor = network(torch.rand(2, 3, 8, 8))
    if TYPE_CHECKING:
        assert_type(network(torch.rand(2, 3, 8, 8)), Tensor)
        attach(network, "euclid")  # type: ignore[arg-type]
    assert logits.shape == (2, 10)
