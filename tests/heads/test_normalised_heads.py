"""LogitNorm, T2FNorm and ELogitNorm against slow and obvious versions, and where their formulas divide by zero."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from offaxis.errors import ArgumentError
from offaxis.heads import HEADS, ELogitNormHead, LogitNormHead, T2FNormHead
from offaxis.heads.normalised import mean_boundary_distance
from offaxis.networks import wide_resnet

NAMES = ("logitnorm", "t2fnorm", "elogitnorm")


def features(count: int = 8, width: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def test_logitnorm_has_logits_of_constant_length_in_training_alone() -> None:
    torch.manual_seed(0)
    head, f = LogitNormHead(16, 5, tau=0.1), features()
    plain = F.linear(f, head.weight, head.bias)
    expected = torch.stack([row / (0.1 * row.square().sum().sqrt()) for row in plain])
    torch.testing.assert_close(head(f), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head.eval()(f), plain)


def test_t2fnorm_classifies_with_unit_features_and_scores_with_plain_ones() -> None:
    torch.manual_seed(0)
    head, f = T2FNormHead(16, 5, tau=0.2), features()
    unit = torch.stack([row / row.square().sum().sqrt() for row in f])
    torch.testing.assert_close(head(f), unit @ head.weight.T / 0.2 + head.bias)
    assert head.outputs(f).score_logits is None
    out = head.eval().outputs(f)
    torch.testing.assert_close(out.logits, unit @ head.weight.T / 0.2 + head.bias)
    torch.testing.assert_close(out.detection_logits, f @ head.weight.T / 0.2 + head.bias)


def slow_distance(logits: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = []
    for z in logits:
        best = int(z.argmax())
        terms = [
            torch.zeros(()) if c == best else (z[best] - z[c]).abs() / (weight[best] - weight[c]).norm()
            for c in range(len(z))
        ]
        rows.append(torch.stack(terms).mean())
    return torch.stack(rows).unsqueeze(1)


def test_elogitnorm_divides_by_the_mean_distance_to_the_boundaries() -> None:
    torch.manual_seed(0)
    head, f = ELogitNormHead(16, 5).double(), features().double()
    plain = F.linear(f, head.weight, head.bias)
    torch.testing.assert_close(mean_boundary_distance(plain, head.weight), slow_distance(plain, head.weight))
    torch.testing.assert_close(head(f), plain / slow_distance(plain, head.weight))
    torch.testing.assert_close(head.eval()(f), plain)


def test_the_gradient_flows_through_the_distance() -> None:
    torch.manual_seed(0)
    labels = torch.arange(8) % 5
    head = ELogitNormHead(16, 5).double()

    def gradient(detached: bool) -> torch.Tensor:
        f = features().double().requires_grad_()
        plain = F.linear(f, head.weight, head.bias)
        distance = mean_boundary_distance(plain, head.weight)
        loss = F.cross_entropy(plain / (distance.detach() if detached else distance), labels)
        return torch.autograd.grad(loss, f)[0]

    f = features().double().requires_grad_()
    (own,) = torch.autograd.grad(F.cross_entropy(head(f), labels), f)
    torch.testing.assert_close(own, gradient(detached=False))
    assert not torch.allclose(own, gradient(detached=True))
    assert torch.autograd.gradcheck(head, (features(3).double().requires_grad_(),))


@pytest.mark.parametrize("name", NAMES)
def test_equal_logits_and_equal_weights_stay_finite(name: str) -> None:
    head: Any = HEADS[name](16, 5)
    f = features().requires_grad_()
    with torch.no_grad():
        head.weight.copy_(head.weight[:1].expand_as(head.weight))
        head.bias.zero_()
    for given_features in (f, torch.zeros(4, 16, requires_grad=True)):
        logits = head(given_features)
        assert torch.isfinite(logits).all()
        F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long)).backward()
        assert torch.isfinite(head.weight.grad).all()
        assert given_features.grad is not None
        assert torch.isfinite(given_features.grad).all()
        head.weight.grad = None


@pytest.mark.parametrize("name", NAMES)
def test_a_head_that_starts_at_zero_learns(name: str) -> None:
    """Equal logits have no length and no distance to a boundary; the first step is one of ordinary size even so."""
    head: Any = HEADS[name](16, 4)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    f, labels = features(40), torch.arange(40) % 4
    optimiser = torch.optim.SGD(head.parameters(), 0.05)
    losses = []
    for _ in range(60):
        loss = F.cross_entropy(head(f), labels)
        optimiser.zero_grad()
        loss.backward()
        assert head.weight.grad.abs().max() < 100
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-20, 1e15), st.integers(0, 2**31), st.sampled_from(NAMES))
def test_finite_features_have_finite_logits(size: float, seed: int, name: str) -> None:
    torch.manual_seed(seed)
    head: Any = HEADS[name](8, 3)
    f = size * features(5, 8, seed)
    assert torch.isfinite(head(f)).all()
    assert torch.isfinite(head.eval()(f)).all()


@pytest.mark.parametrize("name", NAMES)
def test_they_train_by_one_argument_and_under_autocast(name: Any) -> None:
    torch.manual_seed(0)
    network = wide_resnet(10, 1, num_classes=3, head=name, in_channels=1)
    images, labels = torch.randn(12, 1, 8, 8), torch.arange(12) % 3
    optimiser = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    losses = []
    for _ in range(25):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(network(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("tau", [0, -1.0, float("inf"), "hot", True])
def test_tau_is_a_positive_number(tau: Any) -> None:
    for kind in (LogitNormHead, T2FNormHead):
        with pytest.raises(ArgumentError, match="tau"):
            kind(8, 3, tau=tau)
