"""Noise is a function of (seed, index) and of nothing else."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offaxis.data.embedded import GaussianNoise, Noise, UniformNoise
from offaxis.errors import ArgumentError

GAUSSIAN_START = [0.0, 0.0, 0.7844057, 0.0]
UNIFORM_START = [0.034741878509521484, 0.011546730995178223, 0.6119502186775208, 0.24154919385910034]
COUNT, SHAPE = 40, (3, 5, 7)
SETS = [GaussianNoise(COUNT, SHAPE), GaussianNoise(COUNT, SHAPE, std=0.25, seed=3), UniformNoise(COUNT, SHAPE, seed=1)]


@pytest.mark.parametrize("noise", SETS, ids=lambda n: n.name)
@given(size=st.integers(1, COUNT + 5), order=st.permutations(range(COUNT)))
@settings(max_examples=25, deadline=None)
def test_neither_batch_size_nor_order_matters(noise: Noise, size: int, order: list[int]) -> None:
    whole = noise.batch(torch.arange(COUNT))
    assert torch.equal(torch.cat(list(noise.batches(size))), whole)
    assert torch.equal(noise.batch(torch.tensor(order)), whole[order])


def test_workers_do_not_matter() -> None:
    noise = SETS[0]
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda i: noise.batch(torch.tensor([i])), range(COUNT)))
    assert torch.equal(torch.cat(rows), noise.batch(torch.arange(COUNT)))


def test_a_longer_set_begins_with_the_same_images() -> None:
    assert torch.equal(UniformNoise(99, SHAPE).batch(torch.arange(9)), UniformNoise(9, SHAPE).batch(torch.arange(9)))


def test_the_same_images_on_every_machine() -> None:
    first = GaussianNoise(1, (1, 2, 2)).batch(torch.tensor([0])).flatten()
    torch.testing.assert_close(first, torch.tensor(GAUSSIAN_START), rtol=0, atol=1e-6)
    uniform = UniformNoise(1, (1, 2, 2)).batch(torch.tensor([0])).flatten()
    torch.testing.assert_close(uniform, torch.tensor(UNIFORM_START), rtol=0, atol=0)


def test_no_two_images_and_no_two_seeds_are_alike() -> None:
    images = torch.cat([UniformNoise(20, (1, 8, 8), seed=seed).batch(torch.arange(20)) for seed in range(3)]).flatten(1)
    assert len(images.unique(dim=0)) == 60
    correlation = torch.corrcoef(images).fill_diagonal_(0)
    assert correlation.abs().max() < 0.6  # 64 pixels: about five standard deviations


@pytest.mark.parametrize(("std", "clipped"), [(1.0, 0.3085), (0.25, 0.02275)])
def test_gaussian_noise_has_its_published_moments(std: float, clipped: float) -> None:
    pixels = torch.cat(list(GaussianNoise(200, (3, 32, 32), std).batches(50)))
    assert pixels.dtype == torch.float32
    assert pixels.min() == 0
    assert pixels.max() == 1
    for edge in (0, 1):
        assert (pixels == edge).double().mean().item() == pytest.approx(clipped, abs=0.002)
    assert pixels.mean().item() == pytest.approx(0.5, abs=0.002)
    inside = pixels[(pixels > 0) & (pixels < 1)]
    from scipy.stats import kstest, truncnorm

    assert kstest(inside[:5000].numpy(), truncnorm(-0.5 / std, 0.5 / std, 0.5, std).cdf).pvalue > 1e-3


def test_uniform_noise_is_uniform() -> None:
    pixels = torch.cat(list(UniformNoise(100, (3, 32, 32)).batches(50))).numpy()
    assert pixels.min() >= 0
    assert pixels.max() < 1
    counts = np.histogram(pixels, 16, (0, 1))[0]
    assert np.abs(counts / counts.mean() - 1).max() < 0.03


@pytest.mark.parametrize("bad", [{"count": 0}, {"shape": (3, 0, 4)}, {"seed": -1}, {"std": 0.0}, {"std": float("nan")}])
def test_bad_arguments_are_named(bad: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match="Expected"):
        GaussianNoise(**{"count": 1, "shape": SHAPE, **bad})  # type: ignore[arg-type]
