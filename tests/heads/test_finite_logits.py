"""Finite features give finite logits, whatever the head."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

from offaxis import CosineHead, LinearHead
from offaxis.heads import Head
from tests.heads.makers import MAKERS

CASES: dict[str, Callable[[int, int], Head]] = {
    **MAKERS,
    "cosine, learned": partial(CosineHead, scale="learned"),
    "cosine, hidden": partial(CosineHead, hidden=8),
    "cosine, sizes": partial(CosineHead, start="sizes"),
    "linear, predicted": partial(LinearHead, scale="predicted"),
    "linear, learned": partial(LinearHead, scale="learned"),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_finite_wherever_the_features_are(name: str) -> None:
    torch.manual_seed(0)
    head = CASES[name](16, 5)
    head(torch.randn(64, 16))  # statistics of ordinary features
    head.eval()
    directions = torch.randn(20, 16)
    for length in (0.0, 1e-30, 1.0, 1e4, 1e10, 1e20, 1e30, 3e38):
        features = (directions / directions.abs().amax(1, keepdim=True)) * length
        assert features.isfinite().all()
        for sign in (1, -1):
            outputs = head.outputs(sign * features)
            for tensor in (outputs.logits, outputs.detection_logits, outputs.cosine, outputs.scale):
                assert tensor is None or tensor.isfinite().all(), length
            if length == 0.0 and outputs.cosine is not None and name != "cosine, hidden":
                assert (outputs.cosine == 0).all()


@pytest.mark.parametrize("name", CASES)
def test_ordinary_logits_are_not_touched(name: str) -> None:
    """The limits change no bit: in training mode, where there are none, the same functions give the same logits."""
    torch.manual_seed(0)
    head = CASES[name](16, 5).double().eval()
    features = torch.randn(20, 16).double()
    plain = head.outputs(features).logits
    assert torch.equal(head.outputs(features.clamp(-1e14, 1e14)).logits, plain)
