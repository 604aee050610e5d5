"""Modules whose buffers come with fitting, and can be loaded before it."""

from typing import Any

import torch
from torch import Tensor, nn


class Fitted(nn.Module):
    """A module with buffers that are None until it is fitted or loaded.

    ``load_state_dict`` of PyTorch refuses tensors for which a module has no place yet; here a buffer takes the shape of
    what is loaded, so that an unfitted module becomes the fitted one.
    """

    def expect(self, *names: str) -> None:
        """Register buffers that fitting will fill."""
        for name in names:
            self.register_buffer(name, None)

    @property
    def fitted(self) -> bool:
        """Whether every buffer, of the parts too, has its value."""
        own = all(buffer is not None for buffer in self._buffers.values())
        return own and all(part.fitted for part in self.children() if isinstance(part, Fitted))

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for name, buffer in self._buffers.items():
            value = state_dict.get(prefix + name)
            if isinstance(value, Tensor) and (buffer is None or buffer.shape != value.shape):
                self._buffers[name] = torch.empty_like(value)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
