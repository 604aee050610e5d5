"""``python -m offaxis`` and the program ``offaxis``."""

import os
import signal
import sys
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
    except Exception:
        if not pressed:
            raise
        sys.exit(128 + signal.SIGINT)  # an import that was cut off leaves modules half made, which fail in other ways


if __name__ == "__main__":
    start()
