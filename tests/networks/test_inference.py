"""The one inference loop: modes, device, types, layers, labels, progress and finite numbers."""

import copy

import pytest
import torch
from torch import Tensor, nn

from offaxis.detectors import MahalanobisPlusPlus, MeanCosine
from offaxis.detectors.odin import fast_gradient_sign
from offaxis.errors import ArgumentError, BadOutputsError, DetectorError
from offaxis.heads import make_head
from offaxis.networks import wide_resnet
from offaxis.networks.classifier import Classifier
from offaxis.networks.run import (
    check_takes,
    memory_parts,
    prepared_batches,
    resolve_device,
    run,
    run_batch,
    to_network,
)
from offaxis.networks.saved import checksum


@pytest.fixture
def network() -> Classifier:
    torch.manual_seed(0)
    return wide_resnet(10, 1, num_classes=4)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_run_gives_outputs_images_and_labels_batch_by_batch(network: Classifier) -> None:
    batches = [(images(3), torch.tensor([0, 1, 2])), (images(2, 1), torch.tensor([3, 3]))]
    results = list(run(network, batches, labels=True))
    assert [outputs.logits.shape for outputs, _, _ in results] == [(3, 4), (2, 4)]
    for (outputs, prepared, labels), (given, given_labels) in zip(results, batches, strict=True):
        assert torch.equal(prepared, given)
        assert prepared.is_contiguous(memory_format=torch.channels_last)
        assert labels is not None
        assert torch.equal(labels, given_labels)
        assert torch.equal(outputs.logits, run_batch(network, to_network(network, given)).logits)
        assert not outputs.logits.requires_grad


def test_the_modes_are_back_whenever_a_batch_is_handed_out(network: Classifier) -> None:
    network.train()
    network.backbone.eval()
    seen: list[bool] = []
    network.head.register_forward_hook(lambda module, _x, _o: seen.append(module.training))
    network.backbone.register_forward_hook(lambda module, _x, _o: seen.append(module.training))
    for _ in run(network, [images(2), images(2)]):
        assert network.training
        assert not network.backbone.training
        assert torch.is_grad_enabled()
    assert seen
    assert not any(seen)


def test_the_loop_can_be_left_early(network: Classifier) -> None:
    network.train()
    next(run(network, [images(2), images(2)]))
    assert all(module.training for module in network.modules())


def test_images_take_the_type_of_the_network(network: Classifier) -> None:
    network.double()
    ((outputs, prepared, labels),) = run(network, [images(2)], device="cpu")
    assert prepared.dtype == outputs.logits.dtype == torch.float64
    assert labels is None


def test_layers_come_with_the_same_pass(network: Classifier) -> None:
    ((outputs, _, _),) = run(network, [images(2)], layers=["group1"])
    assert outputs.layers["group1"].shape == (2, 16)


def test_labels_are_passed_on_unless_they_are_required(network: Classifier) -> None:
    outside = [(images(2), torch.tensor([7, 9]))]
    ((_, _, labels),) = run(network, outside)
    assert labels is not None
    assert labels.tolist() == [7, 9]
    with pytest.raises(DetectorError, match=r"labels in 0\.\.3.* from 7 to 9"):
        list(run(network, outside, labels=True))
    with pytest.raises(DetectorError, match="images alone"):
        list(run(network, [images(2)], labels=True))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, torch.float32, torch.float64])
def test_labels_are_whole_numbers_of_any_type(network: Classifier, kind: torch.dtype) -> None:
    for detector in (MeanCosine(), MahalanobisPlusPlus()):
        given = torch.arange(8) % 4
        expected = copy.deepcopy(detector).fit(network, [(images(8), given)])
        again = detector.fit(network, [(images(8), given.to(kind))])
        torch.testing.assert_close(again.state_dict(), expected.state_dict())
    moved = fast_gradient_sign(network, images(8), given.to(kind), magnitude=0.1)
    assert torch.equal(moved, fast_gradient_sign(network, images(8), given, magnitude=0.1))
    if kind.is_floating_point:
        for wrong in (0.5, float("nan"), float("inf")):
            with pytest.raises(DetectorError, match="whole numbers"):
                detector.fit(network, [(images(8), given.to(kind) + wrong)])


def test_progress_counts_finished_batches(network: Classifier) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.done: list[int] = []

        def to(self, done: int, /) -> None:
            self.done.append(done)

    recorder = Recorder()
    batches = run(network, [images(2), images(2)], progress=recorder)
    next(batches)
    assert recorder.done == []  # the first batch is still being worked on
    list(batches)
    assert recorder.done == [1, 2]
    list(prepared_batches(network, [images(2)], progress=recorder))
    assert recorder.done == [1, 2, 1]


def test_what_is_not_finite_is_refused(network: Classifier) -> None:
    broken = images(2)
    broken[1, 0, 0, 0] = torch.nan
    with pytest.raises(BadOutputsError, match="NaN or infinity in the images"):
        list(run(network, [broken], check_finite=False))
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.fill_(torch.inf)
    with pytest.raises(BadOutputsError, match="NaN or infinity in the network's"):
        list(run(network, [images(2)]))
    assert len(list(run(network, [images(2)], check_finite=False))) == 1


def test_a_device_by_name() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device(torch.device("cpu")) == torch.device("cpu")
    assert resolve_device("auto").type in ("cuda", "mps", "cpu")


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(ArgumentError, match=r"\(auto, cpu.*but got"):
        resolve_device(name)


def test_large_images_go_through_the_network_in_parts_with_their_labels(network: Classifier) -> None:
    side, labels = 256, torch.arange(10) % network.num_classes  # 8 images of 256x256 are as many as go at once
    pixels = torch.randn(10, 3, side, side, generator=torch.Generator().manual_seed(0))
    done = [(len(part), own) for _, part, own in run(network, [(pixels, labels)], labels=True)]
    assert [count for count, _ in done] == [8, 2]
    assert torch.equal(torch.cat([own for _, own in done if own is not None]), labels)
    assert [len(part) for part, own in prepared_batches(network, [pixels]) if own is None] == [8, 2]
    whole = run_batch(network, to_network(network, pixels)).logits
    parts = torch.cat([outputs.logits for outputs, _, _ in run(network, [pixels])])
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)


def test_small_images_stay_in_one_batch_and_so_do_vectors() -> None:
    assert [len(part) for part in memory_parts(torch.zeros(512, 1, 32, 32))] == [512]
    assert [len(part) for part in memory_parts(torch.zeros(600, 8))] == [600]
    assert [len(part) for part in memory_parts(torch.zeros(2, 1, 1024, 1024))] == [1, 1]
    assert [len(part) for part in memory_parts(torch.zeros(0, 3, 224, 224))] == [0]


class TwoArguments(nn.Module):
    def forward(self, images: Tensor, mask: Tensor) -> Tensor:
        return images.flatten(1) * mask


class TwoResults(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images.flatten(1), images


@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(50, 12)), "--size"),
        (TwoArguments(), r"takes one argument, a batch of images"),
        (TwoResults(), r"Expected the network to return a tensor"),
    ],
)
def test_a_network_that_takes_no_such_images_is_named_by_its_reason(backbone: nn.Module, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        check_takes(Classifier(backbone, make_head("linear", 12, 3)), (3, 2, 2))


def test_a_network_in_bfloat16_has_a_checksum_of_its_own() -> None:
    network = nn.Linear(4, 3)
    whole = checksum(network, None)
    half = checksum(network.bfloat16(), None)
    assert half == checksum(network, None) != whole
    with torch.no_grad():
        network.weight[0, 0] += 1
    assert checksum(network, None) != half
