"""``python -m offaxis`` and the program ``offaxis``."""

import os
import re
import signal
import sys
import traceback
from types import FrameType


def start() -> None:
    """Run the command line; Ctrl-C ends it without a traceback, also while modules are being imported."""
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "passive"
    )  # threads that spin take the time of other programs, and of each other
    pressed: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a job in the background ignores it
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from offaxis.cli import main as run

    if heeded:
        signal.signal(signal.SIGINT, interrupt)
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if pressed:
            sys.exit(128 + signal.SIGINT)  # an import that was cut off leaves modules half made
        if not _NO_MEMORY.search("".join(traceback.format_exception(error))):
            raise
        print("error: The memory that this process may have is used up: raise its limit (ulimit -v).", file=sys.stderr)  # noqa: T201
        sys.exit(2)


# what Python, the loader of libraries and PyTorch say
_NO_MEMORY = re.compile(
    "MemoryError|bad_alloc|failed to map segment|start new thread|[Cc]an(no|')t allocate memory|Unable to allocate"
)


if __name__ == "__main__":
    start()
