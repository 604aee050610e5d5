"""Fixtures of all tests."""

import importlib
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from offaxis.networks.third_party import import_library
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
# a virtual machine may announce AMX and not have it: a product in bfloat16 would end the tests with SIGILL
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
LOGGERS = ("offaxis", "uvicorn")
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
