"""Run a function in a child process with a limit of memory and time, so that a crash or a hog is a failed test.

A fuzzer is a function ``fuzz(count, seed, ...)`` of a module under ``tests``: it tries ``count`` damaged inputs, raises
AssertionError with the input where one is not answered as it must be, and returns what it counted. The test calls it
through ``in_child``. ``SEEDS`` are what every fuzzer is parametrised with, a fixed seed and a new one, which ``seed_of``
draws inside the test (the names of tests are the same in every process) or takes from OFFAXIS_FUZZ_SEED; ``times(count)`` is
how many inputs to try: ``count``, times OFFAXIS_FUZZ.
"""

import importlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SEEDS = ("fixed", "new")
MEGABYTE = 2**20
PATIENCE = 8  # seconds that may pass for each second of processor time: the machine may be busy


def seed_of(kind: str) -> int:
    """Return the seed of one of ``SEEDS`` and print it; pytest shows it where a test fails."""
    seed = 0 if kind == "fixed" else int(os.environ.get("OFFAXIS_FUZZ_SEED", random.SystemRandom().randrange(2**31)))
    print(f"OFFAXIS_FUZZ_SEED={seed}")
    return seed


def times(count: int) -> int:
    """Return how many inputs to try."""
    return max(1, int(count * float(os.environ.get("OFFAXIS_FUZZ", "1"))))


LONG = max(280, times(280))
"""Seconds of processor time that a fuzzer may take."""


def in_child(function: Callable[..., Any], *args: Any, megabytes: int = 1024, seconds: float = 240.0) -> Any:
    """Call a function of a module in a child process and return what it returns; both must fit in JSON.

    Args:
        function: a function at the top of an importable module.
        args: its arguments.
        megabytes: how much memory it may take beyond what its imports took.
        seconds: how much processor time it may take.

    Raises:
        AssertionError: it raised something, was killed by a signal, or took more memory or time.
    """
    words = [function.__module__, function.__name__, json.dumps(args), str(megabytes), str(seconds)]
    process = subprocess.Popen(
        [sys.executable, "-c", "from tests.hostile.child import main; main()", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    named = f"{function.__module__}.{function.__name__}{args}"
    try:
        out, err = process.communicate(timeout=PATIENCE * seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, err = process.communicate()
        raise AssertionError(f"{named} took more than {PATIENCE * seconds} s\n{err[-3000:]}") from None
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        raise AssertionError(f"{named} was killed by {name}\n{out[-500:]}\n{err[-3000:]}")
    assert process.returncode == 0, f"{named} failed\n{err[-4000:]}"
    return json.loads(out.splitlines()[-1])


def main() -> None:
    """Import, limit the memory, call, print: the child's side."""
    module, name, args, megabytes, seconds = sys.argv[1:]
    function = getattr(importlib.import_module(module), name)
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + float(seconds)) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))  # SIGXCPU, then SIGKILL
    limit_memory(3 * 1024)  # what takes more than it may but less than this shows in the peak below
    before = _peak()
    result = function(*json.loads(args))
    assert _peak() - before <= int(megabytes), f"it took {_peak() - before:.0f} MB of memory"
    print(json.dumps(result))


def _peak() -> float:
    """Return the largest memory of this process so far, in megabytes; a MemoryError that was caught shows here.

    That of ``getrusage`` would begin with the memory of the process that started this one.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) / 1024


def limit_memory(megabytes: int) -> None:
    """Let this process take so much address space beyond what it has; more is a MemoryError."""
    if not Path("/proc/self/statm").exists():
        return
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = taken + megabytes * MEGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
