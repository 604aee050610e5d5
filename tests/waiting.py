"""Waiting for what another process or thread does: a condition and a deadline, never a fixed pause."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float = 5) -> bool:
    """Return whether the condition holds before the deadline; it is looked at every 10 milliseconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True
