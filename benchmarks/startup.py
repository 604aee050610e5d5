"""How fast the command line starts: CPU time of `offaxis --help` and `offaxis paper one-vs-one` over that of `import torch`.

    python -m benchmarks.startup

Each run is a process of its own; its CPU time (user and system) is counted, so that other load of the machine does not
matter much. The commands and ``python -c "import torch"`` alternate.
"""

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Callable

from benchmarks.paired import paired, publish

IMPORT_TORCH = (sys.executable, "-c", "import torch")
OFFAXIS = (sys.executable, "-c", "import sys; from offaxis.cli import main; sys.exit(main())")  # as the console script
COMMANDS = (("--help",), ("paper", "one-vs-one"))
BOUND = 0.3


def cpu_seconds(run: Callable[[], object]) -> float:
    """Return the CPU time of the processes that one run starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def start(*command: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    for words in COMMANDS:
        ratio = paired(
            lambda words=words: start(*OFFAXIS, *words),  # type: ignore[misc]
            lambda: start(*IMPORT_TORCH),
            options.rounds,
            warm_up=1,
            measure=cpu_seconds,
        )
        name = f"CPU time of `offaxis {' '.join(words)}` over `import torch`"
        publish(name, ratio, f"<= {BOUND}", ratio.median <= BOUND)


if __name__ == "__main__":
    main()
