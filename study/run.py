"""Run the study's commands, several at a time, each in a process of its own: ``python -m study.run [--workers 2]``.

It can be stopped at any time and resumes where it stopped. What a command prints is in runs/study/log.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time

from offaxis.paper.commands import Command
from study.steps import WORK, all_steps

LOG = WORK / "log"


class Steps:
    """The commands that are left, shared by all workers."""

    def __init__(self) -> None:
        unique = {step.words: (step, needs) for step, needs in all_steps()}
        self.todo = [pair for pair in unique.values() if not pair[0].done]
        self.changed = threading.Condition()
        self.failed: list[Command] = []

    def take(self) -> Command | None:
        """Return the first command whose networks are trained; wait while others train them; None when none is left."""
        with self.changed:
            while True:
                broken = {step.words for step in self.failed}
                self.todo = [(s, needs) for s, needs in self.todo if not broken & {need.words for need in needs}]
                for place, (step, needs) in enumerate(self.todo):
                    if all(need.done for need in needs):
                        del self.todo[place]
                        return step
                if not self.todo:
                    return None
                self.changed.wait()

    def finish(self, step: Command, failed: bool) -> None:
        """Record how a command ended, and wake the workers that wait for it."""
        with self.changed:
            if failed:
                self.failed.append(step)
            else:
                step.mark()
            self.changed.notify_all()


def work(steps: Steps) -> None:
    """Take commands until none is left."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    while step := steps.take():
        start = time.monotonic()
        print(f"{time.strftime('%H:%M:%S')} begin {step.command}", flush=True)
        with (LOG / f"{step.name}.txt").open("a") as log:
            done = subprocess.run(
                [sys.executable, "-m", "offaxis", *step.words], stdout=log, stderr=log, env=environment, check=False
            )
        steps.finish(step, failed=done.returncode != 0)
        if done.returncode:
            print(f"FAILED, see {log.name}: {step.command}", flush=True)
        else:
            _remember(step.name, time.monotonic() - start)
            print(f"{time.strftime('%H:%M:%S')} {time.monotonic() - start:6.0f} s  {step.name}", flush=True)


def _remember(name: str, seconds: float) -> None:
    """Append how long a command took."""
    with (WORK / "times.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"name": name, "seconds": round(seconds)}) + "\n")


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="print the commands that are left")
    arguments = parser.parse_args()
    steps = Steps()
    if arguments.list:
        print("\n".join(step.command for step, _ in steps.todo))
        return
    LOG.mkdir(parents=True, exist_ok=True)
    threads = [threading.Thread(target=work, args=(steps,)) for _ in range(arguments.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
