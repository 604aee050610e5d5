"""Batch normalisation over processes: PyTorch's own in one, the global batch's in several."""

import copy
import os
import socket
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from offaxis.errors import HeadError
from offaxis.heads import batch_norm
from offaxis.heads.batch_norm import SyncedBatchNorm, synchronise
from tests.heads.makers import MAKERS


def test_in_one_process_it_is_pytorchs_bit_for_bit() -> None:
    torch.manual_seed(0)
    ours, theirs = SyncedBatchNorm(4), nn.BatchNorm2d(4)
    for _ in range(3):
        images = torch.randn(6, 4, 3, 3)
        assert torch.equal(ours(images), theirs(images))
    assert ours.running_var is not None
    assert theirs.running_var is not None
    assert torch.equal(ours.running_var, theirs.running_var)
    ours.eval(), theirs.eval()
    assert torch.equal(ours(images), theirs(images))
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_synchronise_keeps_parameters_and_statistics() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm1d(2)))
    parameters = list(network.parameters())
    synced = synchronise(copy.copy(network))
    assert all(a is b for a, b in zip(synced.parameters(), parameters, strict=True))
    assert sum(isinstance(m, SyncedBatchNorm) for m in synced.modules()) == 2
    assert not any(type(m) in (nn.BatchNorm1d, nn.BatchNorm2d) for m in synced.modules())


class WithActivation(nn.BatchNorm2d):
    """As timm has them."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu()


def test_a_normalisation_that_does_more_is_not_replaced() -> None:
    network = nn.Sequential(nn.BatchNorm2d(2), nn.Sequential(WithActivation(2)))
    with pytest.raises(HeadError, match=r"1\.0 is a WithActivation"):
        synchronise(network)
    assert [type(m) for m in network.modules()][1:] == [nn.BatchNorm2d, nn.Sequential, WithActivation]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_over_processes_fit_into_their_type(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(batch_norm, "_processes", lambda: 2)
    monkeypatch.setattr(batch_norm, "_sum_over_processes", lambda tensor: tensor)
    images = torch.randn(128, 2, 32, 17, generator=torch.Generator().manual_seed(0)) * 3 + 1  # 69,632 values a channel
    ours, theirs = SyncedBatchNorm(2), nn.BatchNorm2d(2)
    with torch.autocast("cpu", dtype):
        out = ours(images.to(dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), theirs(images.to(dtype).float()), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(ours.running_var, theirs.running_var)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_in_half_precision_normalises_a_float32_input(dtype: torch.dtype) -> None:
    images = torch.randn(32, 2, generator=torch.Generator().manual_seed(0)) * 3 + 1
    ours, theirs = SyncedBatchNorm(2).to(dtype), nn.BatchNorm1d(2)
    out = ours(images)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, theirs(images))
    torch.testing.assert_close(ours.running_var.float(), theirs.running_var, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MAKERS)
def test_every_head_in_half_precision_takes_a_step(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head = MAKERS[name](6, 3).to(dtype).train()
    features = torch.rand(8, 6, dtype=dtype, requires_grad=True)
    nn.functional.cross_entropy(head(features), torch.arange(8) % 3).backward()
    assert features.grad is not None
    assert features.grad.isfinite().all()
    before = {n: p.detach().clone() for n, p in head.named_parameters()}
    torch.optim.SGD(head.parameters(), lr=1.0).step()
    assert all(p.isfinite().all() and p.dtype == dtype for p in head.parameters())
    assert any(not torch.equal(p, before[n]) for n, p in head.named_parameters())


def _one_of_two(rank: int, port: int, folder: str, images: torch.Tensor, weights: torch.Tensor) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    norm = SyncedBatchNorm(3).double()
    share = images[rank * 4 : rank * 4 + 4].clone().requires_grad_()
    out = norm(share)
    (out * weights[rank * 4 : rank * 4 + 4]).sum().backward()
    torch.save(
        {"out": out.detach(), "gradient": share.grad, "var": norm.running_var, "mean": norm.running_mean},
        f"{folder}/{rank}.part",
    )
    Path(folder, f"{rank}.part").rename(Path(folder, f"{rank}.pt"))
    while not Path(folder, f"{1 - rank}.pt").exists():
        time.sleep(0.01)
    os._exit(0)  # gloo's threads and its store abort a process whose peer has gone first


def test_two_processes_normalise_by_their_common_batch_and_pass_the_gradient_back(tmp_path: object) -> None:
    torch.manual_seed(0)
    images, weights = torch.randn(8, 3, 2, 2).double(), torch.randn(8, 3, 2, 2).double()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_one_of_two, (port, str(tmp_path), images, weights), nprocs=2)  # type: ignore[no-untyped-call]
    halves = [torch.load(f"{tmp_path}/{rank}.pt", weights_only=True) for rank in (0, 1)]
    norm = nn.BatchNorm2d(3).double()
    whole = images.clone().requires_grad_()
    out = norm(whole)
    (out * weights).sum().backward()
    torch.testing.assert_close(torch.cat([h["out"] for h in halves]), out.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat([h["gradient"] for h in halves]), whole.grad, rtol=0, atol=1e-12)
    for half in halves:
        torch.testing.assert_close(half["var"], norm.running_var, rtol=0, atol=1e-12)
        torch.testing.assert_close(half["mean"], norm.running_mean, rtol=0, atol=1e-12)
