"""Batch normalisation whose statistics may span processes, on any device."""

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


def _sum_over_processes(tensor: Tensor) -> Tensor:
    """Compute the sum over all processes, differentiable: the gradient of a sum goes to every summand."""
    if _processes() == 1:
        return tensor
    from torch.distributed.nn.functional import all_reduce  # some builds of PyTorch lack it

    total: Tensor = all_reduce(tensor)
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
        tensors = (self.running_mean, self.running_var, self.weight, self.bias)
        if not self.training:
            # Statistics are cast to the input's type: a network turned to half precision keeps a float32 head input.
            mean, var, weight, bias = (None if t is None else t.to(input.dtype) for t in tensors)
            return F.batch_norm(input, mean, var, weight, bias, training=mean is None, eps=self.eps)
        own = {t.dtype for t in tensors if t is not None}
        if _processes() == 1 and input.numel() == input.shape[1]:
            raise HeadError(ONE_IMAGE)
        # PyTorch's own refuses a float32 input where the network, and this with it, was turned to half precision.
        taken = own <= {input.dtype} or (own == {torch.float32} and input.dtype in (torch.float16, torch.bfloat16))
        return super().forward(input) if taken and _processes() == 1 else self._by_global_batch(input)

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
    parts = [
        (n, p)
        for n, p in module.named_modules(remove_duplicate=False)
        if isinstance(p, _BatchNorm) and type(p) is not SyncedBatchNorm
    ]
    for name, part in parts:
        if type(part) not in _PLAIN:
            raise HeadError(
                f"Expected batch normalisations of PyTorch but {name} is a {type(part).__name__}, which may do more than "
                "normalise, so it cannot be synchronised: train without sync_bn."
            )
    for name, part in parts:
        # The very same parameters and buffers, so that optimisers made earlier still hold them.
        synced = SyncedBatchNorm(part.num_features, part.eps, part.momentum, part.affine, part.track_running_stats)
        synced._parameters, synced._buffers = part._parameters, part._buffers
        parent, _, own = name.rpartition(".")
        setattr(module.get_submodule(parent), own, synced.train(part.training))
    return module
