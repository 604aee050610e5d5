"""Import libraries that import torchvision, also beside a build of torch that its compiled part was not made for."""

import importlib
import importlib.util
import sys
from types import ModuleType

import torch

_declared: list[torch.library.Library] = []


def import_library(name: str) -> ModuleType:
    """Import a library that may import torchvision, also beside a torch that its compiled part was not built for.

    torchvision then cannot be imported because an operator for boxes is missing (``torchvision::nms does not exist``: its
    wheels of PyPI beside a CPU build of torch). No image classifier calls one, so they are declared, without a definition.

    Raises:
        ImportError: the library, or one that it needs, is not installed.
        RuntimeError: it cannot be imported for another reason.
    """
    if name == "transformers" and importlib.util.find_spec("torchvision") is not None:
        import_library("torchvision")  # which transformers imports with the first network, and then wraps its error
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    if not _declared:
        _declared.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            _declared[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    half = (name.partition(".")[0], "torchvision")
    for module in [m for m in sys.modules if m.partition(".")[0] in half]:
        del sys.modules[module]  # what was imported before the error
    return importlib.import_module(name)
