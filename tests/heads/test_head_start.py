"""Where the predicted scale starts: the default, the paper's own start bit for bit, and finite logits everywhere."""

import copy
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn
from torch.nn import functional as F

from offaxis import Classifier, CosineHead, LinearHead
from offaxis.errors import ArgumentError
from offaxis.heads import HEADS, describe_head, make_head
from offaxis.heads.cosine import PredictedScale, smallest_sufficient_scale, start_from_sizes, unit_length

PAPER_NAMES = {
    "weight",
    "scale.linear.weight",
    "scale.linear.bias",
    "scale.norm.weight",
    "scale.norm.bias",
    "scale.norm.running_mean",
    "scale.norm.running_var",
    "scale.norm.num_batches_tracked",
}


class Plain(nn.Module):
    """The paper's head, written down with nothing but PyTorch's own modules and no safeguards."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        torch.empty(num_classes).uniform_()  # the bias that nn.Linear would draw
        self.scale = nn.Module()
        self.scale.linear = nn.Linear(in_features, 1)
        self.scale.norm = nn.BatchNorm1d(1)

    def forward(self, f: torch.Tensor) -> torch.Tensor:
        cosine = F.linear(F.normalize(f, dim=1), F.normalize(self.weight, dim=1)).clamp(-1, 1)
        s: torch.Tensor = self.scale.norm(self.scale.linear(f)).squeeze(1).exp()
        return s.unsqueeze(1) * cosine


@pytest.mark.parametrize("length", [1e-3, 1.0, 100.0])
def test_the_papers_start_is_the_papers_head_bit_for_bit(length: float) -> None:
    torch.manual_seed(0)
    ours = CosineHead(16, 5, start="paper")
    torch.manual_seed(0)
    plain = Plain(16, 5)
    assert ours.state_dict().keys() == plain.state_dict().keys() == PAPER_NAMES
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), plain.state_dict().values(), strict=True))
    optimisers = [torch.optim.SGD(m.parameters(), 0.1, 0.9, weight_decay=5e-4, nesterov=True) for m in (ours, plain)]
    for step in range(10):
        features = length * torch.rand(32, 16, generator=torch.Generator().manual_seed(step))
        gradients = []
        for module, optimiser in zip((ours, plain), optimisers, strict=True):
            inputs = features.clone().requires_grad_()
            logits = module(inputs)
            optimiser.zero_grad()
            F.cross_entropy(logits, torch.arange(32) % 5).backward()
            optimiser.step()
            gradients += [logits.detach(), inputs.grad]
        assert torch.equal(gradients[0], gradients[2])
        assert torch.equal(gradients[1], gradients[3])
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), plain.state_dict().values(), strict=True))
    ours.eval(), plain.eval()
    assert torch.equal(ours(features), plain(features))


def test_by_default_all_images_start_with_the_same_scale() -> None:
    torch.manual_seed(0)
    for sizes in ((64, 10), (1280, 19), (64, 100)):
        head = CosineHead(*sizes, start="sizes")
        for mode in (True, False):
            scale = head.train(mode).outputs(torch.rand(8, sizes[0])).scale
            assert scale is not None
            torch.testing.assert_close(scale, torch.full((8,), start_from_sizes(*sizes)))


def test_the_start_is_the_larger_of_what_the_classes_need_and_a_linear_layers() -> None:
    assert start_from_sizes(64, 10) == smallest_sufficient_scale(10)
    assert start_from_sizes(1280, 10) == math.sqrt(1280 / 3)
    # nn.Linear on features of unit mean square: the deviation of its logits is that of s_0 cos
    torch.manual_seed(0)
    features = torch.randn(500, 1200)
    linear = nn.Linear(1200, 50, bias=False)(features).std()
    cosine = CosineHead(1200, 50, start="sizes").outputs(features).logits.std()
    torch.testing.assert_close(cosine, linear, rtol=0.05, atol=0)


def test_a_class_count_gives_the_bound_of_normface() -> None:
    for classes in (2, 10, 1000):
        s = smallest_sufficient_scale(classes)
        others = classes - 1
        # on the axis of its class, -1 / others away from every other
        assert math.isclose(math.log1p(others * math.exp(-s * (1 + 1 / others))), 0.01, rel_tol=1e-9)
        assert CosineHead(8, classes, scale="learned").scale.value.item() == pytest.approx(s)


def test_near_the_start_a_step_moves_the_scale_as_far_as_in_the_paper() -> None:
    slopes = []
    for start in (None, 1.0, 6.0, 40.0):
        scale = PredictedScale(4, start).eval()
        nn.init.zeros_(scale.linear.weight)
        nn.init.zeros_(scale.linear.bias)
        scale(torch.rand(1, 4)).sum().backward()
        slopes.append(scale.norm.bias.grad.item())
    assert slopes == pytest.approx([1.0] * 4)


def test_the_start_is_a_buffer_that_no_optimiser_sees() -> None:
    head = CosineHead(6, 4, start="sizes")
    assert set(head.state_dict()) == PAPER_NAMES | {"scale.start"}
    assert "scale.start" in dict(head.named_buffers())
    classifier = Classifier(nn.Identity(), head)
    groups = classifier.parameter_groups(0.5)
    undecayed = [p for g in groups if g["weight_decay"] == 0 for p in g["params"]]
    assert len(undecayed) == 1
    assert undecayed[0] is head.weight
    start: Any = head.scale.start
    before = start.clone()
    optimiser = torch.optim.AdamW(groups, lr=0.1)
    for _ in range(50):
        optimiser.zero_grad()
        F.cross_entropy(classifier(torch.rand(8, 6)), torch.arange(8) % 4).backward()
        optimiser.step()
    assert torch.equal(start, before)


def test_the_gain_starts_at_nothing_and_learns() -> None:
    torch.manual_seed(0)
    head = CosineHead(6, 4, start="sizes")
    assert head.scale.norm.weight.item() == 0
    assert CosineHead(6, 4, start="paper").scale.norm.weight.item() == 1
    optimiser = torch.optim.SGD(head.parameters(), 0.1)
    for _ in range(2):
        optimiser.zero_grad()
        F.cross_entropy(head(torch.rand(8, 6)), torch.arange(8) % 4).backward()
        optimiser.step()
    assert head.scale.norm.weight.item() != 0
    assert bool((head.scale.linear.weight.grad != 0).any())


@pytest.mark.parametrize("start", ["sizes", "paper"])
def test_a_head_is_made_again_with_its_start(start: Any) -> None:
    torch.manual_seed(0)
    head = CosineHead(6, 4, start=start)
    said = json.loads(json.dumps(describe_head(head)))
    assert said == {"name": "cosine", "scale": "predicted", "hidden": None, "start": start}
    again = CosineHead(6, 4, **{k: v for k, v in said.items() if k != "name"})
    again.load_state_dict(head.state_dict())
    features = torch.rand(5, 6)
    assert torch.equal(again.eval()(features), head.eval()(features))


def test_weights_from_before_there_was_a_start_give_the_logits_they_gave() -> None:
    torch.manual_seed(0)
    old = Plain(6, 4)
    old(torch.rand(8, 6))
    state = copy.deepcopy(old.state_dict())
    new = CosineHead(6, 4, start="sizes")
    new.load_state_dict(state)
    assert state.keys() == PAPER_NAMES
    features = torch.rand(5, 6)
    assert torch.equal(new.eval()(features), old.eval()(features))
    inside = Classifier(nn.Identity(), CosineHead(6, 4, start="sizes"))
    inside.load_state_dict({f"head.{k}": v for k, v in state.items()})
    assert torch.equal(inside.eval()(features), old(features))


def test_the_scaled_linear_head_keeps_the_papers_start() -> None:
    head = LinearHead(6, 4, scale="predicted")
    assert isinstance(head.scale, PredictedScale)
    assert head.scale.start is None
    assert head.scale.norm.weight.item() == 1


def test_an_unknown_start_is_refused() -> None:
    with pytest.raises(ArgumentError, match='"sizes" or "paper" but got \'warm\''):
        CosineHead(6, 4, start="warm")  # type: ignore[arg-type]


def test_the_default_head_of_the_names_has_the_default_start() -> None:
    assert make_head("cosine", 6, 4).arguments["start"] == "sizes"
    assert "start" not in make_head("linear", 6, 4).arguments
    assert set(HEADS) >= {"cosine", "linear"}


LARGE = st.floats(-(2.0**127), 2.0**127, width=32)


@given(arrays("float32", (4, 6), elements=LARGE), st.floats(-30, 38))
@settings(max_examples=150, deadline=None)
def test_logits_are_finite_for_all_finite_features(values: Any, power: float) -> None:
    torch.manual_seed(0)
    any_length = torch.tensor(values)
    one_length = F.normalize(torch.randn(4, 6), dim=1) * 10**power
    for arguments in ({}, {"start": "paper"}, {"hidden": 5}, {"scale": 16.0}):
        head = CosineHead(6, 4, **arguments)  # type: ignore[arg-type]
        if arguments == {}:
            head.scale.norm.weight.data.fill_(3.0)  # as training might leave it
        head.eval()
        for features in (any_length, one_length):
            out = head.outputs(features)
            assert out.cosine is not None
            assert out.scale is not None
            assert bool(out.logits.isfinite().all())
            assert bool((out.cosine.abs() <= 1).all())
            assert bool((out.scale > 0).all())
            assert bool(out.scale.isfinite().all())
            assert bool(F.softmax(out.logits, 1).isfinite().all())


@pytest.mark.parametrize("length", [1e4, 1e15, 1e16, 1e19, 1e20, 1e30, 1e38])
def test_very_long_features_keep_their_direction(length: float) -> None:
    torch.manual_seed(0)
    head = CosineHead(6, 4).eval()
    directions = F.normalize(torch.randn(5, 6), dim=1)
    torch.testing.assert_close(head.outputs(directions * length).cosine, head.outputs(directions).cosine)


def test_unit_length_is_normalize_bit_for_bit_below_its_limit() -> None:
    torch.manual_seed(0)
    for length in (1e-20, 1e-6, 1.0, 1e4, 1e14):
        features = length * torch.randn(7, 33)
        assert torch.equal(unit_length(features), F.normalize(features, dim=1))


def test_zero_features_have_cosine_zero_and_logits_zero() -> None:
    out = CosineHead(6, 4).eval().outputs(torch.zeros(3, 6))
    assert out.cosine is not None
    assert bool((out.cosine == 0).all())
    assert bool((out.logits == 0).all())


def test_a_small_network_learns_under_adamw() -> None:
    """The failure that the default start is for: Gaussian clusters with a common mean, AdamW, 60 steps."""
    accuracies = {}
    for start in ("sizes", "paper"):
        torch.manual_seed(0)
        centres = torch.randn(10, 32)
        labels = torch.arange(500) % 10
        features = 10 + 2 * centres[labels] + torch.randn(500, 32)
        head = CosineHead(32, 10, start=start)  # type: ignore[arg-type]
        optimiser = torch.optim.AdamW(Classifier(nn.Identity(), head).parameter_groups(0.01), lr=1e-2)
        for _ in range(60):
            optimiser.zero_grad()
            F.cross_entropy(head(features), labels).backward()
            optimiser.step()
        accuracies[start] = float((head.eval()(features).argmax(1) == labels).float().mean())
    assert accuracies["sizes"] > 0.9
    assert accuracies["sizes"] > accuracies["paper"] + 0.2
