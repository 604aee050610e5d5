"""Damaged and hostile bundles, checkpoints and images, in a child process with a limit of memory."""

import pytest

from tests.hostile import bundles
from tests.hostile.child import SEEDS, in_child, times


def test_hostile_bundles_are_refused_at_once_and_in_little_memory() -> None:
    seconds = in_child(bundles.hostile_bundles, megabytes=700)
    assert len(seconds) == 18
    assert max(seconds.values()) < 60, seconds  # minutes before


@pytest.mark.hostile
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("fuzz", "count"),
    [
        (bundles.fuzz_bundles, 1500),
        (bundles.fuzz_manifests, 300),
        (bundles.fuzz_checkpoints, 2000),
        (bundles.fuzz_images, 2000),
    ],
)
def test_fuzz(fuzz: object, count: int, seed: int) -> None:
    counts = in_child(fuzz, times(count), seed, megabytes=700, seconds=280)  # type: ignore[arg-type]
    assert counts["refused"] > 0.2 * count
