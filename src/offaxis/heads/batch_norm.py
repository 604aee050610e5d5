"""Batch normalisation whose statistics may span processes, on any device."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from offaxis.errors import HeadError

ONE_IMAGE = (
    "Expected a training batch of at least 2 images but got 1: a variance cannot be taken of one value, and the predicted "
    "scale, like much else, is batch-normalised. Drop the last, incomplete batch (DataLoader(..., drop_last=True)), use "
    "batches of another size, or call .eval() to predict."
)
"""The message for a batch of one image in train mode."""


def _processes() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _SumOverProcesses(torch.autograd.Function):
    """The sum over all processes, differentiable: the gradient of a sum goes to every summand, so it is summed as well."""

    @staticmethod
    def forward(_context: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def _sum_over_processes(tensor: Tensor) -> Tensor:
    if _processes() == 1:
        return tensor
    total: Tensor = _SumOverProcesses.apply(tensor)  # type: ignore[no-untyped-call]
    return total


class SyncedBatchNorm(_BatchNorm):
    """Batch normalisation over the batches of all processes together.

    In one process it is PyTorch's own, bit for bit, and takes inputs of another type than its own as well. In several, the
    mean and the variance are taken over the global batch by two differentiable all-reduces (PyTorch's ``SyncBatchNorm`` runs
    on GPUs only). Takes (N, C) or (N, C, ...). Parameters, buffers and their names are those of ``nn.BatchNorm1d`` and
    ``nn.BatchNorm2d``.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise HeadError(f"Expected at least 2 dimensions (N, C, ...) but got shape {tuple(input.shape)}.")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (N, C, ...) by the global batch in train mode, by running statistics otherwise."""
        if not self.training:
            return self._by_running_statistics(input)
        if _processes() > 1:
            return self._by_global_batch(input)
        if input.numel() == input.shape[1]:
            raise HeadError(ONE_IMAGE)
        # PyTorch's own refuses a float32 input where the network, and this with it, was turned to half precision.
        return super().forward(input) if self._takes(input.dtype) else self._by_global_batch(input)

    def _takes(self, dtype: torch.dtype) -> bool:
        own = {t.dtype for t in (self.weight, self.running_mean) if t is not None}
        return own <= {dtype} or (own == {torch.float32} and dtype in (torch.float16, torch.bfloat16))

    def _by_running_statistics(self, input: Tensor) -> Tensor:
        # Statistics are cast to the input's type: a network turned to half precision keeps a float32 head input.
        tensors = (self.running_mean, self.running_var, self.weight, self.bias)
        mean, var, weight, bias = (None if t is None else t.to(input.dtype) for t in tensors)
        return F.batch_norm(input, mean, var, weight, bias, training=mean is None, eps=self.eps)

    def _by_global_batch(self, input: Tensor) -> Tensor:
        over = [0, *range(2, input.dim())]
        shape = (1, -1, *[1] * (input.dim() - 2))
        with torch.autocast(input.device.type, enabled=False):  # sums and counts do not fit into 16 bits
            x = input.to(torch.promote_types(input.dtype, torch.float32))
            local = x.new_full((1,), x.numel() / x.shape[1])
            totals = _sum_over_processes(torch.cat([x.sum(over), local]))
            count = totals[-1].detach()
            mean = totals[:-1] / count
            centred = x - mean.view(shape)
            var = _sum_over_processes(centred.square().sum(over)) / count
            self._track(mean.detach(), var.detach(), count)
            out: Tensor = centred * (var + self.eps).rsqrt().view(shape)
            if self.weight is not None:
                out = out * self.weight.view(shape) + self.bias.view(shape)
            return out.to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        rate = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_((var * count / (count - 1)).to(self.running_var.dtype), rate)


_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def synchronise(module: nn.Module) -> nn.Module:
    """Turn every batch normalisation inside ``module`` into a SyncedBatchNorm with the same parameters and statistics.

    Raises:
        HeadError: one of them is of a kind that does more than normalise, such as timm's with an activation inside; then
            nothing is changed.
    """
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and not isinstance(part, SyncedBatchNorm) and type(part) not in _PLAIN:
            raise HeadError(
                f"Expected batch normalisations of PyTorch but {name} is a {type(part).__name__}, which may do more than "
                "normalise, so it cannot be synchronised: train without sync_bn."
            )
    _replace(module)
    return module


def _replace(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm) and not isinstance(child, SyncedBatchNorm):
            synced = SyncedBatchNorm(
                child.num_features,
                eps=child.eps,
                momentum=child.momentum,
                affine=child.affine,
                track_running_stats=child.track_running_stats,
            )
            synced.train(child.training)
            # The very same parameters and buffers, so that optimisers made earlier still hold them.
            synced._parameters, synced._buffers = child._parameters, child._buffers
            setattr(module, name, synced)
        else:
            _replace(child)
