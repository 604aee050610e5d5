"""``python -m offaxis`` and the program ``offaxis``."""

import signal
import sys


def start() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it without a traceback."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from offaxis.cli import main as run

    signal.signal(signal.SIGINT, interrupt)
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    start()
