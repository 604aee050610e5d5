"""Do the study's steps, several at a time, each in a process of its own: ``python -m study.run [--workers 2]``.

Stop it when you like; it goes on where it stopped. What a step prints is in runs/study/log.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from offaxis.reproduce.commands import Command
from study.steps import WORK, all_steps

LOG = WORK / "log"


class Steps:
    """What is to be done, shared by all workers."""

    def __init__(self) -> None:
        unique = {step.words: (step, needs) for step, needs in all_steps()}
        self.todo = [pair for pair in unique.values() if not pair[0].done]
        self.lock = threading.Lock()
        self.failed: list[Command] = []

    def take(self) -> Command | None:
        """The first step whose networks are trained; waits while others train them; None when there is none."""
        while True:
            with self.lock:
                broken = {step.words for step in self.failed}
                self.todo = [(s, needs) for s, needs in self.todo if not broken & {need.words for need in needs}]
                for place, (step, needs) in enumerate(self.todo):
                    if all(need.done for need in needs):
                        del self.todo[place]
                        return step
                if not self.todo:
                    return None
            time.sleep(1)


def work(steps: Steps) -> None:
    """Take steps until none is left."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    while step := steps.take():
        begun = time.monotonic()
        name = Path(step.words[-1]).name if step.words[0] == "train" else step._mark.name
        print(f"{time.strftime('%H:%M:%S')} begin {step.command}", flush=True)
        with (LOG / f"{name}.txt").open("a") as log:
            done = subprocess.run(
                [sys.executable, "-m", "offaxis", *step.words], stdout=log, stderr=log, env=environment, check=False
            )
        if done.returncode:
            steps.failed.append(step)
            print(f"FAILED, see {log.name}: {step.command}", flush=True)
        else:
            step.mark()
            _remember(name, time.monotonic() - begun)
            print(f"{time.strftime('%H:%M:%S')} {time.monotonic() - begun:6.0f} s  {name}", flush=True)


def _remember(name: str, seconds: float) -> None:
    """Keep how long it took."""
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
