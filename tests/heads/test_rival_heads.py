"""Generalized ODIN's and IsoMax+'s heads: their formulas, and that they train like ours by one argument."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from offaxis.errors import ArgumentError, HeadError
from offaxis.heads import HEADS, DeConfHead, Head, IsoMaxHead
from offaxis.networks import wide_resnet

RIVALS = ("deconf-c", "deconf-i", "deconf-e", "isomax")


@pytest.fixture(params=RIVALS)
def head(request: pytest.FixtureRequest) -> Head:
    torch.manual_seed(0)
    return HEADS[request.param](16, 5)


def test_deconf_divides_its_numerator_by_its_confidence() -> None:
    torch.manual_seed(0)
    f = torch.randn(8, 16)
    for similarity in ("cosine", "inner", "euclid"):
        head: Any = DeConfHead(16, 5, similarity).eval()
        w = head.weight
        raw = F.linear(f, head.confidence.weight, head.confidence.bias)
        g = torch.sigmoid((raw - head.norm.running_mean) / (head.norm.running_var + 1e-5).sqrt())
        h = {
            "cosine": F.cosine_similarity(f.unsqueeze(1), w, dim=2),
            "inner": f @ w.T + (0 if head.bias is None else head.bias),
            "euclid": -(f.unsqueeze(1) - w).square().sum(2),
        }[similarity]
        out = head.outputs(f)
        torch.testing.assert_close(out.logits, h / g, rtol=1e-4, atol=1e-4)
        assert out.scale is not None
        torch.testing.assert_close(out.scale, 1 / g.squeeze(1))
        assert (out.cosine is not None) == (similarity == "cosine")


def test_isomax_is_the_distance_to_prototypes_with_the_entropic_scale_while_training() -> None:
    torch.manual_seed(0)
    head, f = IsoMaxHead(16, 5), torch.randn(8, 16)
    with torch.no_grad():
        head.distance_scale.fill_(-2.0)
    distance = torch.cdist(F.normalize(f), F.normalize(head.prototypes))
    torch.testing.assert_close(head.eval()(f), -2 * distance, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.train()(f), -20 * distance, rtol=1e-4, atol=1e-4)


def test_gradients_are_finite_where_features_lie_on_a_prototype_or_are_zero(head: Head) -> None:
    weight = head.prototypes if isinstance(head, IsoMaxHead) else head.weight
    f = torch.cat([weight.detach(), torch.zeros(2, 16)]).requires_grad_()
    head(f).sum().backward()
    assert f.grad is not None
    assert f.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in head.parameters())


def test_under_autocast_they_compute_in_float32(head: Head) -> None:
    f = torch.randn(4, 16)
    expected = head.eval().outputs(f).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = head.outputs(f)
    assert out.logits.dtype == torch.float32
    torch.testing.assert_close(out.logits, expected)
    assert head.half().outputs(f.half()).logits.dtype == torch.float32
    assert head.double().outputs(f.double()).logits.dtype == torch.float64


def test_they_export(head: Head) -> None:
    program = torch.export.export(head.eval(), (torch.randn(4, 16),), strict=True)
    f = torch.randn(4, 16)
    torch.testing.assert_close(program.module()(f), head(f))


@pytest.mark.parametrize("name", RIVALS)
def test_they_train_by_one_argument(name: Any) -> None:
    torch.manual_seed(0)
    network = wide_resnet(10, 1, num_classes=3, head=name, in_channels=1)
    optimiser = torch.optim.SGD(network.parameter_groups(5e-4), lr=0.05, momentum=0.9)
    images, labels = torch.randn(24, 1, 8, 8), torch.arange(24) % 3
    images += labels.view(-1, 1, 1, 1)
    losses = []
    for _ in range(15):
        loss = F.cross_entropy(network(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_weight_decay_spares_the_numerator_of_deconf_alone() -> None:
    network = wide_resnet(10, 1, num_classes=3, head="deconf-i", in_channels=1)
    decayed, spared = network.parameter_groups(5e-4)
    assert {id(p) for p in spared["params"]} == {id(network.head.weight), id(network.head.bias)}
    assert len(wide_resnet(10, 1, head="isomax").parameter_groups(5e-4)) == 1
    assert decayed["weight_decay"] == 5e-4


def test_errors(head: Head) -> None:
    with pytest.raises(ArgumentError, match="similarity"):
        DeConfHead(16, 5, "dot")  # type: ignore[arg-type]
    with pytest.raises(HeadError, match="shape"):
        head(torch.randn(2, 15))
    with pytest.raises(ArgumentError, match="num_classes"):
        partial(IsoMaxHead, 16)(1)
