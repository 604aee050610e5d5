"""Run the second study, one command at a time, in the order in which its steps matter; it resumes.

    OFFAXIS_DATA=DATA nice -n 19 python -m study.second.run --photos PHOTOS --features FEATURES --weights WEIGHTS

What a command prints goes to runs/study/log/second.txt. Stop it at any time: a training is saved when it is stopped, and the
next start takes up what is missing. ``--list`` prints the commands.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator

from study.second.features import WORK
from study.second.finetune import SETTINGS, TRAININGS
from study.second.scratch import trainings

LOG = WORK / "log" / "second.txt"


def commands(photos: str, features: str, weights: str) -> Iterator[tuple[str, ...]]:
    """Yield every command, as words after ``python -m``; one that has nothing to do ends at once."""
    yield ("benchmarks.photo_features", photos, features)
    yield ("study.second.photos", features)
    yield ("study.second.published", weights)
    yield ("study.second.candidates", features, "--weights", weights)
    every = list(trainings())
    for each in every:
        yield ("study.second.scratch", "train", each.name)
        yield ("study.second.scratch", "judge")
        if each is every[len(every) // 3]:  # fine-tuning comes before the last heads, CIFAR-100 and DenseNet-BC
            for _ in range(2 * len(SETTINGS)):
                yield ("study.second.finetune", "choose", weights)
            for _ in range(TRAININGS):
                yield ("study.second.finetune", "train", weights)
            yield ("study.second.finetune", "judge", weights)
    yield ("study.second.candidates", features, "--weights", weights)


def main() -> None:
    """Run the commands, or print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", default="photos")
    parser.add_argument("--features", default="features")
    parser.add_argument("--weights", default="weights")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    for words in commands(options.photos, options.features, options.weights):
        if options.list:
            print("python -m " + " ".join(words))
            continue
        LOG.parent.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        with LOG.open("a", encoding="utf-8") as log:
            log.write(f"== {time.strftime('%H:%M:%S')} {' '.join(words)}\n")
            log.flush()
            done = subprocess.run([sys.executable, "-m", *words], stdout=log, stderr=log, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(words)} ended with {done.returncode}: see {LOG}")
        if time.monotonic() - begun > 60:
            print(f"{time.monotonic() - begun:6.0f} s  {' '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
