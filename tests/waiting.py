"""Other processes and threads: wait for a condition with a deadline, never for a fixed time; a port for a service."""

import socket
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


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
