"""Fixtures of all tests."""

import importlib
import logging
import os
import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.browser import browser, chromium
from tests.models import bundle, cosine_runs, ensemble, leave_out, leave_out_runs, model, pictures, world
from tests.operators import import_library

__all__ = [
    "browser",
    "bundle",
    "chromium",
    "cosine_runs",
    "ensemble",
    "leave_out",
    "leave_out_runs",
    "model",
    "pictures",
    "world",
]

os.environ.setdefault("MPLBACKEND", "agg")
# a virtual machine may announce AMX and not have it: a product in bfloat16 would end the tests with SIGILL
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
LOGGERS = ("offaxis", "uvicorn")


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """The loggers as they were: a service that is started in this process takes them over."""
    kept = [(logger := logging.getLogger(name), logger.handlers[:], logger.propagate, logger.level) for name in LOGGERS]
    yield
    for logger, handlers, propagate, level in kept:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture(scope="session")
def torchvision_operators() -> None:
    """The operators that torchvision asks for beside a CPU build of torch."""
    try:
        import_library("torchvision")
    except ModuleNotFoundError:
        pytest.skip("torchvision is not installed")


@pytest.fixture(scope="session")
def ood(torchvision_operators: None) -> ModuleType:
    """The package pytorch_ood, which imports torchvision."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what third parties deprecate while they are imported is not ours
        try:
            import_library("pytorch_ood.detector")
        except ModuleNotFoundError:
            pytest.skip("pytorch-ood is not installed (extra pytorch-ood)")
        return importlib.import_module("pytorch_ood")
