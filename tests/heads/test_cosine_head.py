"""The cosine head: its numbers against a slow version, its promises at the edges, and what PyTorch does with it."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from offaxis.errors import ArgumentError, HeadError
from offaxis.heads import HEADS, CosineHead, Head, LinearHead, Outputs, describe_head, make_head
from tests.heads.makers import MAKERS

ALL_HEADS = [pytest.param(partial(make_head, make), id=name) for name, make in MAKERS.items()]
VARIANTS = [
    pytest.param(partial(CosineHead, scale="learned"), id="cosine-learned"),
    pytest.param(partial(CosineHead, scale=16.0), id="cosine-16"),
    pytest.param(partial(CosineHead, hidden=5), id="cosine-hidden"),
    pytest.param(partial(CosineHead, start="paper"), id="cosine-paper"),
    pytest.param(partial(LinearHead, scale="predicted"), id="linear-predicted"),
]


def slow_outputs(head: CosineHead, features: torch.Tensor) -> tuple[list[list[float]], list[float]]:
    """Cosine and scale by the paper's formulas, a number at a time, for a head in eval mode with a predicted scale."""
    branch = head.scale
    cosines, scales = [], []
    for f in features.tolist():
        row = []
        for w in head.weight.tolist():
            dot = sum(a * b for a, b in zip(f, w, strict=True))
            row.append(dot / math.sqrt(sum(a * a for a in f)) / math.sqrt(sum(b * b for b in w)))
        cosines.append(row)
        z = sum(a * b for a, b in zip(f, branch.linear.weight[0].tolist(), strict=True)) + branch.linear.bias.item()
        norm = branch.norm
        z = (z - norm.running_mean.item()) / math.sqrt(norm.running_var.item() + norm.eps)
        scales.append(math.exp(z * norm.weight.item() + norm.bias.item()))
    return cosines, scales


def test_equals_the_formulas_of_the_paper() -> None:
    torch.manual_seed(0)
    head = CosineHead(7, 4, start="paper").double()
    head(torch.randn(32, 7).double())  # moves the running statistics
    head.eval()
    features = torch.randn(5, 7).double()
    out = head.outputs(features)
    cosines, scales = slow_outputs(head, features)
    assert out.cosine is not None
    assert out.scale is not None
    torch.testing.assert_close(out.cosine, torch.tensor(cosines, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(out.scale, torch.tensor(scales, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(out.logits, out.scale[:, None] * out.cosine, rtol=0, atol=0)
    torch.testing.assert_close(head(features), out.logits, rtol=0, atol=0)


def test_in_training_the_scale_is_normalised_over_the_batch() -> None:
    torch.manual_seed(0)
    head = CosineHead(6, 3, start="paper").double()
    features = torch.randn(64, 6).double()
    scale = head.outputs(features).scale
    assert scale is not None
    logs = scale.detach().log()
    assert abs(float(logs.mean())) < 1e-9
    assert abs(float(logs.var(correction=0)) - 1) < 1e-3  # BN's eps


@given(arrays("float32", (3, 6), elements=st.floats(-1e4, 1e4, width=32)))
@settings(max_examples=60, deadline=None)
def test_cosines_stay_between_minus_one_and_one(values: object) -> None:
    torch.manual_seed(0)
    head = CosineHead(6, 4).eval()
    features = torch.tensor(values)
    features = torch.cat([features, head.weight.detach() * 1e3])  # on an axis itself: where rounding could exceed 1
    cosine = head.outputs(features).cosine
    assert cosine is not None
    assert bool((cosine.abs() <= 1).all())


@given(st.floats(0.01, 1000))
@settings(max_examples=30, deadline=None)
def test_the_cosine_does_not_depend_on_the_length_of_the_features(factor: float) -> None:
    torch.manual_seed(0)
    head = CosineHead(6, 4).double().eval()
    features = torch.randn(5, 6).double()
    torch.testing.assert_close(head.outputs(features * factor).cosine, head.outputs(features).cosine)


def test_a_zero_feature_vector_has_cosine_zero_and_a_finite_gradient() -> None:
    head = CosineHead(6, 4)
    features = torch.zeros(3, 6)
    features[1] = 1.0
    features.requires_grad_()
    out = head.outputs(features)
    assert out.cosine is not None
    assert bool((out.cosine[0] == 0).all())
    assert bool(out.logits.isfinite().all())
    nn.functional.cross_entropy(out.logits, torch.tensor([0, 1, 2])).backward()
    assert features.grad is not None
    assert bool(features.grad.isfinite().all())
    assert all(bool(p.grad.isfinite().all()) for p in head.parameters() if p.grad is not None)


@pytest.mark.parametrize("make", [*ALL_HEADS, *VARIANTS])
def test_a_head_is_a_drop_in_for_linear(make: partial[Head]) -> None:
    torch.manual_seed(0)
    head = make(6, 4)
    features = torch.rand(8, 6)
    out = head.outputs(features)
    assert isinstance(out, Outputs)
    assert out.logits.shape == (8, 4)
    assert out.scale is None or bool((out.scale > 0).all())
    loss = nn.functional.cross_entropy(head(features), torch.arange(8) % 4)
    loss.backward()
    assert all(p.grad is not None for p in head.parameters())


@pytest.mark.parametrize("make", [*ALL_HEADS, *VARIANTS])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_norms_and_exponentials_are_float32(make: partial[Head], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head = make(6, 4)
    features = 300 * torch.rand(64, 6)  # squares overflow float16
    for _ in range(60):
        head(features)  # moves the running statistics to where such features are usual
    head.eval()
    with torch.autocast("cpu", dtype=dtype):
        out = head.outputs(features.to(dtype))
    exact = head.outputs(features.to(dtype).float())
    assert bool(out.logits.isfinite().all())
    if out.cosine is not None:
        assert out.cosine.dtype == torch.float32
        torch.testing.assert_close(out.cosine, exact.cosine)
    if out.scale is not None:
        assert out.scale.dtype == torch.float32
        torch.testing.assert_close(out.scale, exact.scale)


def test_a_network_turned_to_half_precision_still_predicts() -> None:
    head = CosineHead(6, 4).to(torch.bfloat16).eval()
    out = head.outputs(torch.rand(3, 6, dtype=torch.bfloat16))
    assert out.logits.dtype == torch.float32
    assert bool(out.logits.isfinite().all())


@pytest.mark.parametrize("make", [partial(CosineHead), partial(LinearHead, scale="predicted")])
def test_a_training_batch_of_one_is_refused_and_a_prediction_is_not(make: partial[Head]) -> None:
    head = make(6, 4)
    with pytest.raises(HeadError, match="at least 2 images but got 1"):
        head(torch.rand(1, 6))
    assert head.eval()(torch.rand(1, 6)).shape == (1, 4)


@pytest.mark.parametrize("make", [*ALL_HEADS, *VARIANTS])
def test_compiles_and_exports(make: partial[Head]) -> None:
    torch.manual_seed(0)
    head = make(6, 4).eval()
    features = torch.rand(5, 6)
    expected = head(features)
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(head, (features,), dynamic_shapes=({0: batch},), strict=False).module()
    torch.testing.assert_close(exported(torch.cat([features, features])), torch.cat([expected, expected]))
    torch.compiler.reset()  # every head compiles the same method: without this the recompilation limit is hit
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features), expected)


def test_compiles_in_training_too() -> None:
    torch.manual_seed(0)
    head = CosineHead(6, 4)
    features = torch.rand(5, 6)
    torch.compiler.reset()
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features), head(features))


def test_initialisation_is_that_of_linear() -> None:
    torch.manual_seed(3)
    plain = nn.Linear(6, 4)
    torch.manual_seed(3)
    head = LinearHead(6, 4)
    assert torch.equal(head.weight, plain.weight)
    assert torch.equal(head.bias, plain.bias)
    assert head.state_dict().keys() == plain.state_dict().keys()
    features = torch.randn(3, 6)
    assert torch.equal(head(features), plain(features))


def test_the_extra_layer_is_linear_and_its_output_are_the_features() -> None:
    head = CosineHead(6, 4, hidden=5).eval()
    features = torch.rand(3, 6)
    assert head.hidden is not None
    assert torch.equal(head.outputs(features).features, head.hidden(features))
    assert head.weight.shape == (4, 5)
    assert head.scale.linear.in_features == 5


def test_the_learned_scale_is_one_parameter_and_learns() -> None:
    head = CosineHead(6, 4, scale="learned")
    before = head.scale.value.item()
    out = head.outputs(torch.rand(3, 6))
    nn.functional.cross_entropy(out.logits, torch.tensor([0, 1, 2])).backward()
    assert out.scale is not None
    assert out.scale.detach().tolist() == [before] * 3
    assert head.scale.value.grad.item() != 0
    # On the axes themselves, as far apart as four axes can be, the loss is what the starting value was solved for.
    gap = before * (1 + 1 / 3)
    assert math.isclose(math.log1p(3 * math.exp(-gap)), 0.01, rel_tol=1e-5)


@pytest.mark.parametrize("scale", [0, -1.0, math.inf, math.nan, "wide", True, None])
def test_an_impossible_scale_is_refused(scale: object) -> None:
    with pytest.raises(ArgumentError, match="scale"):
        CosineHead(6, 4, scale=scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(0, 4), (6, 1), (6, 0), (2.5, 4)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="whole number"):
        CosineHead(*sizes)
    with pytest.raises(ArgumentError, match="hidden"):
        CosineHead(6, 4, hidden=0)


@pytest.mark.parametrize("shape", [(3, 5), (3,), (3, 6, 1)])
def test_features_of_another_size_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(HeadError, match=r"\(N, 6\)"):
        CosineHead(6, 4)(torch.rand(shape))


def test_an_unknown_head_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ArgumentError, match=r"'cosine'.*but got 'euclid'"):
        make_head("euclid", 6, 4)


@pytest.mark.parametrize("make", [*ALL_HEADS, *VARIANTS])
def test_a_described_head_can_be_made_again(make: partial[Head]) -> None:
    head = make(6, 4)
    said = describe_head(head)
    assert said is not None
    again = partial(HEADS[said.pop("name")], **said)(6, 4)
    again.load_state_dict(head.state_dict())
    features = torch.rand(3, 6)
    assert torch.equal(again.eval()(features), head.eval()(features))
