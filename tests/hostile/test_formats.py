"""Damaged and hostile files of the publishers' formats, read in a child process with a limit of memory."""

import pytest

from tests.hostile import formats
from tests.hostile.child import LONG, PATIENCE, SEEDS, in_child, seed_of, times


def test_no_type_of_an_element_kills_the_process() -> None:
    """scipy's reader ends in SIGSEGV for 31 of these values."""
    counts = in_child(formats.element_types, 0, 64, megabytes=256)
    assert counts["read"] == 2  # as signed and as unsigned bytes


def test_a_matlab_file_that_inflates_to_two_gigabytes_is_refused() -> None:
    assert in_child(formats.bomb, megabytes=400) == {"read": 0, "refused": 1}


def test_hostile_pickles_take_neither_memory_nor_time() -> None:
    counts = in_child(formats.fuzz_pickles, 0, 0, megabytes=256, seconds=60)
    assert counts["read"] == 0


@pytest.mark.hostile
@pytest.mark.timeout(LONG * PATIENCE)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("fuzz", "count"),
    [
        (formats.fuzz_mat, 4000),
        (formats.fuzz_pickles, 4000),
        (formats.fuzz_idx, 4000),
        (formats.fuzz_archives, 1500),
    ],
)
def test_fuzz(fuzz: object, count: int, seed: str) -> None:
    counts = in_child(fuzz, times(count), seed_of(seed), megabytes=400, seconds=LONG)  # type: ignore[arg-type]
    print(counts)
    assert counts["refused"] > 0.2 * times(count)
