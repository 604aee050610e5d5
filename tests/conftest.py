"""Fixtures of all tests."""

import importlib
import os
import warnings
from types import ModuleType

import pytest
import torch

from tests.models import bundle, cosine_runs, ensemble, leave_out, leave_out_runs, model, pictures, world

__all__ = [
    "bundle",
    "cosine_runs",
    "ensemble",
    "leave_out",
    "leave_out_runs",
    "model",
    "pictures",
    "world",
]

os.environ.setdefault("MPLBACKEND", "agg")
_kept: list[torch.library.Library] = []


def declare_torchvision_operators() -> None:
    """Let torchvision be imported beside a CPU build of torch, for which its wheels lack two operators.

    They are only declared; nothing in these tests calls them.
    """
    if _kept:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        try:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:  # a matching pair of torch and torchvision has them
            continue
    _kept.append(library)


@pytest.fixture(scope="session")
def torchvision_operators() -> None:
    """The operators that torchvision asks for."""
    declare_torchvision_operators()


@pytest.fixture(scope="session")
def ood(torchvision_operators: None) -> ModuleType:
    """The package pytorch_ood, which imports torchvision."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what third parties deprecate while they are imported is not ours
        try:
            importlib.import_module("pytorch_ood.detector")
        except ModuleNotFoundError:
            pytest.skip("pytorch-ood is not installed (extra pytorch-ood)")
        return importlib.import_module("pytorch_ood")
