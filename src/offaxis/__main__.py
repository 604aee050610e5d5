"""``python -m offaxis`` and the program ``offaxis``."""

import os
import signal
import sys
from types import FrameType


def start() -> None:
    """Run the command line; Ctrl-C ends it without a traceback, also while modules are being imported."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin take the time of other programs
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
        limit = _memory_limit()
        if limit is None or limit > _LITTLE:
            raise
        print(  # noqa: T201
            f"error: The memory that this process may have ({limit >> 20} MB) is used up ({type(error).__name__}): raise its "
            "limit (ulimit -v).",
            file=sys.stderr,
        )
        sys.exit(2)


_LITTLE = 2**30  # bytes, with which PyTorch can hardly be imported: libraries fail in ways of their own


def _memory_limit() -> int | None:
    """Return the bytes that this process may take, where a limit is set."""
    try:
        import resource
    except ImportError:  # other systems have no such limit
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


if __name__ == "__main__":
    start()
