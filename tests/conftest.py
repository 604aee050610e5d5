"""Fixtures of all tests."""

import importlib
import os
import shutil
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import torch

from tests.models import bundle, cosine_runs, ensemble, leave_out, leave_out_runs, model, pictures, world

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

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
BROWSER_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
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


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["WebDriver"]:
    """A real Chromium without a window, which reaches no machine but this one."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*BROWSER_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield chrome
    finally:
        chrome.quit()
