"""Damaged and hostile bundles, runs, weights and images, in a child process with a limit of memory."""

import pytest

from tests.hostile import bundles
from tests.hostile.child import LONG, PATIENCE, SEEDS, in_child, seed_of, times


def test_hostile_bundles_are_refused_at_once_and_in_little_memory() -> None:
    seconds = in_child(bundles.hostile_bundles, megabytes=700)
    assert len(seconds) == 19
    assert max(seconds.values()) < 60, seconds  # minutes before


@pytest.mark.thirdparty
def test_small_bundles_of_huge_buffers_and_maps_are_refused_at_once_and_in_little_memory() -> None:
    seconds = in_child(bundles.large_buffers, megabytes=700)
    assert len(seconds) == 3
    assert max(seconds.values()) < 20, seconds  # gigabytes and 37 seconds before


@pytest.mark.hostile
@pytest.mark.timeout(LONG * PATIENCE)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("fuzz", "count"),
    [
        (bundles.fuzz_bundles, 1500),
        (bundles.fuzz_manifests, 300),
        (bundles.fuzz_checkpoints, 2000),
        (bundles.fuzz_images, 2000),
        (bundles.fuzz_runs, 1500),
        (bundles.fuzz_weights, 1500),
    ],
)
def test_fuzz(fuzz: object, count: int, seed: str) -> None:
    counts = in_child(fuzz, times(count), seed_of(seed), megabytes=700, seconds=LONG)  # type: ignore[arg-type]
    print(counts)
    assert counts["refused"] > 0.2 * times(count)
