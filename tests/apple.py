"""An Apple GPU on machines without one: tensors that say they are there, and have no float64."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("mps")
MOVES: tuple[Any, ...] = (Tensor.to, Tensor.cpu)
MIXED: tuple[Any, ...] = (
    *MOVES,
    Tensor.__getitem__,
    Tensor.data.__set__,  # type: ignore[attr-defined]
    torch._has_compatible_shallow_copy_type,
)
"""Functions that take tensors of two devices."""
PLAIN: tuple[Any, ...] = (Tensor.device.__get__, torch.device, torch._C._nn._parse_to)  # type: ignore[attr-defined]
"""Functions that do nothing to tensors."""


def is_there(value: Any) -> bool:
    return isinstance(value, Tensor) and getattr(value, "is_on_apple_gpu", False)


def _real(value: Any) -> Any:
    """The device that stands for the GPU; anything else as it is."""
    return "cpu" if isinstance(value, (str, torch.device)) and str(value) == "mps" else value


class AppleGPU(TorchFunctionMode):
    """Inside the block a tensor moved to ``mps`` stays on the CPU, but is marked, and so is all that is computed from it.

    As on the real one, float64 is a TypeError, and so are NumPy and numbers of the CPU beside its own.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        there = any(map(is_there, tensors))
        if func == Tensor.device.__get__ and there:  # type: ignore[attr-defined]
            return GPU
        if func in PLAIN:
            return func(*args, **kwargs)
        if there and (func is Tensor.numpy or (func not in MIXED and not all(is_there(t) for t in tensors if t.dim()))):
            raise TypeError(f"{func.__name__} of tensors of mps and of the CPU")
        named = [value for value in tree_leaves((args[1:], kwargs)) if isinstance(value, torch.device)]
        asked = [value.type for value in named]
        if func in MOVES:
            texts = [value for value in args[1:] if isinstance(value, str)]
            others = [GPU.type if is_there(value) else "cpu" for value in args[1:] if isinstance(value, Tensor)]
            asked += [*texts, *others, *(["cpu"] if func is Tensor.cpu else [])]
        target = asked[-1] == GPU.type if asked else there
        args, kwargs = tree_map(_real, (args, kwargs))
        result = func(*args, **kwargs)
        if func == Tensor.data.__set__ and is_there(args[1]):  # type: ignore[attr-defined]
            args[0].is_on_apple_gpu = True
        if func in MOVES and target != there:
            result = result.detach().clone()  # to the same device, PyTorch returns the tensor itself
        for value in tree_leaves(result):
            if target and isinstance(value, Tensor):
                if value.dtype == torch.float64:
                    raise TypeError("Cannot convert a MPS Tensor to float64 dtype as MPS has no float64.")
                value.is_on_apple_gpu = True  # type: ignore[attr-defined]
        return result
